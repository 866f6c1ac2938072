"""Sockets of clients that connect by themselves and stay on the poller: source addresses, refusals and descriptors."""

from __future__ import annotations

import os
import select
import socket

import pytest

from fairlead.carrier.epoll.client_socket import IP_BIND_ADDRESS_NO_PORT, connecting_socket
from fairlead.carrier.epoll.socket_transport import SocketTransport
from fairlead.carrier.timer_wheel import TimerWheel
from fairlead.errors import ConnectionRefused

from support.carrier.clients import PolledClients
from support.carrier.listeners import RecordingListener
from support.carrier.servers import AttachedApp, Serve
from support.waiting import until

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(not hasattr(select, "epoll"), reason="epoll is Linux's"),
]


async def test_a_clients_socket_that_a_closed_poller_refuses_is_closed(timer_wheel: TimerWheel) -> None:
    clients = PolledClients()
    clients.poller.close()
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"ws://127.0.0.1:{server.getsockname()[1]}/"
        before = len(os.listdir("/proc/self/fd"))
        with pytest.raises(ConnectionRefused, match="the poller is closed"):
            await clients(url, RecordingListener(), timer_wheel=timer_wheel)
        assert len(os.listdir("/proc/self/fd")) == before


async def test_connections_from_two_source_addresses_share_ports() -> None:
    """A port is not taken when a socket is bound, but when it connects: only the pair of addresses must be unique."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        for source in ("127.0.0.2", "127.0.0.3"):
            with await connecting_socket("127.0.0.1", port, source) as sock:
                assert sock.getsockopt(socket.IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT) == 1
                assert sock.getsockname()[0] == source


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_a_client_on_a_poller_leaves_no_descriptor_and_no_transport(
    serve: Serve, attached_app: AttachedApp, timer_wheel: TimerWheel, host: str
) -> None:
    port = await serve(attached_app(lambda: RecordingListener(echo=True)))
    clients = PolledClients()
    listeners = [RecordingListener() for _ in range(50)]
    try:
        for number, listener in enumerate(listeners):
            source = f"127.0.0.{2 + number % 3}"
            connection = await clients(f"ws://{host}:{port}/", listener, timer_wheel=timer_wheel, local_address=source)
            assert isinstance(connection.transport, SocketTransport)
            connection.send(b"x")
        assert len(clients.poller) == 50
        await until(lambda: all(listener.messages == [b"x"] for listener in listeners))
        for listener in listeners:
            listener.open_connection.close(4000, "done")
        await until(lambda: all(listener.closed == [(4000, "done")] for listener in listeners))
        await until(lambda: len(clients.poller) == 0)
    finally:
        clients.poller.close()
