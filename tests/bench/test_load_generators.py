"""The load generators in C end with a message, and without figures, when a server does not do what it should."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import subprocess
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from websockets.asyncio.server import ServerConnection, serve
from websockets.typing import Subprotocol

from bench.peers.c_programs import built
from bench.peers.floor import welcome
from support.c_compiler import needs
from support.carrier.tls_site import make_certificate

ROUND, HANDSHAKES = "round_clients", "handshake_clients"
needs_round, needs_handshakes = needs(ROUND), needs(HANDSHAKES)
GIVEN_UP = 30
"""Seconds after which a generator gives up: much more than these few clients need."""


async def run(name: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [str(await asyncio.to_thread(built, name)), *map(str, arguments)]
    return await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=60, check=False)


@asynccontextmanager
async def answering(wrong: int, context: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """The port of a server that answers each client with its number and `wrong` added."""

    async def answer(connection: ServerConnection) -> None:
        async for message in connection:
            await connection.send(json.dumps({"c": json.loads(message)["c"] + wrong, "ts": time.time()}))

    async with serve(
        answer, "127.0.0.1", 0, subprotocols=[Subprotocol("fairlead.v1.msgpack")], ping_interval=None, ssl=context
    ) as server:
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


@asynccontextmanager
async def replying(change: Callable[[bytes], bytes], answers: Callable[[bytes], bytes]) -> AsyncIterator[int]:
    """The port of a server that sends a changed response, octet by octet, and then these octets for each question."""

    async def serve_one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async def say(octets: bytes) -> None:
            for octet in octets:
                writer.write(bytes((octet,)))
                await writer.drain()

        async def hear() -> bytes:
            head = await reader.readexactly(2)
            mask = await reader.readexactly(4)
            return bytes(octet ^ mask[i & 3] for i, octet in enumerate(await reader.readexactly(head[1] & 127)))

        with suppress(asyncio.IncompleteReadError, ConnectionError):
            await say(change(welcome(await reader.readuntil(b"\r\n\r\n"))))
            await say(answers(await hear()))
            code = await hear()
            await say(b"\x88" + bytes((len(code),)) + code)
        writer.close()

    async with await asyncio.start_server(serve_one, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]


def stamped(question: bytes) -> bytes:
    answer = json.dumps({**json.loads(question), "ts": time.time()}).encode()
    return b"\x81" + bytes((len(answer),)) + answer


@needs_round
@pytest.mark.parametrize(
    ("change", "answers", "problem"),
    [
        (bytes, stamped, None),
        (lambda head: head.replace(b"101", b"403"), stamped, "HTTP/1.1 403"),
        (lambda head: head.replace(b"=\r", b"A\r"), stamped, "Sec-WebSocket-Accept does not belong to the key"),
        (lambda head: head.replace(b".msgpack", b".json"), stamped, "the server has not accepted the subprotocol"),
        (lambda head: head[:-2] + b"X: %b\r\n\r\n" % (b"a" * 2000), stamped, "the server's response is too long"),
        (bytes, lambda asked: stamped(asked) * 2, "the server sent a frame that nobody asked for"),
        (bytes, lambda asked: b"\x89\x00" + stamped(asked), "the server sent a frame that nobody asked for"),
        (bytes, lambda asked: b"\x01" + stamped(asked)[1:], "the server sent a masked, long or partial frame"),
        (bytes, lambda asked: b"\x81\x01" + asked[-1:], "}"),
        (bytes, lambda asked: stamped(asked).replace(b"1", b"2", 1), '{"c": 0'),
    ],
)  # fmt: skip
async def test_a_round_has_figures_only_if_all_octets_are_right(
    change: Callable[[bytes], bytes], answers: Callable[[bytes], bytes], problem: str | None
) -> None:
    async with replying(change, answers) as port:
        done = await run(ROUND, port, 1, 1, GIVEN_UP, "127.0.0.2")
    if problem is None:
        assert done.returncode == 0, done.stderr
        return
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"client 0: {problem}")


@needs_handshakes
@pytest.mark.parametrize(
    ("tickets", "problem"), [(0, "the server gives no session ticket"), (1, "the wrong kind of handshake")]
)
async def test_a_server_that_resumes_nothing_has_no_figures_of_that(tmp_path: Path, tickets: int, problem: str) -> None:
    certificate, key = make_certificate(tmp_path, "known")

    def answer_two() -> None:
        """Each with a context of its own, which does not know the tickets of the other."""
        for _ in range(2 if tickets else 1):
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate, key)
            context.num_tickets = tickets
            with suppress(OSError), context.wrap_socket(listener.accept()[0], server_side=True) as link:
                link.recv(4096)
                link.sendall(b"HTTP/1.1 101 Switching Protocols\r\n\r\n")
                link.recv(1)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(GIVEN_UP)
        arguments = (listener.getsockname()[1], 3, 1, GIVEN_UP, certificate, "resumed")
        done, _ = await asyncio.gather(run(HANDSHAKES, *arguments), asyncio.to_thread(answer_two))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"client 0: {problem}\n"
