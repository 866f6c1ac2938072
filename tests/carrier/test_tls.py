"""TLS on the server's own epoll: links and HTTP connections behind a handshake, and how they end."""

from __future__ import annotations

import asyncio
import ssl
from functools import partial
from pathlib import Path

import pytest

from fairlead.carrier.client import connect
from fairlead.carrier.http_server.link_acceptor import LinkRefusal
from fairlead.carrier.http_server.uvicorn_server import Server, config
from fairlead.carrier.timer_wheel import TimerWheel

from support.carrier.listeners import RecordingListener
from support.carrier.raw_client import RawClient
from support.carrier.servers import Serve
from support.carrier.tls_site import TlsPeer, TlsSite
from support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

MESSAGES: list[bytes | str] = [b"", "", b"x", "tëxt", b"y" * 125, b"y" * 16384, b"y" * 65536, "z" * 900_000]
BINARY = 0x82


@pytest.fixture
def site(certificate: Path) -> TlsSite:
    return TlsSite(certificate, certificate)


def _opened(site: TlsSite, count: int) -> bool:
    return len(site.direct) == count


async def test_a_client_connects_with_wss(
    serve_on: Serve, site: TlsSite, timer_wheel: TimerWheel, no_errors: None
) -> None:
    port = await serve_on(site.app, **site.options)
    listener = RecordingListener()
    connection = await connect(f"wss://localhost:{port}/link", listener, timer_wheel=timer_wheel, ssl=site.trust)
    for message in MESSAGES:
        connection.send(message)
    await until(lambda: len(listener.messages) == len(MESSAGES))
    assert listener.messages == MESSAGES
    connection.close(4000, "done")
    await until(lambda: listener.closed and site.direct[0].closed)
    assert (listener.closed, site.direct[0].closed) == ([(4000, "done")], [(4000, "done")])
    assert (len(site.direct), site.attached) == (1, [])
    await until(lambda: len(timer_wheel) == 0)


async def test_what_the_endpoint_refuses_is_answered_at_once(serve_on: Serve, site: TlsSite) -> None:
    site.takes, site.refusal = False, LinkRefusal(503, [(b"retry-after", b"7")], b"busy\n")
    port = await serve_on(site.app, **site.options)
    for _ in range(3):
        raw = await site.dial(port)
        raw.write(raw.request("/link"))
        assert await raw.answer() == 503
        assert raw.headers["retry-after"] == "7"
        assert await raw.body() == b"busy\n"
    assert (site.direct, site.attached) == ([], [])


async def test_what_the_endpoint_does_not_take_the_application_gets(serve_on: Serve, site: TlsSite) -> None:
    site.takes = False
    raw = await site.dial(await serve_on(site.app, **site.options))
    raw.write(raw.request("/link"))
    assert await raw.answer() == 101
    raw.send(BINARY, b"x" * 100_000)
    assert await raw.frame() == (BINARY, b"x" * 100_000)
    assert (site.schemes, len(site.attached)) == (["wss"], 1)
    raw.end()


async def test_a_request_in_pieces_is_served(serve_on: Serve, site: TlsSite) -> None:
    raw = await site.dial(await serve_on(site.app, request_timeout=60, **site.options))
    for octet in raw.request("/link"):
        raw.write(bytes([octet]))
        await asyncio.sleep(0)
    assert await raw.answer() == 101
    assert len(site.direct) + len(site.attached) == 1
    raw.end()


async def test_frames_behind_the_request_are_read(serve_on: Serve, site: TlsSite) -> None:
    raw = await site.dial(await serve_on(site.app, **site.options))
    raw.write(raw.request("/link") + raw.encode(BINARY, b"a") + raw.encode(BINARY, b"b" * 60_000))
    assert await raw.answer() == 101
    assert await raw.frame() == (BINARY, b"a")
    assert await raw.frame() == (BINARY, b"b" * 60_000)
    assert len(site.direct) == 1
    raw.end()


async def test_http_over_tls(serve_on: Serve, site: TlsSite) -> None:
    raw = await site.dial(await serve_on(site.app, **site.options))
    body = bytes(3 << 20)
    for request, answer in (
        (b"GET /page HTTP/1.1\r\nHost: t\r\n\r\n", b"GET 0"),
        (b"POST /page HTTP/1.1\r\nHost: t\r\nContent-Length: %d\r\n\r\n" % len(body) + body, b"POST 3145728"),
        (b"GET /page?size=3000000 HTTP/1.1\r\nHost: t\r\n\r\n", b"p" * 3_000_000),
        (b"GET /page HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n", b"GET 0"),
    ):
        raw.write(request)
        assert await raw.answer() == 200
        assert await raw.reader.readexactly(int(raw.headers["content-length"])) == answer
    assert await raw.body() == b""
    assert set(site.schemes) == {"https 127.0.0.1"}
    raw.end()


async def test_without_an_endpoint_everything_is_http(serve_on: Serve, site: TlsSite) -> None:
    raw = await site.dial(await serve_on(site.app, certificate=site.certificate))
    raw.write(raw.request("/link"))
    assert await raw.answer() == 101
    assert (len(site.direct), len(site.attached)) == (0, 1)
    raw.end()


async def test_a_peer_that_does_not_read_gets_everything_later(serve_on: Serve, site: TlsSite) -> None:
    """The socket takes no more, so records wait in OpenSSL and output in the transport."""
    peer = TlsPeer(site.trust)
    port = await serve_on(site.app, max_buffered=64 << 20, **site.options)
    await peer.open(port)
    await peer.complete()
    peer.send(RawClient.request("/link"))
    while b"\r\n\r\n" not in await peer.read():
        pass
    connection = site.direct[0].open_connection
    messages = [bytes([number]) * 300_000 for number in range(40)]
    peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
    for message in messages:
        connection.send(message)
    await until(lambda: connection.buffered() > 1 << 20)
    expected = sum(10 + len(message) for message in messages)
    peer.writer.transport.resume_reading()  # type: ignore[attr-defined]
    received = bytearray()
    while len(received) < expected:
        received += await peer.read()
    assert [received[10 + at * 300_010] for at in range(40)] == list(range(40))
    assert connection.buffered() == 0
    peer.writer.close()


async def test_closing_sends_close_notify(serve_on: Serve, site: TlsSite) -> None:
    peer = TlsPeer(site.trust)
    await peer.open(await serve_on(site.app, **site.options))
    await peer.complete()
    peer.send(b"GET /page HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n")
    received = b""
    while data := await peer.read():
        received += data
    assert received.endswith(b"GET 0")
    peer.writer.close()


async def test_a_violation_is_answered_while_the_peer_is_still_writing(serve_on: Serve, site: TlsSite) -> None:
    """Only our half is closed, so no reset overtakes the close frame."""
    peer = TlsPeer(site.trust)
    await peer.open(await serve_on(site.app, **site.options))
    await peer.complete()
    peer.send(RawClient.request("/link"))
    while b"\r\n\r\n" not in await peer.read():
        pass
    peer.send(b"\x83\x80" + bytes(4) + bytes(1 << 20))
    assert (await peer.read())[:4] == b"\x88" + bytes([len(site.direct[0].closed[0][1]) + 2]) + (1002).to_bytes(2)
    assert await peer.read() == b""
    peer.writer.close()


@pytest.mark.parametrize("notify", [True, False])
async def test_the_end_of_the_stream_with_and_without_close_notify(
    serve_on: Serve, site: TlsSite, notify: bool
) -> None:
    peer = TlsPeer(site.trust)
    await peer.open(await serve_on(site.app, **site.options))
    await peer.complete()
    peer.send(RawClient.request("/link"))
    await until(lambda: site.direct)
    if notify:
        with pytest.raises(ssl.SSLWantReadError):
            peer.tls.unwrap()
        peer.flush()
    else:
        peer.writer.write_eof()
    await until(lambda: site.direct[0].closed)
    assert site.direct[0].closed[0][0] == 1006
    peer.writer.close()


async def test_a_broken_record_ends_only_its_own_link(serve_on: Serve, site: TlsSite) -> None:
    port = await serve_on(site.app, **site.options)
    peers = [TlsPeer(site.trust), TlsPeer(site.trust)]
    for number, peer in enumerate(peers, 1):
        await peer.open(port)
        await peer.complete()
        peer.send(RawClient.request("/link"))
        await until(partial(_opened, site, number))
    peers[0].writer.write(b"\x17\x03\x03\x00\x40" + bytes(64))
    await until(lambda: site.direct[0].closed)
    assert (site.direct[0].closed[0][0], site.direct[1].closed) == (1006, [])
    for peer in peers:
        peer.writer.close()


async def test_a_server_that_stops_closes_every_link(site: TlsSite, timer_wheel: TimerWheel) -> None:
    made = config(site.app, timer_wheel=timer_wheel, close_timeout=0.3, **site.options)
    server = Server(made, own_signals=False)
    running = asyncio.create_task(server.serve())
    await until(lambda: server.started)
    port = server.address[1]
    link = await site.dial(port)
    link.write(link.request("/link"))
    assert await link.answer() == 101
    silent = RawClient(*await asyncio.open_connection("127.0.0.1", port))
    server.should_exit = True
    assert (await link.expect_frame())[1][:2] == (1012).to_bytes(2)
    assert await silent.body() == b""
    await asyncio.wait_for(running, 20)
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", port)
    silent.end()
