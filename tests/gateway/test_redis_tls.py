"""A node reaches a Redis behind TLS whose certificate was signed by an authority of the operator's own."""

from __future__ import annotations

import asyncio
import ssl as tls
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from fairlead.errors import BusUnavailable
from fairlead.store.endpoint import Endpoint


@pytest.fixture
async def tls_redis(own_valkey: Any, certificate: Path) -> AsyncIterator[str]:
    """`own_valkey` behind TLS: its URL."""
    plain = urlsplit(own_valkey.url)

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        writer.close()

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if plain.scheme == "unix":
            inner = await asyncio.open_unix_connection(plain.path)
        else:
            inner = await asyncio.open_connection(plain.hostname, plain.port)
        await asyncio.gather(pump(reader, inner[1]), pump(inner[0], writer))

    context = tls.SSLContext(tls.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    server = await asyncio.start_server(relay, "localhost", 0, ssl=context)
    yield f"rediss://localhost:{server.sockets[0].getsockname()[1]}"
    server.close()


async def test_a_private_authority_is_trusted_when_it_is_named(
    tls_redis: str, certificate: Path, make_gateway: Any, http_of: Any
) -> None:
    gateway = await asyncio.to_thread(make_gateway, tls_redis, "--redis-ca-file", str(certificate))
    assert (await http_of(gateway.api).get("/v1/agents")).status_code == 200


async def test_a_private_authority_is_not_trusted_otherwise(tls_redis: str) -> None:
    with pytest.raises(BusUnavailable, match="CERTIFICATE_VERIFY_FAILED"):
        await Endpoint(tls_redis).connect(10)
