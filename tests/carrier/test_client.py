"""The client against our server, against the websockets library's, and against servers that misbehave."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
import sys
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import websockets.asyncio.server
import websockets.exceptions
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket

from fairlead.carrier.client import connect
from fairlead.carrier.connection import Terms
from fairlead.errors import ConnectionRefused
from fairlead.wire import handshake

pytestmark = pytest.mark.asyncio(loop_scope="module")

Serve = Callable[..., Awaitable[int]]
Until = Callable[..., Awaitable[None]]

MESSAGES: list[bytes | str] = [b"", "", b"x", "tëxt", b"y" * 125, b"y" * 126, b"y" * 65536, "z" * 300_000]


@asynccontextmanager
async def scripted(script: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]) -> Any:
    """A TCP server that does what the script says; gives its port."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await script(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, extra: bytes = b"") -> None:
    head = await reader.readuntil(b"\r\n\r\n")
    key = head.split(b"Sec-WebSocket-Key: ")[1].split(b"\r\n")[0]
    writer.write(
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Accept: " + handshake.accept_key(key) + b"\r\n\r\n" + extra
    )


async def test_against_our_server(
    serve: Serve, heard: Any, attached_app: Any, sweep: Any, until: Until, no_errors: None
) -> None:
    port = await serve(attached_app(lambda: heard(echo=True)))
    listener = heard()
    connection = await connect(f"ws://127.0.0.1:{port}/", listener, sweep=sweep)
    assert listener.opened == 1
    for message in MESSAGES:
        connection.send(message)
    connection.ping(b"p")
    await until(lambda: len(listener.messages) == len(MESSAGES))
    assert listener.messages == MESSAGES
    connection.close(4000, "done")
    await until(lambda: listener.closed)
    assert listener.closed == [(4000, "done")]
    await until(connection.transport.is_closing)


async def test_against_the_websockets_library(heard: Any, sweep: Any, until: Until, no_errors: None) -> None:
    async def echo(peer: Any) -> None:
        with suppress(websockets.exceptions.ConnectionClosedError):  # raised for every code but 1000 and 1001
            async for message in peer:
                await peer.send(message)

    async with websockets.asyncio.server.serve(echo, "127.0.0.1", 0, subprotocols=["b"]) as server:  # type: ignore[list-item]  # a NewType of str
        port = next(iter(server.sockets)).getsockname()[1]
        listener = heard()
        connection = await connect(f"ws://127.0.0.1:{port}/", listener, sweep=sweep, subprotocols=["a", "b"])
        assert connection.subprotocol == "b"
        for message in MESSAGES:
            connection.send(message)
        await until(lambda: len(listener.messages) == len(MESSAGES))
        assert listener.messages == MESSAGES
        connection.close(4000, "done")
        await until(lambda: listener.closed)
        assert listener.closed == [(4000, "done")]

        other = heard()
        await connect(f"ws://127.0.0.1:{port}/", other, sweep=sweep, subprotocols=["b"])
        for peer in server.connections:
            await peer.close(4321, "by the server")
        await until(lambda: other.closed)
        assert other.closed == [(4321, "by the server")]


async def test_headers_and_subprotocols_arrive(serve: Serve, heard: Any, sweep: Any) -> None:
    seen: dict[str, Any] = {}

    async def endpoint(websocket: WebSocket) -> None:
        seen.update(websocket.headers)
        seen["query"] = websocket.url.query
        await websocket.accept(subprotocol="fairlead.v1.json")
        await websocket.receive()

    port = await serve(Starlette(routes=[WebSocketRoute("/v1/link", endpoint)]))
    connection = await connect(
        f"ws://localhost:{port}/v1/link?x=%20",
        heard(),
        sweep=sweep,
        subprotocols=["fairlead.v1.msgpack", "fairlead.v1.json"],
        headers=[("Authorization", "Bearer abc")],
        local_address="127.0.0.1",
    )
    assert connection.subprotocol == "fairlead.v1.json"
    assert seen["authorization"] == "Bearer abc"
    assert seen["host"] == f"localhost:{port}"
    assert seen["query"] == "x=%20"
    connection.abort()


@pytest.mark.parametrize("status", [400, 401, 403, 409, 426, 429, 500, 503])
async def test_refusals(serve: Serve, heard: Any, sweep: Any, status: int) -> None:
    async def endpoint(websocket: WebSocket) -> None:
        await websocket.send_denial_response(Response(b"why" * 3000, status, {"retry-after": "12"}))

    port = await serve(Starlette(routes=[WebSocketRoute("/", endpoint)]))
    listener = heard()
    with pytest.raises(ConnectionRefused) as refused:
        await connect(f"ws://127.0.0.1:{port}/", listener, sweep=sweep)
    assert refused.value.status == status
    assert refused.value.retry_after == 12.0
    assert refused.value.body == (b"why" * 3000)[:4096]
    assert (listener.opened, listener.closed) == (0, [])


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 503 x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        b"HTTP/1.1 503 x\r\nContent-Length: 5\r\n\r\nhello",
    ],
)
async def test_a_refusal_on_a_connection_that_stays_open(heard: Any, sweep: Any, answer: bytes) -> None:
    """A proxy may keep the connection: its end is no signal, and waiting for it would cost the whole
    timeout.
    """

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        for byte in answer:
            writer.write(bytes([byte]))
            await asyncio.sleep(0)
        await reader.read()

    async with scripted(script) as port, asyncio.timeout(2):
        with pytest.raises(ConnectionRefused) as refused:
            await connect(f"ws://127.0.0.1:{port}/", heard(), sweep=sweep, timeout=30)
    assert (refused.value.status, refused.value.body) == (503, b"hello")


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"SSH-2.0-OpenSSH\r\n", "not HTTP"),
        (b"", "connection was lost"),
        (
            b"HTTP/1.1 101 x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
            "wrong Sec-WebSocket-Accept",
        ),
        (b"HTTP/1.1 101 x\r\n\r\n", "does not upgrade"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", "with 200"),
        (b"HTTP/1.1 302 Found\r\nLocation: /\r\nContent-Length: 0\r\n\r\n", "with 302"),
        (b"HTTP/1.1 101 x\r\nX: " + b"y" * 20_000, "more than 16384 bytes"),
    ],
)
async def test_answers_that_are_none(heard: Any, sweep: Any, answer: bytes, words: str) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()

    async with scripted(script) as port:
        with pytest.raises(ConnectionRefused, match=words):
            await connect(f"ws://127.0.0.1:{port}/", heard(), sweep=sweep)


async def test_nobody_listens(heard: Any, sweep: Any) -> None:
    async with scripted(accept) as port:
        pass
    with pytest.raises(ConnectionRefused, match="cannot be reached") as refused:
        await connect(f"ws://127.0.0.1:{port}/", heard(), sweep=sweep)
    assert refused.value.status == 0
    assert isinstance(refused.value.__cause__, OSError)


async def test_a_name_that_does_not_exist(heard: Any, sweep: Any) -> None:
    with pytest.raises(ConnectionRefused, match="cannot be reached"):
        await connect("ws://no-such-host.invalid/", heard(), sweep=sweep)


@pytest.mark.parametrize("when", ["before", "inside"])
async def test_no_answer_within_the_timeout(heard: Any, sweep: Any, when: str, until: Until) -> None:
    gone = asyncio.Event()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        if when == "inside":
            writer.write(b"HTTP/1.1 503 x\r\nContent-Length: 100\r\n\r\nhalf")
        try:
            await reader.read()
        finally:
            gone.set()

    async with scripted(script) as port:
        with pytest.raises(ConnectionRefused, match=r"did not answer within 0\.2 s"):
            await connect(f"ws://127.0.0.1:{port}/", heard(), sweep=sweep, timeout=0.2)
        await asyncio.wait_for(gone.wait(), 5)


async def test_cancelling_drops_the_connection(heard: Any, sweep: Any) -> None:
    here, gone = asyncio.Event(), asyncio.Event()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        here.set()
        try:
            await reader.read()
        finally:
            gone.set()

    async with scripted(script) as port:
        opening = asyncio.create_task(connect(f"ws://127.0.0.1:{port}/", heard(), sweep=sweep))
        await asyncio.wait_for(here.wait(), 5)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        await asyncio.wait_for(gone.wait(), 5)


@pytest.mark.parametrize("url", ["http://x/", "ws:///path", "x", "ws://user:secret@host/", ""])
async def test_urls_that_are_none(heard: Any, sweep: Any, url: str) -> None:
    with pytest.raises(ValueError, match="not a ws://"):
        await connect(url, heard(), sweep=sweep)


async def test_frames_behind_the_answer_are_not_lost(heard: Any, sweep: Any, until: Until) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await accept(reader, writer, b"\x82\x05first\x81\x06second\x88\x02\x0f\xa1")
        await reader.read()

    async with scripted(script) as port:
        listener = heard()
        await connect(f"ws://127.0.0.1:{port}/", listener, sweep=sweep)
        await until(lambda: listener.closed)
    assert listener.messages == [b"first", "second"]
    assert listener.closed == [(4001, "")]


async def test_a_server_that_masks(heard: Any, sweep: Any, until: Until) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await accept(reader, writer, b"\x82\x85" + bytes(4) + b"hello")
        await reader.read()

    async with scripted(script) as port:
        listener = heard()
        await connect(f"ws://127.0.0.1:{port}/", listener, sweep=sweep)
        await until(lambda: listener.closed)
    assert listener.closed[0][0] == 1002


async def test_a_message_that_is_too_big_for_the_client(heard: Any, sweep: Any, until: Until) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await accept(reader, writer, b"\x82\x7e\x03\xe9" + bytes(1001))
        await reader.read()

    async with scripted(script) as port:
        listener = heard()
        await connect(f"ws://127.0.0.1:{port}/", listener, sweep=sweep, max_message=1000)
        await until(lambda: listener.closed)
    assert listener.closed[0][0] == 1009


async def test_our_frames_are_masked_anew_each_time(heard: Any, sweep: Any) -> None:
    got: list[bytes] = []
    done = asyncio.Event()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await accept(reader, writer)
        got.extend([await reader.readexactly(11), await reader.readexactly(11)])
        done.set()

    async with scripted(script) as port:
        connection = await connect(f"ws://127.0.0.1:{port}/", heard(), sweep=sweep)
        connection.send(b"hello")
        connection.send(b"hello")
        await asyncio.wait_for(done.wait(), 5)
    assert {frame[:2] for frame in got} == {b"\x82\x85"}
    assert got[0][2:6] != got[1][2:6]
    for frame in got:
        assert bytes(b ^ frame[2 + i % 4] for i, b in enumerate(frame[6:])) == b"hello"


async def test_a_server_that_never_closes_the_socket(heard: Any, sweep: Any, until: Until) -> None:
    """RFC 6455 §7.1.1 lets the server close first; the client waits, but not for ever."""
    gone = asyncio.Event()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await accept(reader, writer)
        await reader.readexactly(2)
        writer.write(b"\x88\x02\x03\xe8")
        try:
            await reader.read()
        finally:
            gone.set()

    async with scripted(script) as port:
        listener = heard()
        connection = await connect(f"ws://127.0.0.1:{port}/", listener, sweep=sweep)
        connection.terms = Terms(sweep, close_timeout=0.2)
        connection.close()
        await until(lambda: listener.closed)
        assert listener.closed == [(1000, "")]
        assert not gone.is_set()
        await asyncio.wait_for(gone.wait(), 5)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A self-signed P-256 certificate for localhost, key and certificate in one file."""
    folder = tmp_path_factory.mktemp("tls")
    made = folder / "both.pem"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=localhost"
    files = f"-addext subjectAltName=DNS:localhost -keyout {folder}/key.pem -out {folder}/cert.pem"
    subprocess.run(f"{command} {files}".split(), check=True, capture_output=True, timeout=30)
    made.write_bytes((folder / "key.pem").read_bytes() + (folder / "cert.pem").read_bytes())
    return made


async def test_wss(
    serve: Serve, heard: Any, attached_app: Any, sweep: Any, until: Until, certificate: Path, no_errors: None
) -> None:
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(certificate)
    port = await serve(attached_app(lambda: heard(echo=True)), ssl=server)
    listener = heard()
    trust = ssl.create_default_context(cafile=str(certificate))
    connection = await connect(f"wss://localhost:{port}/", listener, sweep=sweep, ssl=trust)
    for message in MESSAGES:
        connection.send(message)
    await until(lambda: len(listener.messages) == len(MESSAGES))
    assert listener.messages == MESSAGES
    connection.pause_reading()
    connection.resume_reading()
    connection.close(4000, "done")
    await until(lambda: listener.closed)
    assert listener.closed == [(4000, "done")]
    await until(lambda: len(sweep) == 0)


async def test_a_violation_over_tls(
    serve: Serve, heard: Any, attached_app: Any, sweep: Any, until: Until, certificate: Path
) -> None:
    """TLS has no half-close: the close frame still arrives, and both ends come to an end."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(certificate)
    far, near = heard(), heard()
    port = await serve(attached_app(lambda: far), ssl=server)
    trust = ssl.create_default_context(cafile=str(certificate))
    connection = await connect(f"wss://localhost:{port}/", near, sweep=sweep, ssl=trust)
    connection.write(b"\x83\x80" + bytes(4))
    await until(lambda: near.closed and far.closed)
    assert (near.closed[0][0], far.closed[0][0]) == (1002, 1002)


async def test_a_certificate_that_is_not_trusted(
    serve: Serve, heard: Any, attached_app: Any, sweep: Any, certificate: Path
) -> None:
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(certificate)
    port = await serve(attached_app(heard), ssl=server)
    with pytest.raises(ConnectionRefused, match=r"not trusted: self-signed certificate; .*ca_file") as refused:
        await connect(f"wss://localhost:{port}/", heard(), sweep=sweep)
    assert isinstance(refused.value.__cause__, ssl.SSLError)


async def test_the_client_needs_no_server_packages() -> None:
    """The base install has none of them."""
    code = (
        "import sys\n"
        "import fairlead.carrier.client, fairlead.carrier.sweep, fairlead.carrier.listener\n"
        "heavy = {'starlette', 'uvicorn', 'uvloop', 'httptools', 'redis', 'prometheus_client'}\n"
        "print(sorted(heavy & {name.partition('.')[0] for name in sys.modules}))"
    )
    done = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, err = await asyncio.wait_for(done.communicate(), 30)
    assert (out.strip(), err) == (b"[]", b"")
