"""Opens TCP connections as a client, on sockets of their own and not on transports of the event loop.

`client.open_connection` calls it for connections that a `Poller` serves. It knows nothing about WebSockets and sets no
deadline.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Final

IP_BIND_ADDRESS_NO_PORT: Final = getattr(socket, "IP_BIND_ADDRESS_NO_PORT", 24)
"""ip(7). The port is chosen when the socket connects, so that it only has to be unique for that destination. Python
3.11 has no name for it."""


async def connecting_socket(host: str, port: int, local_address: str | None) -> socket.socket:
    """Return a socket that connects to `host`, from `local_address` if that is given. Raises OSError.

    If `host` is an IP address, the socket may still be connecting: the kernel accepts output once it is connected, and
    the first read reports a failure. If `host` is a name, which may have several addresses, this waits until one of
    them has answered.
    """
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.inet_pton(family, host)
        except OSError:
            continue
        sock = _socket(family, local_address)
        try:
            sock.connect((host, port))
        except BlockingIOError:
            pass
        except OSError:
            sock.close()
            raise
        return sock
    return await _connected_socket(host, port, local_address)


async def _connected_socket(name: str, port: int, local_address: str | None) -> socket.socket:
    loop = asyncio.get_running_loop()
    failure = OSError(f"{name} has no address")
    for family, _, _, _, address in await loop.getaddrinfo(name, port, type=socket.SOCK_STREAM):
        try:
            sock = _socket(family, local_address)
        except OSError as error:
            failure = error
            continue
        try:
            await loop.sock_connect(sock, address)
        except OSError as error:
            sock.close()
            failure = error
        except BaseException:  # the deadline has passed
            sock.close()
            raise
        else:
            return sock
    raise failure


def _socket(family: int, local_address: str | None) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if local_address is not None:
            sock.setsockopt(socket.IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1)
            sock.bind((local_address, 0))
    except OSError:
        sock.close()
        raise
    return sock
