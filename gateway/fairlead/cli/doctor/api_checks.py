"""The road to the platform API and to a node's probes, behind what every road begins with.

Used by `doctor`. One request tells three things: whether it is Fairlead that answers, whether it takes the token, and
whether it reaches its Redis, without which it can name no agent.
"""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from fairlead.cli.doctor.endpoint_checks import PATIENCE, Check, CheckFailed, EndpointChecks
from fairlead.client import Client, ConnectionLost, check_address
from fairlead.errors import BusUnavailable, ConnectionRefused, FairleadError, InvalidRequest, Unauthorized
from fairlead.settings import is_loopback
from fairlead.wire.handshake import Response, parse_response

ANSWER_LIMIT = 64 << 10


class ApiChecks(EndpointChecks):
    def __init__(self, url: str, token: str) -> None:
        super().__init__(url, "http", "https", "--api")
        self._token = token
        self._refusal: FairleadError | None = None

    def _first_stop(self) -> tuple[str, int]:
        """The proxy of the environment, as the client would use it: never for this machine."""
        try:
            check_address(self.url)
        except InvalidRequest as e:
            raise CheckFailed(e.message, "--api https://HOST, or --api http://HOST:PORT") from e
        scheme = "https" if self.secure else "http"
        proxy = "" if is_loopback(self.host) or proxy_bypass(self.host) else getproxies().get(scheme, "")
        try:
            parts = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
            if proxy and parts.hostname:
                self.proxy = proxy
                return parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)
        except ValueError as e:
            raise CheckFailed(
                f"the proxy {proxy!r} of the environment is not a URL: {e}", f"correct {scheme}_proxy"
            ) from e
        return super()._first_stop()

    @property
    def steps(self) -> list[Check]:
        return [*self.first_steps, ("api", self._ask), ("token", self._judge_token), ("redis", self._judge_redis)]

    async def _ask(self) -> str:
        try:
            async with Client(self.url, self._token) as client, asyncio.timeout(2 * PATIENCE):
                await anext(client.agents(), None)
            return "Fairlead answers"
        except TimeoutError as e:
            raise CheckFailed(
                f"no answer within {2 * PATIENCE:g} s", "is the node overloaded, or the proxy before it waiting?"
            ) from e
        except (ConnectionLost, ConnectionRefused) as e:
            advice = (
                "look at the log of what answers there" if self.secure else "does it speak TLS? then write https://"
            )
            raise CheckFailed(e.message, advice) from e
        except FairleadError as e:
            if not e.details.get("code"):
                raise CheckFailed(
                    f"what answers is not Fairlead's API: {e.message}",
                    "is it the API's port (8081 unless told otherwise), and does a proxy pass /v1/ to it?",
                ) from e
            self._refusal = e
            return "Fairlead answers"

    async def _judge_token(self) -> str:
        if isinstance(self._refusal, Unauthorized):
            raise CheckFailed(
                f"the token is not taken: {self._refusal.message}",
                "give FAIRLEAD_TOKEN the value that the gateway has as platform_token",
            )
        return "the token is taken"

    async def _judge_redis(self) -> str:
        if isinstance(self._refusal, BusUnavailable):
            raise CheckFailed(
                f"the gateway does not reach its Redis: {self._refusal.message}",
                "is that Redis running, and right in the gateway's `redis` setting? It connects again by itself",
            )
        if self._refusal is not None:
            raise CheckFailed(self._refusal.message, "look at the gateway's log")
        return "the gateway reaches its Redis"


class ProbeChecks(EndpointChecks):
    """To the admin port: whether the node calls itself ready."""

    def __init__(self, url: str) -> None:
        super().__init__(url, "http", "https", "--admin")

    @property
    def steps(self) -> list[Check]:
        return [*self.first_steps, ("readyz", self._ready)]

    async def _ready(self) -> str:
        try:
            answer, body = await get(self, "/readyz")
        except (OSError, TimeoutError, ConnectionRefused) as e:
            raise CheckFailed(
                f"/readyz does not answer: {e}", "is it the admin port (8082 unless told otherwise)?"
            ) from e
        words = "; ".join(body.decode(errors="replace").split("\n")).strip("; ")
        if answer.status == 200:
            return f"the node is ready: {words}"
        if answer.status == 503:
            raise CheckFailed(f"the node is not ready: {words}", "it says why; its log says more")
        raise CheckFailed(f"/readyz answers HTTP {answer.status}", "is it the admin port (8082 unless told otherwise)?")


async def get(road: EndpointChecks, path: str) -> tuple[Response, bytes]:
    """A plain GET by hand, which no library makes look better than it is. Raises OSError, TimeoutError,
    ConnectionRefused.
    """
    reader, writer = await road.open()
    try:
        async with asyncio.timeout(PATIENCE):
            writer.write(f"GET {path} HTTP/1.1\r\nHost: {road.host}:{road.port}\r\nConnection: close\r\n\r\n".encode())
            return await read_answer(reader, ANSWER_LIMIT)
    finally:
        writer.close()


async def read_answer(reader: asyncio.StreamReader, limit: int) -> tuple[Response, bytes]:
    """The head of an answer and its body, of which `limit` bytes are enough. Raises ConnectionRefused."""
    data = b""
    while (answer := parse_response(data)) is None:
        part = await reader.read(limit)
        if not part:
            raise ConnectionRefused("the connection was closed before the answer")
        data += part
    head, body = answer
    length = head.headers.get("content-length", "")
    # Not to the end of the connection: a proxy may keep it, whatever was asked of it.
    whole = 0 if head.status == 101 else min(limit, int(length)) if length.isdigit() else limit
    while len(body) < whole and (part := await reader.read(limit)):
        body += part
    return head, body
