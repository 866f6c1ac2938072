"""The WebSocket server to which the agent connects, on the loopback. It checks upgrade requests and hands links over.

Made by the command. It uses the library `websockets`, which is part of the base install, and not Fairlead's own server:
that one needs uvicorn, which only a gateway has, and an independent implementation is a better test for an agent in
another language.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus

from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.http11 import Request, Response
from websockets.typing import Subprotocol

from fairlead.errors import ConfigError
from fairlead.mock.comparison import Violation
from fairlead.mock.link import ENCODINGS, MockLink
from fairlead.mock.script import Refusal
from fairlead.wire.messages import MESSAGE_LIMIT

PATH = "/v1/link"


class MockServer:
    def __init__(self, encoding: str) -> None:
        self.encoding = encoding
        self.link = ""
        """Its URL."""
        self.violations: list[Violation] = []
        """What was wrong with the upgrade requests so far."""
        self._server: Server | None = None
        self._links: asyncio.Queue[MockLink] = asyncio.Queue()
        self._refusal: Refusal | None = None

    async def start(self, port: int) -> None:
        """Listen on the loopback. Raises ConfigError when the port is in use."""
        try:
            self._server = await serve(
                self._serve, "127.0.0.1", port, subprotocols=[Subprotocol(ENCODINGS[self.encoding])], compression=None,
                ping_interval=None, process_request=self._check_request, max_size=MESSAGE_LIMIT, close_timeout=5,
            )  # fmt: skip
        except OSError as e:
            raise ConfigError(f"cannot listen on port {port} ({e.strerror or e}): choose another with --port") from e
        self.link = f"ws://127.0.0.1:{next(iter(self._server.sockets)).getsockname()[1]}"

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    async def accept(self, timeout: float) -> MockLink | None:
        """The next connection; None when none came in time."""
        try:
            return await asyncio.wait_for(self._links.get(), timeout)
        except TimeoutError:
            return None

    def refuse_next(self, refusal: Refusal) -> None:
        """Answer the next request with this refusal, which is no violation."""
        self._refusal = refusal

    def forget(self) -> None:
        """Drop waiting connections, and a refusal that was not used."""
        self._refusal = None
        while not self._links.empty():
            self._links.get_nowait().abort()

    async def _serve(self, socket: ServerConnection) -> None:
        self._links.put_nowait(MockLink(socket, self.encoding))
        await socket.wait_closed()

    def _check_request(self, socket: ServerConnection, request: Request) -> Response | None:
        """Refuse a bad request as a gateway would, and record why."""
        path = request.path.partition("?")[0]
        offered = [part.strip() for part in ",".join(request.headers.get_all("Sec-WebSocket-Protocol")).split(",")]
        if path != PATH:
            return self._refuse(socket, 403, f"the path of the upgrade is {path}, expected {PATH}")
        if not request.headers.get("Authorization", "").startswith("Bearer "):
            return self._refuse(socket, 401, "the upgrade has no header Authorization: Bearer <credential>")
        if ENCODINGS[self.encoding] not in offered:
            want, came = ENCODINGS[self.encoding], ", ".join(filter(None, offered)) or "nothing"
            return self._refuse(socket, 426, f"Sec-WebSocket-Protocol offers {came}, expected {want} among it")
        if self._refusal is not None:
            refusal, self._refusal = self._refusal, None
            response = socket.respond(HTTPStatus(refusal.status), "refused, as the conversation requires\n")
            if refusal.retry_after:
                response.headers["Retry-After"] = str(refusal.retry_after)
            return response
        return None

    def _refuse(self, socket: ServerConnection, status: int, why: str) -> Response:
        self.violations.append(Violation(why, "1"))
        response = socket.respond(HTTPStatus(status), f"{why}\n")
        if status == 426:
            response.headers["Upgrade"] = "websocket"
            response.headers["Sec-WebSocket-Protocol"] = ENCODINGS[self.encoding]
        return response
