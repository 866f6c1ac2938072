"""permessage-deflate: off unless asked for, without context takeover, and safe against compression bombs."""

from __future__ import annotations

import zlib

import pytest
from starlette.applications import Starlette
from websockets.asyncio.client import connect
from websockets.extensions.permessage_deflate import ClientPerMessageDeflateFactory

from fairlead.carrier.client import connect as our_connect
from fairlead.carrier.timer_wheel import TimerWheel
from fairlead.wire.websocket import frames

from support.carrier.listeners import RecordingListener
from support.carrier.servers import AttachedApp, Dial, EchoApp, Serve
from support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

FIN, RSV1 = 0x80, 0x40
TEXT, BINARY, CONT, CLOSE, PING = 0x1, 0x2, 0x0, 0x8, 0x9


LONG = b"the same words again and again " * 50


@pytest.fixture(params=["attached", "asgi"])
def echo_app(request: pytest.FixtureRequest, attached_app: AttachedApp, plain_echo_app: EchoApp) -> Starlette:
    return attached_app(lambda: RecordingListener(echo=True)) if request.param == "attached" else plain_echo_app()


def packed(payload: bytes) -> bytes:
    compressor = zlib.compressobj(9, zlib.DEFLATED, -15)
    return (compressor.compress(payload) + compressor.flush(zlib.Z_SYNC_FLUSH))[:-4]


async def test_deflate_is_off_by_default(serve: Serve, dial: Dial, echo_app: Starlette) -> None:
    raw = await dial(await serve(echo_app), Sec_WebSocket_Extensions="permessage-deflate")
    assert "sec-websocket-extensions" not in raw.headers
    raw.send(FIN | RSV1 | BINARY, packed(LONG))
    assert (await raw.expect_frame())[1][:2] == (1002).to_bytes(2, "big")


async def test_deflate_is_negotiated_without_context_takeover(serve: Serve, dial: Dial, echo_app: Starlette) -> None:
    port = await serve(echo_app, deflate=True)
    raw = await dial(port, Sec_WebSocket_Extensions="permessage-deflate; client_max_window_bits")
    assert raw.headers["sec-websocket-extensions"] == (
        "permessage-deflate; server_no_context_takeover; client_no_context_takeover"
    )
    raw.send(FIN | RSV1 | BINARY, packed(LONG))
    for _ in range(2):  # the second is as independent as the first
        first, payload = await raw.expect_frame()
        assert first == FIN | RSV1 | BINARY
        assert len(payload) < len(LONG) / 5
        assert zlib.decompressobj(-15).decompress(payload + b"\0\0\xff\xff") == LONG
        raw.send(FIN | BINARY, LONG)
    raw.send(FIN | BINARY, b"s" * 125)
    await raw.frame()
    assert await raw.frame() == (FIN | BINARY, b"s" * 125), "short messages are not compressed"


async def test_deflate_is_not_used_unless_offered(serve: Serve, dial: Dial, echo_app: Starlette) -> None:
    raw = await dial(await serve(echo_app, deflate=True))
    assert "sec-websocket-extensions" not in raw.headers
    raw.send(FIN | BINARY, LONG)
    assert await raw.frame() == (FIN | BINARY, LONG)


async def test_fragments_and_text_are_inflated(serve: Serve, dial: Dial, echo_app: Starlette) -> None:
    raw = await dial(await serve(echo_app, deflate=True), Sec_WebSocket_Extensions="permessage-deflate")
    body = packed(LONG)
    raw.send(RSV1 | TEXT, body[:10])
    raw.send(FIN | PING, b"between")
    raw.send(CONT, b"")
    raw.send(FIN | CONT, body[10:])
    assert (await raw.expect_frame())[1] == b"between"
    first, payload = await raw.expect_frame()
    assert first == FIN | RSV1 | TEXT
    assert zlib.decompressobj(-15).decompress(payload + b"\0\0\xff\xff") == LONG


@pytest.mark.parametrize(
    ("payload", "code"),
    [(packed(bytes(20 << 20)), 1009), (b"\xff\xff\xff", 1007)],
    ids=["bomb", "garbage"],
)
async def test_data_that_cannot_be_inflated_is_refused(
    serve: Serve, dial: Dial, echo_app: Starlette, payload: bytes, code: int
) -> None:
    raw = await dial(await serve(echo_app, deflate=True), Sec_WebSocket_Extensions="permessage-deflate")
    raw.send(FIN | RSV1 | BINARY, payload)
    assert (await raw.expect_frame())[1][:2] == code.to_bytes(2, "big")
    assert await raw.frame() is None


async def test_compressed_text_must_be_utf8(serve: Serve, dial: Dial, echo_app: Starlette) -> None:
    raw = await dial(await serve(echo_app, deflate=True), Sec_WebSocket_Extensions="permessage-deflate")
    raw.send(FIN | RSV1 | TEXT, packed(b"\xff" * 200))
    assert (await raw.expect_frame())[1][:2] == (1007).to_bytes(2, "big")


@pytest.mark.parametrize("bits", [None, 12, 15])
async def test_a_client_of_the_websockets_library_uses_deflate(
    serve: Serve, echo_app: Starlette, bits: int | None
) -> None:
    port = await serve(echo_app, deflate=True)
    extensions = [ClientPerMessageDeflateFactory(server_max_window_bits=bits)]
    async with connect(f"ws://127.0.0.1:{port}", extensions=extensions, compression=None, proxy=None) as peer:
        assert [type(one).__name__ for one in peer.protocol.extensions] == ["PerMessageDeflate"]
        for message in (LONG, LONG.decode(), b"", b"x" * 125, b"x" * 126, LONG * 300):
            await peer.send(message)
            assert await peer.recv() == message


async def test_our_client_and_server_use_deflate(serve: Serve, echo_app: Starlette, timer_wheel: TimerWheel) -> None:
    port = await serve(echo_app, deflate=True)
    listener = RecordingListener()
    connection = await our_connect(f"ws://127.0.0.1:{port}", listener, timer_wheel=timer_wheel, deflate=True)
    assert connection.deflate
    for message in (LONG, LONG.decode(), b"short", LONG * 300):
        connection.send(message)
    await until(lambda: len(listener.messages) == 4)
    assert listener.messages == [LONG, LONG.decode(), b"short", LONG * 300]
    connection.close()
    await until(lambda: listener.closed)


async def test_prepared_frames_are_not_compressed(serve: Serve, dial: Dial, attached_app: AttachedApp) -> None:
    """A broadcast is encoded once for all, whether or not a connection has negotiated compression."""
    listener = RecordingListener()
    port = await serve(attached_app(lambda: listener), deflate=True)
    raw = await dial(port, Sec_WebSocket_Extensions="permessage-deflate")
    await until(lambda: listener.connection)
    assert listener.connection is not None
    listener.connection.write(frames.encode(FIN | BINARY, LONG))
    assert await raw.frame() == (FIN | BINARY, LONG)
