"""Sends one HTTP POST to the endpoint of a sink, and tells what became of it.

The sink's driver uses one, and whoever sends a dead letter again. It looks the name up itself, refuses addresses that
the sink may not reach, and connects to one that it has checked. It follows no redirect, uses no proxy of the
environment, keeps no cookie, and heeds nothing of the answer but its head. Certificates are checked for the name.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl as tls
from typing import TYPE_CHECKING, Final, NamedTuple

from fairlead.routing.sinks.address_guard import why_refused
from fairlead.routing.sinks.sinks_file import Sink

if TYPE_CHECKING:
    import httpx2

ADDRESSES: Final = 3
"""Addresses of a name that one attempt tries."""
CONNECTIONS: Final = 16
DRAINED: Final = 8 << 10
"""Bytes of the body of an answer that are read; what they say is of no interest."""
DRAINING: Final = 0.5
"""Seconds for that."""
GONE: Final = 410
"""The status by which a receiver says that it does not want this event, nor any attempt after this one."""
REFUSALS: Final = frozenset({400, 413, 415, 422})
"""Statuses by which a receiver that is well says that there is something wrong with this event."""


class SendOutcome(NamedTuple):
    """`error` is "" if the receiver has accepted the event. `pause` is for how many seconds it asked to be left alone,
    `last` says that it asked for no further attempt, and `refused` that it is this event which it does not take."""

    error: str = ""
    pause: float = 0.0
    last: bool = False
    refused: bool = False


class WebhookClient:
    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._http: httpx2.AsyncClient | None = None
        self._opening = asyncio.Lock()
        """The first attempts come at once, and share one client."""
        self._looking: asyncio.Task[list[str]] | None = None

    async def send(self, body: bytes, headers: dict[str, str]) -> SendOutcome:
        """One attempt, within the timeout of the sink. It never raises for what the receiver or the network does."""
        import httpx2

        try:
            http = await self._opened()  # a receiver is not to blame for the time that reading authorities takes
            async with asyncio.timeout(self._sink.timeout):
                return await self._send(http, body, headers)
        except TimeoutError:
            return SendOutcome(f"no answer within {self._sink.timeout:g} s")
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError, UnicodeError) as e:  # the last one of a name
            return SendOutcome(f"cannot be reached: {str(e) or type(e).__name__}"[:200])

    async def aclose(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
        if self._http is not None:
            await self._http.aclose()

    async def _send(self, http: httpx2.AsyncClient, body: bytes, headers: dict[str, str]) -> SendOutcome:
        import httpx2

        url = httpx2.URL(self._sink.url)
        addresses, refused = await self._addresses(url.host, url.port or (443 if url.scheme == "https" else 80))
        if not addresses:
            return SendOutcome(refused)
        asked = {**headers, "host": self._sink.host}
        for number, address in enumerate(addresses, 1):
            request = http.build_request(
                "POST", url.copy_with(host=address), content=body, headers=asked,
                extensions={**http_extensions(self._sink.timeout), "sni_hostname": url.host},
            )  # fmt: skip
            try:
                answer = await http.send(request, stream=True)
            except httpx2.ConnectError:
                if number == len(addresses):
                    raise
                continue
            try:
                await _drain(answer)
                return _outcome(answer)
            finally:
                http.cookies.clear()
                await answer.aclose()
        raise AssertionError("an address has given an outcome")

    async def _addresses(self, host: str, port: int) -> tuple[list[str], str]:
        """The addresses of the host that may be sent to, and why there is none."""
        if self._looking is None or self._looking.done():
            # A name server that does not answer holds a thread, of which a process has four for all look-ups.
            self._looking = asyncio.create_task(_look_up(host, port))
            self._looking.add_done_callback(_noted)
        addresses = await asyncio.shield(self._looking)
        reasons = {one: why_refused(one, self._sink.allow, own=_is_own(one)) for one in addresses}
        good = [address for address, why in reasons.items() if not why]
        refused = "; ".join(f"{address} {why}" for address, why in list(reasons.items())[:ADDRESSES])
        return good[:ADDRESSES], f"the address {refused}: allow it in the file of sinks if it is meant"

    async def _opened(self) -> httpx2.AsyncClient:
        async with self._opening:
            if self._http is None:
                import httpx2

                verify = await asyncio.to_thread(_trusted, self._sink)
                self._http = httpx2.AsyncClient(
                    verify=verify, trust_env=False, follow_redirects=False,
                    limits=httpx2.Limits(max_connections=CONNECTIONS, max_keepalive_connections=CONNECTIONS),
                )  # fmt: skip
            return self._http


async def _look_up(host: str, port: int) -> list[str]:
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(one[4][0]) for one in found))


def _noted(look_up: asyncio.Task[list[str]]) -> None:
    """All that have waited for it may have given up."""
    if not look_up.cancelled():
        look_up.exception()


def _is_own(address: str) -> bool:
    """Whether this machine has the address: what is sent to it has it as its source, too. Nothing is sent."""
    try:
        with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((address, 9))
            return str(probe.getsockname()[0]) == address
    except OSError:
        return False


def http_extensions(timeout: float) -> dict[str, object]:
    return {"timeout": dict.fromkeys(("connect", "read", "write", "pool"), timeout)}


def _trusted(sink: Sink) -> tls.SSLContext:
    return tls.create_default_context(cafile=None if sink.ca is None else str(sink.ca))


async def _drain(answer: httpx2.Response) -> None:
    """Read a short body, so that the connection can be used again."""
    import httpx2

    left = DRAINED
    with contextlib.suppress(TimeoutError, httpx2.HTTPError):
        async with asyncio.timeout(DRAINING):
            async for part in answer.aiter_raw():
                left -= len(part)
                if left < 0:
                    return


def _outcome(answer: httpx2.Response) -> SendOutcome:
    status = answer.status_code
    if 200 <= status < 300:
        return SendOutcome()
    asked = answer.headers.get("retry-after", "")
    pause = float(asked) if asked.isascii() and asked.isdigit() and len(asked) < 7 else 0.0
    advice = ": it asks to go elsewhere, which a webhook does not" if 300 <= status < 400 else ""
    return SendOutcome(f"answered with the status {status}{advice}", pause, status == GONE, status in REFUSALS)
