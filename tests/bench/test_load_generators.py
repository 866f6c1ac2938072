"""The load generators in C end with a message, and without figures, when a server does not do what it should."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from websockets.asyncio.server import ServerConnection, serve

from bench.peers.c_programs import built
from support.carrier.tls_site import make_certificate

ROUND, HANDSHAKES = built("round_clients"), built("handshake_clients")
needs_round = pytest.mark.skipif(ROUND is None, reason="needs a C compiler")
needs_handshakes = pytest.mark.skipif(HANDSHAKES is None, reason="needs a C compiler and libssl-dev")
GIVEN_UP = 30
"""Seconds after which a generator gives up: much more than these few clients need."""


async def run(program: Path | None, *arguments: object) -> subprocess.CompletedProcess[str]:
    assert program is not None
    command = [str(program), *map(str, arguments)]
    return await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=60, check=False)


@asynccontextmanager
async def answering(wrong: int, context: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """The port of a server that answers each client with its number and `wrong` added."""

    async def answer(connection: ServerConnection) -> None:
        async for message in connection:
            await connection.send(json.dumps({"c": json.loads(message)["c"] + wrong, "ts": 1_700_000_000.5}))

    async with serve(answer, "127.0.0.1", 0, subprotocols=["fairlead.v1.msgpack"], ssl=context) as server:  # type: ignore[list-item]
        yield next(iter(server.sockets)).getsockname()[1]


@needs_round
async def test_clients_of_a_round_tell_what_they_saw() -> None:
    async with answering(0) as port:
        done = await run(ROUND, port, 30, 7, GIVEN_UP, "127.0.0.2", "127.0.0.3")
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert 0 < figures["connect_p50"] <= figures["connect_p99"] <= figures["seconds"]
    assert 0 < figures["answer_p50"] <= figures["answer_p99"] <= figures["seconds"]
    assert figures["own_cpu"] > 0


@needs_round
async def test_an_answer_for_another_client_ends_a_round() -> None:
    async with answering(1) as port:
        done = await run(ROUND, port, 3, 1, GIVEN_UP, "127.0.0.2")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith('client 0: {"c": 1, ')


@needs_round
async def test_clients_of_a_round_give_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        done = await run(ROUND, silent.getsockname()[1], 3, 2, 0.5, "127.0.0.2")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "too slow: 0 of 3 clients have come as far as this\n"


@needs_handshakes
@pytest.mark.parametrize("mode", ["full", "resumed"])
async def test_clients_of_tls_want_the_certificate_that_they_know(tmp_path: Path, mode: str) -> None:
    certificate, key = make_certificate(tmp_path, "known")
    other, _ = make_certificate(tmp_path, "other")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    async with answering(0, context) as port:
        known = await run(HANDSHAKES, port, 12, 3, GIVEN_UP, certificate, mode)
        unknown = await run(HANDSHAKES, port, 12, 3, GIVEN_UP, other, mode)
    assert known.returncode == 0, known.stderr
    assert json.loads(known.stdout)["seconds"] > 0
    assert (unknown.returncode, unknown.stdout) == (1, "")
    assert "certificate verify failed" in unknown.stderr
