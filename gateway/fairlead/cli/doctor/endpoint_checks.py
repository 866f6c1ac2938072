"""The checks that every server gets: its URL, its DNS name, its TCP port, its TLS certificate.

The checks of the API and of the links begin with these.
"""

from __future__ import annotations

import asyncio
import socket
import ssl as tls
import time
from datetime import UTC, datetime
from urllib.parse import urlsplit

from fairlead.cli.doctor.checks import STEP_TIMEOUT, Check, CheckFailed
from fairlead.settings import is_loopback

EXPIRES_SOON = 14
"""Days: a certificate that expires sooner is reported."""
SHOWN_ADDRESSES = 4


class EndpointChecks:
    """The checks of the server at one URL. Each uses what the ones before it found."""

    def __init__(self, url: str, plain: str, secure: str, flag: str) -> None:
        """`plain` and `secure` are the schemes without and with TLS, `flag` is the option that gave the URL."""
        self.url = url
        self._schemes = (plain, secure)
        self._flag = flag
        self.secure = False
        self.host = ""
        self.port = 0
        self.proxy = ""
        """The proxy that requests go through. If there is one, its name is resolved and its port connected to."""
        self._connect_to = ("", 0)
        self._addresses: list[str] = []

    @property
    def endpoint_checks(self) -> list[Check]:
        return [("url", self._check_url), ("dns", self._check_dns), ("tcp", self._check_tcp), ("tls", self._check_tls)]

    async def _check_url(self) -> str:
        plain, secure = self._schemes
        advice = f"{self._flag} {secure}://HOST, or {self._flag} {plain}://HOST:PORT"
        try:
            parts = urlsplit(self.url)
            host, port = parts.hostname, parts.port
        except ValueError as e:
            raise CheckFailed(f"invalid URL {self.url!r}: {e}", advice) from e
        if parts.scheme not in self._schemes or not host:
            raise CheckFailed(f"invalid URL {self.url!r}: expected {secure}://HOST or {plain}://HOST:PORT", advice)
        self.secure = parts.scheme == secure
        self.host, self.port = host, port or (443 if self.secure else 80)
        self._connect_to = self._first_hop()
        through = f", through the proxy {':'.join(map(str, self._connect_to))} from the environment"
        return (
            f"host {self.host}, port {self.port}, {'with' if self.secure else 'without'} TLS"
            f"{through if self.proxy else ''}"
        )

    def _first_hop(self) -> tuple[str, int]:
        """The host and port to connect to. Overridden where proxies are used."""
        return self.host, self.port

    async def _check_dns(self) -> str:
        loop = asyncio.get_running_loop()
        host, port = self._connect_to
        try:
            async with asyncio.timeout(STEP_TIMEOUT):
                found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except TimeoutError as e:
            raise CheckFailed(
                f"no answer for the name {host} within {STEP_TIMEOUT:g} s", "is this machine's DNS server reachable?"
            ) from e
        except (OSError, UnicodeError) as e:
            raise CheckFailed(f"unknown name {host}: {e}", "check its spelling and its DNS record") from e
        self._addresses = list(dict.fromkeys(str(place[4][0]) for place in found))
        more = " …" if len(self._addresses) > SHOWN_ADDRESSES else ""
        return f"{host} is {', '.join(self._addresses[:SHOWN_ADDRESSES])}{more}"

    async def _check_tcp(self) -> str:
        refusals = []
        port = self._connect_to[1]
        began = time.monotonic()
        for address in self._addresses:
            try:
                async with asyncio.timeout(STEP_TIMEOUT):
                    _, writer = await asyncio.open_connection(address, port)
            except (OSError, TimeoutError) as e:
                refusals.append(f"{address}: {getattr(e, 'strerror', '') or f'no answer within {STEP_TIMEOUT:g} s'}")
                continue
            took = time.monotonic() - began
            await _close(writer)
            also = f"; but {'; '.join(refusals)}" if refusals else ""
            return f"{address} accepts connections on port {port}, {took * 1000:.1f} ms{also}"
        raise CheckFailed(
            f"port {port} accepts no connection: {'; '.join(refusals)}",
            "is the URL right (--api is that of the API, --links that of the links), is the gateway or the proxy in "
            "front of it running, does a firewall block it?",
        )

    async def _check_tls(self) -> str:
        if self.proxy:
            return "not checked on its own, because a proxy is in between: the next check goes through it"
        if not self.secure:
            return "none" if is_loopback(self.host) else "none: others can read the tokens on the way"
        try:
            async with asyncio.timeout(STEP_TIMEOUT):
                _, writer = await asyncio.open_connection(
                    self.host, self.port, ssl=tls.create_default_context(), server_hostname=self.host
                )
        except (OSError, TimeoutError) as e:
            raise self._tls_failure(e) from e
        session: tls.SSLObject = writer.get_extra_info("ssl_object")
        version, certificate = session.version(), session.getpeercert() or {}
        await _close(writer)
        ends = certificate.get("notAfter")
        if not isinstance(ends, str):
            return f"{version}"
        left = datetime.fromtimestamp(tls.cert_time_to_seconds(ends), UTC) - datetime.now(UTC)
        renew = ": renew it" if left.days < EXPIRES_SOON else ""
        return f"{version}, the certificate is valid for {left.days} days{renew}"

    def _tls_failure(self, e: OSError) -> CheckFailed:
        if isinstance(e, tls.SSLCertVerificationError):
            return CheckFailed(
                f"invalid certificate: {e.verify_message or e}",
                "if your own authority issued it, set SSL_CERT_FILE to that authority's certificate; else renew it, or "
                "use the name that it was issued for",
            )
        if isinstance(e, tls.SSLError):
            plain = self._schemes[0]
            return CheckFailed(
                f"no TLS on port {self.port}: {e.reason or e}", f"if this port has no TLS, write {plain}://"
            )
        return CheckFailed(
            f"the TLS handshake failed: {e or f'no answer within {STEP_TIMEOUT:g} s'}", "see the server's log"
        )

    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open a TCP or TLS connection. Raises OSError or TimeoutError."""
        context = tls.create_default_context() if self.secure else None
        async with asyncio.timeout(STEP_TIMEOUT):
            return await asyncio.open_connection(
                self.host, self.port, ssl=context, server_hostname=self.host if context else None
            )


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    try:
        async with asyncio.timeout(STEP_TIMEOUT):
            await writer.wait_closed()
    except (OSError, TimeoutError):
        pass  # the connection was only for this check
