"""The road to a server, looked at step by step: the URL, its name, its port, its TLS.

Used by `doctor`, whose two roads (to the API, and that of links) begin with these steps. A step returns what it found
in words, or raises CheckFailed with the next step for the user. The steps after one that failed are not looked at.
"""

from __future__ import annotations

import asyncio
import socket
import ssl as tls
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import urlsplit

from fairlead.settings import is_loopback

PATIENCE = 5.0
"""Seconds for each of these steps: what takes longer is no road for commands."""
EXPIRY = 14
"""Days: a certificate that ends sooner is told."""


class CheckFailed(Exception):
    """A step failed. `advice` is what to do next."""

    def __init__(self, told: str, advice: str) -> None:
        super().__init__(told)
        self.told = told
        self.advice = advice


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One step. `ok` is None when it was not looked at."""

    name: str
    target: str
    ok: bool | None
    told: str
    advice: str = ""
    seconds: float = 0.0


Check = tuple[str, Callable[[], Awaitable[str]]]


async def walk(target: str, steps: Sequence[Check]) -> AsyncIterator[CheckResult]:
    """One step after the other, until one fails."""
    failed = ""
    for name, step in steps:
        if failed:
            yield CheckResult(name, target, None, f"not looked at, since {failed} failed")
            continue
        began = time.monotonic()
        try:
            told = await step()
        except CheckFailed as e:
            failed = name
            yield CheckResult(name, target, False, e.told, e.advice, time.monotonic() - began)
        else:
            yield CheckResult(name, target, True, told, "", time.monotonic() - began)


class EndpointChecks:
    """To one URL."""

    def __init__(self, url: str, plain: str, secure: str, flag: str) -> None:
        self.url = url
        self._schemes = (plain, secure)
        self._flag = flag
        self.secure = False
        self.host = ""
        self.port = 0
        self.proxy = ""
        """That the requests go through; then it is what is looked for and connected to."""
        self._next = ("", 0)
        self._places: list[str] = []

    @property
    def first_steps(self) -> list[Check]:
        return [("url", self._read_url), ("dns", self._resolve), ("tcp", self._connect), ("tls", self._secure)]

    async def _read_url(self) -> str:
        plain, secure = self._schemes
        try:
            parts = urlsplit(self.url)
            host, port = parts.hostname, parts.port
        except ValueError as e:
            raise CheckFailed(
                f"{self.url!r} is not a URL: {e}", f"write it as {secure}://HOST or {plain}://HOST:PORT"
            ) from e
        if parts.scheme not in self._schemes or not host:
            raise CheckFailed(
                f"{self.url!r} does not begin with {plain}:// or {secure}:// and a host",
                f"{self._flag} {secure}://HOST, or {self._flag} {plain}://HOST:PORT",
            )
        self.secure = parts.scheme == secure
        self.host, self.port = host, port or (443 if self.secure else 80)
        self._next = self._first_stop()
        through = f", through the proxy {self._next[0]}:{self._next[1]} of the environment" if self.proxy else ""
        return f"host {self.host}, port {self.port}, {'with' if self.secure else 'without'} TLS{through}"

    def _first_stop(self) -> tuple[str, int]:
        """Where to connect to. Overridden where proxies are used."""
        return self.host, self.port

    async def _resolve(self) -> str:
        loop = asyncio.get_running_loop()
        host, port = self._next
        try:
            async with asyncio.timeout(PATIENCE):
                found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except TimeoutError as e:
            raise CheckFailed(
                f"no answer for the name {host} within {PATIENCE:g} s", "is this machine's DNS server reachable?"
            ) from e
        except (OSError, UnicodeError) as e:
            raise CheckFailed(
                f"the name {host} is not known: {e}", "check its spelling, and that the DNS record was made"
            ) from e
        self._places = list(dict.fromkeys(str(place[4][0]) for place in found))
        return f"{host} is {', '.join(self._places[:4])}{' …' if len(self._places) > 4 else ''}"

    async def _connect(self) -> str:
        refusals = []
        port = self._next[1]
        began = time.monotonic()
        for place in self._places:
            try:
                async with asyncio.timeout(PATIENCE):
                    _, writer = await asyncio.open_connection(place, port)
            except (OSError, TimeoutError) as e:
                refusals.append(f"{place}: {getattr(e, 'strerror', '') or f'no answer within {PATIENCE:g} s'}")
                continue
            took = time.monotonic() - began
            await _close(writer)
            also = f"; but {'; '.join(refusals)}" if refusals else ""
            return f"{place} port {port} takes connections, {took * 1000:.1f} ms{also}"
        raise CheckFailed(
            f"port {port} takes no connection: {'; '.join(refusals)}",
            "is it the right address (--api names that of the API, --links that of the links), is the gateway (or the "
            "proxy before it) running, does a firewall drop it?",
        )

    async def _secure(self) -> str:
        if self.proxy:
            return "not looked at apart, since a proxy is on the way: the next step speaks through it"
        if not self.secure:
            return "none" if is_loopback(self.host) else "none: tokens are readable on the way"
        try:
            async with asyncio.timeout(PATIENCE):
                _, writer = await asyncio.open_connection(
                    self.host, self.port, ssl=tls.create_default_context(), server_hostname=self.host
                )
        except tls.SSLCertVerificationError as e:
            raise CheckFailed(
                f"the certificate is not accepted: {e.verify_message or e}",
                "of an authority of your own? name that in SSL_CERT_FILE; else renew it, or use the name it is for",
            ) from e
        except tls.SSLError as e:
            raise CheckFailed(
                f"no TLS at port {self.port}: {e.reason or e}",
                f"does this port speak plain {self._schemes[0]}? then write {self._schemes[0]}://",
            ) from e
        except (OSError, TimeoutError) as e:
            raise CheckFailed(
                f"the TLS handshake did not end: {e or f'no answer within {PATIENCE:g} s'}",
                "look at the log of what answers there",
            ) from e
        session: tls.SSLObject = writer.get_extra_info("ssl_object")
        version, certificate = session.version(), session.getpeercert() or {}
        await _close(writer)
        ends = certificate.get("notAfter")
        if not isinstance(ends, str):
            return f"{version}"
        left = datetime.fromtimestamp(tls.cert_time_to_seconds(ends), UTC) - datetime.now(UTC)
        return f"{version}, the certificate is good for {left.days} days{': renew it' if left.days < EXPIRY else ''}"

    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection by hand. Raises OSError, TimeoutError."""
        context = tls.create_default_context() if self.secure else None
        async with asyncio.timeout(PATIENCE):
            return await asyncio.open_connection(
                self.host, self.port, ssl=context, server_hostname=self.host if context else None
            )


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    try:
        async with asyncio.timeout(PATIENCE):
            await writer.wait_closed()
    except (OSError, TimeoutError):
        pass  # it was only looked at
