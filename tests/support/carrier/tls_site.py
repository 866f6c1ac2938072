"""An application behind TLS: a link, a page, how its links came, and certificates to serve it with."""

from __future__ import annotations

import asyncio
import socket
import ssl
import subprocess
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket

from fairlead.carrier.attach import attach
from fairlead.carrier.http_server.link_acceptor import DirectEndpoint, LinkRefusal
from fairlead.carrier.http_server.peer import Peer, peer_of
from fairlead.carrier.http_server.response import Headers
from fairlead.carrier.tls.client_authorities import ClientAuthorities
from fairlead.carrier.tls.server_certificate import ServerCertificate

from support.carrier.listeners import RecordingListener
from support.carrier.raw_client import RawClient


def make_certificate(folder: Path, name: str, days: int = 2, kind: str = "ec") -> tuple[Path, Path]:
    """A self-signed certificate for localhost: its file and that of its key."""
    certificate, key = folder / f"{name}.pem", folder / f"{name}.key"
    new = "rsa:2048" if kind == "rsa" else "ec -pkeyopt ec_paramgen_curve:P-256"
    command = f"openssl req -x509 -newkey {new} -nodes -days {days} -subj /CN={name}"
    files = f"-addext subjectAltName=DNS:localhost -keyout {key} -out {certificate}"
    subprocess.run(f"{command} {files}".split(), check=True, capture_output=True, timeout=60)
    return certificate, key


class TlsSite:
    def __init__(
        self,
        certificate: Path,
        key: Path,
        ticket_keys: Path | None = None,
        clients: ClientAuthorities | None = None,
        trust: Path | None = None,
    ) -> None:
        """`trust` has the authority of the certificate, if it is not signed by itself."""
        self.peers: list[Peer] = []
        self.direct: list[RecordingListener] = []
        self.attached: list[RecordingListener] = []
        self.schemes: list[str] = []
        self.takes = True
        self.refusal: LinkRefusal | None = None
        self.certificate = ServerCertificate(certificate, key, ticket_keys, clients=clients)
        self.trust = ssl.create_default_context(cafile=str(trust or certificate))
        self.app = Starlette(
            routes=[WebSocketRoute("/link", self._enter), Route("/page", self._page, methods=["GET", "POST"])]
        )
        self.options: dict[str, Any] = {
            "certificate": self.certificate,
            "direct": DirectEndpoint(b"/link", self._take),
        }

    def _take(self, scope: Any) -> tuple[RecordingListener, str | None, Headers] | LinkRefusal | None:
        if not self.takes:
            return self.refusal
        self.peers.append(peer_of(scope))
        self.direct.append(RecordingListener(echo=True))
        return self.direct[-1], None, ()

    async def _enter(self, websocket: WebSocket) -> None:
        self.peers.append(peer_of(websocket.scope))
        self.schemes.append(websocket.scope["scheme"])
        self.attached.append(RecordingListener(echo=True))
        await attach(websocket, self.attached[-1])

    async def _page(self, request: Request) -> PlainTextResponse:
        assert request.client is not None
        self.schemes.append(f"{request.url.scheme} {request.client.host}")
        body = await request.body()
        size = int(request.query_params.get("size", "0"))
        return PlainTextResponse("p" * size or f"{request.method} {len(body)}")

    async def dial(self, port: int) -> RawClient:
        """A client of bytes, with the handshake of TLS behind it."""
        return RawClient(*await asyncio.open_connection("localhost", port, ssl=self.trust, family=socket.AF_INET))


class TlsPeer:
    """A client whose TLS is played step by step, in memory, so that a test decides which octets are sent when."""

    def __init__(self, context: ssl.SSLContext, session: ssl.SSLSession | None = None) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname="localhost", session=session)
        self.reader: asyncio.StreamReader
        self.writer: asyncio.StreamWriter

    async def open(self, port: int) -> None:
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", port)

    def hello(self) -> bytes:
        """The octets of the ClientHello."""
        try:
            self.tls.do_handshake()
        except ssl.SSLWantReadError:
            pass
        return self._outgoing.read()

    async def complete(self) -> None:
        """Finish the handshake."""
        while True:
            try:
                self.tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                self.flush()
                await self._receive()
        self.flush()

    def send(self, data: bytes) -> None:
        self.tls.write(data)
        self.flush()

    async def read(self) -> bytes:
        """Some plaintext; b"" at the end of the stream."""
        while True:
            try:
                return self.tls.read(1 << 16)
            except ssl.SSLZeroReturnError:
                return b""
            except ssl.SSLWantReadError:
                if not await self._receive():
                    raise EOFError("the server has closed without close_notify") from None

    def flush(self) -> None:
        self.writer.write(self._outgoing.read())

    async def _receive(self) -> bool:
        data = await asyncio.wait_for(self.reader.read(1 << 16), 20)
        self._incoming.write(data)
        return bool(data)
