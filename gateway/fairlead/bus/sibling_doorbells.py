"""Doorbells between the workers of one supervisor, over sockets instead of through Redis.

The supervisor creates one `SiblingSockets` before it forks; each worker's inbox has a `SiblingDoorbells` of it and uses
it for leases of its siblings. A doorbell through Redis takes an exchange of the one and a read of the other, with four
changes of process; a datagram takes one send and one receive. What is rung about is in Redis before anyone rings, so
the way of a doorbell does not matter. Nothing here waits: a datagram that finds no room goes through Redis, and one for
an epoch that has ended is dropped, as it is there.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from typing import Final

MOST_AT_ONCE: Final = 64
"""Datagrams that are read before the rest of the event loop gets its turn."""
SIZE: Final = 1 << 18
"""Bytes. It is more than the kernel's buffer of a socket takes by default."""


class SiblingSockets:
    """A pair of sockets for each worker, by the name of its node: one to ring it, and one from which it is rung."""

    def __init__(self, nodes: Sequence[str]) -> None:
        self._pairs = {node: socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM) for node in nodes}
        for pair in self._pairs.values():
            for one in pair:
                one.setblocking(False)

    def close(self) -> None:
        for pair in self._pairs.values():
            for one in pair:
                one.close()

    def of(self, node: str) -> SiblingDoorbells:
        outgoing = {name: pair[0] for name, pair in self._pairs.items() if name != node}
        return SiblingDoorbells(outgoing, self._pairs[node][1])


class SiblingDoorbells:
    """One worker's end."""

    def __init__(self, outgoing: dict[str, socket.socket], incoming: socket.socket) -> None:
        self._outgoing = outgoing
        self._incoming = incoming
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self, on_entry: Callable[[str, bytes], None]) -> None:
        """Call `on_entry` from now on with the lease that was rung and the encoded doorbells."""
        self._on_entry = on_entry
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._incoming, self._receive)

    def stop(self) -> None:
        if self._loop is not None:
            self._loop.remove_reader(self._incoming)
            self._loop = None

    def ring(self, lease: str, entry: bytes) -> bool:
        """Ring the node with this lease. False if it is no sibling, or reads too slowly."""
        sock = self._outgoing.get(lease.partition("#")[0])
        if sock is None:
            return False
        try:
            sock.send(b"%b\n%b" % (lease.encode(), entry))
        except OSError:  # no room, or more than a datagram may have
            return False
        return True

    def _receive(self) -> None:
        for _ in range(MOST_AT_ONCE):
            try:
                datagram = self._incoming.recv(SIZE)
            except OSError:
                return
            lease, _, entry = datagram.partition(b"\n")
            self._on_entry(lease.decode(), entry)
