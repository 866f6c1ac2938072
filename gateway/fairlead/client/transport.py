"""Sends requests to one address of the API or to several, and translates the errors of HTTP.

Used by `client`, `command` and `event_reader`. Of several addresses one is used until it cannot be reached, loses a
connection or reports that it is busy; then the next one is used. A request that may have had an effect is never
repeated here, because only its caller knows whether a repetition does harm."""

from __future__ import annotations

import ssl as tls
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import TypeVar

import httpx2
import msgspec

from fairlead.client.problem_details import error_of_answer
from fairlead.errors import ConnectionRefused, FairleadError, InvalidRequest, NodeBusy, Unavailable
from fairlead.settings import is_loopback
from fairlead.version import __version__

L = TypeVar("L")
T = TypeVar("T")

CONNECT_TIMEOUT = 5.0
IDLE_TIMEOUT = 60.0
"""Seconds of silence after which a stream counts as lost. Keep-alive lines come more often, so only a dead connection
is silent for so long."""
CONNECTIONS = 1_000
"""Maximum number of connections to one address. Each command that is followed takes one, and a process has some
thousand file descriptors."""
PROBLEM_LIMIT = 64 << 10


class ConnectionLost(Unavailable):
    """The request was sent; its effect is unknown. Repeat it with the same key, offset or number."""

    code = "connection_lost"


def addresses(api: str) -> list[str]:
    """The addresses in a list separated by commas. They are not checked here: using them does that."""
    return [one for part in api.split(",") if (one := part.strip())] or [api]


def check_address(api: str) -> httpx2.URL:
    """Raises InvalidRequest unless `api` is one address of an API."""
    valid = "expected http://HOST[:PORT] or https://HOST[:PORT]"
    try:
        url = httpx2.URL(api)
    except httpx2.InvalidURL as e:
        raise InvalidRequest(f"invalid API address {api!r}: {e} ({valid})", field="api") from e
    if url.scheme not in ("http", "https"):
        raise InvalidRequest(
            f"invalid API address: {api!r} does not begin with http:// or https:// ({valid})", field="api"
        )
    if not url.host or "%" in url.host:
        raise InvalidRequest(f"invalid API address: {api!r} names no host ({valid})", field="api")
    if url.port is not None and not 0 < url.port < 1 << 16:
        raise InvalidRequest(f"invalid API address: {api!r} has a port outside 1 to 65535 ({valid})", field="api")
    if url.userinfo or url.query or url.fragment:
        raise InvalidRequest(f"invalid API address: {api!r} has more than host, port and path ({valid})", field="api")
    return url


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    path: str
    params: Mapping[str, str | int] | None = None
    headers: Mapping[str, str] | None = None
    content: bytes | None = None


class _Endpoint:
    """One address, and its connections."""

    def __init__(self, api: str, token: str, ssl: tls.SSLContext | None, tenant: str) -> None:
        url = check_address(api)
        named = {"Fairlead-Tenant": tenant} if tenant else {}
        self.api = api
        self.http = httpx2.AsyncClient(
            base_url=url,
            headers={"Authorization": f"Bearer {token}", "User-Agent": f"fairlead/{__version__}", **named},
            timeout=httpx2.Timeout(IDLE_TIMEOUT, connect=CONNECT_TIMEOUT),
            limits=httpx2.Limits(max_connections=CONNECTIONS, max_keepalive_connections=20),
            # The system's certificate authorities, as for agents (SSL_CERT_FILE names others). Reading them takes 20
            # ms, which plain HTTP need not spend.
            verify=(ssl or tls.create_default_context()) if url.scheme == "https" else False,
            # A proxy from the environment is for other hosts: it cannot reach this machine's loopback interface.
            trust_env=not is_loopback(url.host),
        )

    @contextmanager
    def translated(self) -> Iterator[None]:
        try:
            yield
        except httpx2.ConnectError as e:
            raise ConnectionRefused(f"cannot reach the API at {self.api}: {e}") from e
        except httpx2.ConnectTimeout as e:
            raise ConnectionRefused(f"the API at {self.api} took no connection within {CONNECT_TIMEOUT:g} s") from e
        except httpx2.PoolTimeout as e:
            raise Unavailable(f"{CONNECTIONS} requests to {self.api} are under way, the limit of one client") from e
        except httpx2.RequestError as e:
            raise ConnectionLost(f"the connection to the API at {self.api} was lost: {e or type(e).__name__}") from e


class Transport:
    def __init__(self, api: str, token: str, ssl: tls.SSLContext | None, approval: str = "", tenant: str = "") -> None:
        self.approved: Mapping[str, str | int] | None = {"approval": approval} if approval else None
        """The query of a request that starts something."""
        self._addresses = [_Endpoint(one, token, ssl, tenant) for one in addresses(api)]
        self._current = 0

    async def aclose(self) -> None:
        for one in self._addresses:
            await one.http.aclose()

    async def call(self, request: Request) -> tuple[str, bytes]:
        """The address that answered, and the body. Raises FairleadError for any answer that is not a success."""
        address, answer = await self._send(request)
        with self._watched(address):
            try:
                return address.api, await answer.aread()
            finally:
                await answer.aclose()

    async def ask(self, request: Request, kind: type[T]) -> T:
        """The body of the answer as `kind`. Raises FairleadError as `call` does, and if the body is something else."""
        api, body = await self.call(request)
        try:
            return msgspec.json.decode(body, type=kind)
        except msgspec.MsgspecError as e:
            what = f"{request.method} {request.path}"
            raise FairleadError(f"{api} answered {what} with something that is not its API: {e}") from e

    @asynccontextmanager
    async def stream(
        self, request: Request, parse: Callable[[AsyncIterator[bytes]], AsyncGenerator[L]]
    ) -> AsyncIterator[AsyncIterator[L]]:
        """The lines of the answer, as `parse` makes them of its parts."""
        address, answer = await self._send(request, chunked=request.content is not None)
        with self._watched(address):
            try:
                async with aclosing(parse(answer.aiter_bytes())) as lines:
                    yield lines
            finally:
                await answer.aclose()

    async def _send(self, request: Request, chunked: bool = False) -> tuple[_Endpoint, httpx2.Response]:
        """The answer of the first address that accepts the request; its body is not read yet.

        `chunked`: send the content in chunks. Proxies written in Go may cut off an answer that begins before they have
        checked for the end of a body of declared length.
        """
        refusals: list[FairleadError] = []
        first = self._current
        for i in range(len(self._addresses)):
            address = self._addresses[(first + i) % len(self._addresses)]
            content = _chunks(request.content) if chunked and request.content is not None else request.content
            made = address.http.build_request(
                request.method, request.path, params=request.params, headers=request.headers, content=content
            )
            try:
                with self._watched(address):
                    answer = await address.http.send(made, stream=True)
                    if answer.is_success:
                        return address, answer
                    raise error_of_answer(address.api, answer.status_code, await _head_of(answer))
            except (ConnectionRefused, NodeBusy) as e:  # it was not accepted, so another address may be used
                refusals.append(e)
        if len(refusals) > 1:
            kinds = {type(e) for e in refusals}
            kind = NodeBusy if NodeBusy in kinds else ConnectionRefused
            raise kind("; ".join(e.message for e in refusals)) from refusals[-1]
        raise refusals[0]

    @contextmanager
    def _watched(self, address: _Endpoint) -> Iterator[None]:
        """Translate the errors of HTTP. After a failure the next request goes to the next address."""
        try:
            with address.translated():
                yield
        except (ConnectionRefused, ConnectionLost, NodeBusy):
            if self._addresses[self._current] is address:
                self._current = (self._current + 1) % len(self._addresses)
            raise


async def _chunks(content: bytes) -> AsyncIterator[bytes]:
    yield content


async def _head_of(answer: httpx2.Response) -> bytes:
    """The beginning of a refusal's body, as long as a problem document may be."""
    body = b""
    try:
        async for part in answer.aiter_bytes():
            body += part
            if len(body) > PROBLEM_LIMIT:
                break
    finally:
        await answer.aclose()
    return body
