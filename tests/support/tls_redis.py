"""A Valkey behind TLS. The server program of the tests speaks no TLS, so this ends it, as a proxy beside Redis does."""

from __future__ import annotations

import asyncio
import ssl as tls
from pathlib import Path
from urllib.parse import urlsplit

from support.streams import copy_stream


class TlsRedis:
    """`url` is that of the port with TLS once it has started. A stopped one starts again on the same port."""

    def __init__(self, redis: str, certificate: Path, client_ca: Path | None = None) -> None:
        """`certificate` has the key too. `client_ca`: the authorities of the certificates that clients must present."""
        self.certificate = certificate
        self._plain = urlsplit(redis)
        self.client_ca = client_ca
        self._port = 0
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()

    @property
    def url(self) -> str:
        login = f"{self._plain.username}:{self._plain.password}@" if self._plain.username else ""
        return f"rediss://{login}localhost:{self._port}"

    async def start(self) -> None:
        context = tls.SSLContext(tls.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.certificate)
        if self.client_ca is not None:
            context.load_verify_locations(self.client_ca)
            context.verify_mode = tls.CERT_REQUIRED
        self._server = await asyncio.start_server(self._relay, "localhost", self._port, ssl=context)
        self._port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Close the port and all connections."""
        assert self._server is not None
        self._server.close()
        for writer in self._open:
            writer.transport.abort()

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._plain.scheme == "unix":
            inner = await asyncio.open_unix_connection(self._plain.path)
        else:
            inner = await asyncio.open_connection(self._plain.hostname, self._plain.port)
        both = {writer, inner[1]}
        self._open |= both
        await asyncio.gather(copy_stream(reader, inner[1]), copy_stream(inner[0], writer), return_exceptions=True)
        self._open -= both
