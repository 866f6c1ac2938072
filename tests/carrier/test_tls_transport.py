"""A TLS connection whose peer sends messages of TLS itself, or takes no answers to them."""

from __future__ import annotations

import asyncio
import ctypes
import select
import socket
import ssl
from pathlib import Path
from typing import Any, cast

import pytest

from fairlead.carrier.connection_context import ConnectionContext
from fairlead.carrier.epoll.poller import Poller
from fairlead.carrier.epoll.tls_transport import RECORD, TlsObject, TlsTransport, server_side
from fairlead.carrier.server_connection import ServerConnection
from fairlead.carrier.timer_wheel import VISITS, TimerWheel
from fairlead.carrier.tls import openssl
from fairlead.carrier.tls.server_certificate import ServerCertificate

from support.carrier.listeners import RecordingListener
from support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")


class Client:
    """The other end of a socket pair, with TLS that is played in memory."""

    def __init__(self, sock: socket.socket, trust: Path, version: ssl.TLSVersion, *, tickets: bool = True) -> None:
        context = ssl.create_default_context(cafile=str(trust))
        context.maximum_version = version
        if not tickets:
            context.options |= ssl.OP_NO_TICKET
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._sock = sock
        self.tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname="localhost")

    def shake_hands(self, server: TlsObject) -> None:
        for _ in range(3):
            for end in (self.tls, server):
                try:
                    end.do_handshake()
                except ssl.SSLWantReadError:
                    pass
                self.flush()
                try:
                    self._incoming.write(self._sock.recv(1 << 16, socket.MSG_DONTWAIT))
                except BlockingIOError:
                    pass

    def flush(self) -> None:
        self._sock.sendall(self._outgoing.read())

    def update_key(self) -> None:
        """Python has no name for it."""
        library = openssl.find_library()
        assert library is not None
        inside = cast(Any, self.tls)._sslobj
        connection = (openssl.Pointer * 3).from_address(id(inside) + object.__basicsize__)[1]
        assert library.SSL_key_update(openssl.Pointer(connection), ctypes.c_int(0)) == 1
        self.tls.do_handshake()


class Recorder(asyncio.Protocol):
    def __init__(self) -> None:
        self.received = b""
        self.lost = False

    def data_received(self, data: bytes) -> None:
        self.received += data

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True


class Waiting:
    """Stands in for OpenSSL's object while it has to answer a key update and the socket takes nothing."""

    def __init__(self) -> None:
        self.reads = 0
        self.waits = True

    def read(self, length: int) -> bytes:
        self.reads += 1
        if self.waits:
            raise ssl.SSLWantWriteError
        raise ssl.SSLWantReadError

    def shutdown(self) -> None:
        pass


@pytest.fixture
def pair() -> Any:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with ours, theirs:
        yield ours, theirs


async def test_each_key_update_is_a_read_of_its_own(certificate: Path, pair: Any) -> None:
    """Otherwise a peer that sends nothing else would hold the event loop."""
    made = ServerCertificate(certificate, certificate)
    server = server_side(pair[0], made.context)
    client = Client(pair[1], certificate, ssl.TLSVersion.TLSv1_3)
    client.shake_hands(server)
    for _ in range(20):
        client.update_key()
    client.tls.write(b"data")
    client.flush()
    for _ in range(20):
        with pytest.raises(ssl.SSLWantReadError):
            server.read(RECORD)
    assert server.read(RECORD) == b"data"


async def test_the_server_keeps_no_sessions(certificate: Path, pair: Any) -> None:
    made = ServerCertificate(certificate, certificate)
    server = server_side(pair[0], made.context)
    client = Client(pair[1], certificate, ssl.TLSVersion.TLSv1_2, tickets=False)
    client.shake_hands(server)
    assert client.tls.version() == "TLSv1.2"
    assert made.context.session_stats()["number"] == 0


async def stalled(pair: Any, poller: Poller) -> tuple[TlsTransport, Waiting, Recorder]:
    """A transport that has begun to wait until it can write. Its socket has data, and takes none."""
    ours, theirs = pair
    try:
        while True:
            ours.send(bytes(1 << 16))
    except BlockingIOError:
        pass
    tls, recorder = Waiting(), Recorder()
    transport = TlsTransport(ours, cast(Any, tls), poller)
    transport.set_protocol(recorder)
    poller.add(ours.fileno(), transport)
    theirs.send(b"x")
    while not tls.reads:
        await asyncio.sleep(0)
    return transport, tls, recorder


async def test_a_read_that_waits_for_room_is_not_tried_again_and_again(pair: Any) -> None:
    poller = Poller()
    _, tls, recorder = await stalled(pair, poller)
    for _ in range(50):
        await asyncio.sleep(0)
    assert tls.reads == 1
    tls.waits = False
    while select.select([pair[1]], [], [], 0)[0]:
        pair[1].recv(1 << 20)
    await until(lambda: tls.reads > 1)
    assert not recorder.lost
    poller.close()


async def test_a_link_whose_read_waits_for_room_still_counts_as_read(pair: Any, timer_wheel: TimerWheel) -> None:
    """So it becomes silent, when its peer neither reads nor sends any more, and can be paused and resumed."""
    poller = Poller()
    transport, tls, _ = await stalled(pair, poller)
    listener = RecordingListener()
    connection = ServerConnection(transport, listener, ConnectionContext(timer_wheel), set())
    transport.set_protocol(connection)
    connection.start()
    for _ in range(VISITS + 1):
        connection.visit()
    assert listener.silences == [1]
    connection.release(connection.hold())
    reads = tls.reads
    await until(lambda: tls.reads > reads)
    poller.close()
    await until(lambda: listener.closed)


async def test_closing_does_not_wait_for_such_a_read(pair: Any) -> None:
    poller = Poller()
    transport, _, recorder = await stalled(pair, poller)
    transport.close()
    await until(lambda: recorder.lost)
    poller.close()
