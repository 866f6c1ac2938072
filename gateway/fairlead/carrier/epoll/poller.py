"""The poller: reads and writes the sockets of all connections that have left the event loop's transports.

A server has one for its links, and with TLS another one for handshakes. `link_acceptor` gives it listening sockets and
what they accept, and `websocket_upgrade` offers it each connection whose upgrade was accepted. A client with many
connections gives it sockets that never had a transport. The event loop sees one descriptor, that of the epoll. When a
socket is ready, the poller lets it read once and write once, and returns to the event loop after some milliseconds,
however much there is to do. It knows nothing about WebSockets. The epoll is created with the first socket.

A connection leaves its transport by duplicating the descriptor and aborting the transport. Closing one of two
descriptors of a socket sends nothing to the peer, and what the kernel has received stays readable through the other.
"""

from __future__ import annotations

import asyncio
import logging
import os
import select
import socket
import time
from collections.abc import Callable
from functools import partial
from typing import Final

from fairlead.carrier.epoll.leaving_queue import LeavingQueue
from fairlead.carrier.epoll.poller_socket import READ_SIZE, READABLE, Polled, PolledSocket
from fairlead.carrier.epoll.socket_transport import SocketTransport

logger = logging.getLogger("fairlead.carrier")

AVAILABLE: Final = hasattr(select, "epoll")
BATCH: Final = 256
"""The most sockets that the kernel is asked for at once. Most of them take some 10 µs each."""
MOST_READ: Final = 256 << 10
"""The most bytes that are read from one socket before the next one gets its turn, as in asyncio and uvloop."""
HOT: Final = 64
"""How many times in a row a socket must be the only ready one before the event loop itself watches it. Such a socket
belongs to the only busy link of an otherwise idle node: its messages then need no second system call, and cost as much
as on a transport. The move itself costs as much as a few messages."""
CROWD: Final = 32
"""The most sockets of a batch that are served in their order. In a larger one, those whose peers have left are last."""
CLOSED_BY_PEER: Final = 0x2000
"""EPOLLRDHUP of Linux."""
RESET: Final = 0x8 | 0x10
"""EPOLLERR and EPOLLHUP, which are reported whatever a socket is watched for."""
LEFT: Final = RESET | CLOSED_BY_PEER
"""EPOLLERR, EPOLLHUP and EPOLLRDHUP: one is set when a peer has closed or reset its connection."""
UNREPORTED: Final = 1 << 30
"""EPOLLONESHOT. A socket that is watched for nothing else is reported once more if it was reset, and otherwise not."""
TURN: Final = 0.002
"""Seconds after which control returns to the event loop, with the rest of the batch to be done in its next turn."""


class Poller:
    """Polls the sockets of one event loop. Its owner calls `close` at the end."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter, turn: float = TURN) -> None:
        self.reading: PolledSocket | None = None
        """The socket whose data is being handled. What it writes meanwhile is written right afterwards."""
        self.hot: PolledSocket | None = None
        """The one socket that the event loop watches itself."""
        self._clock = clock
        self._turn = turn
        self._loop: asyncio.AbstractEventLoop
        self._epoll: select.epoll | None = None
        self._closed = False
        self._polled: list[Polled | None] = []
        """The owner of each socket, indexed by its descriptor. Descriptors are small numbers, so that a list takes 8
        bytes for each, where a dict takes 80."""
        self._left: list[tuple[int, int]] = []
        """The rest of the last batch."""
        self._alone: Polled | None = None
        """The owner of the socket that was last ready alone."""
        self._streak = 0
        """How many times in a row that socket was ready alone while the hot one was not ready."""
        self._unflushed: list[PolledSocket] = []
        self._leaving = LeavingQueue(clock, turn)
        self._aside: dict[int, PolledSocket] = {}
        """By their descriptors, the sockets that are to be read in the course of that queue."""
        self._more: memoryview

    def __len__(self) -> int:
        """The number of sockets."""
        return sum(polled is not None for polled in self._polled)

    def owners(self, number: int, parts: int) -> list[Polled | None]:
        """One of `parts` parts of the table of owners."""
        return self._polled[number::parts]

    def take_over(self, transport: asyncio.Transport) -> int | None:
        """Let the connection on `transport` leave it. Returns the descriptor of its socket, which is watched for data.
        Returns None, and changes nothing, if it has to stay: because of TLS, data that is not written yet, a peer that
        has left, a process without free descriptors, or a closed poller.

        The caller must `assign` an owner before control returns to the event loop. The old transport is aborted without
        a call to its protocol.
        """
        sock = transport.get_extra_info("socket")
        if self._closed or sock is None or transport.get_extra_info("sslcontext") is not None:
            return None
        if transport.is_closing() or transport.get_write_buffer_size():
            return None
        try:
            fd: int = os.dup(sock.fileno())
        except OSError:
            return None
        try:
            self._register(fd)
        except OSError:
            os.close(fd)
            return None
        transport.set_protocol(_NOBODY)
        transport.abort()
        return fd

    def adopt(self, sock: socket.socket) -> SocketTransport:
        """Return a transport for a client's socket, which may still be connecting. The transport owns the descriptor
        from now on, and the caller must set its protocol before control returns to the event loop. If it raises
        OSError, the socket is closed.
        """
        with sock:
            if self._closed:
                raise OSError("the poller is closed")
            transport = SocketTransport(sock.fileno(), self)
            self.add(sock.fileno(), transport)
            sock.detach()
        return transport

    def close(self) -> None:
        """Drop all connections, close the epoll and take over no more connections: an application that answers later
        would create an epoll that nobody closes."""
        self._closed = True
        self._leaving.close()
        for polled in tuple(self._polled):
            if polled is not None:
                polled.abort()
        if self._epoll is not None:
            self._loop.remove_reader(self._epoll.fileno())
            self._epoll.close()
            self._epoll = None

    def add(self, fd: int, polled: Polled) -> None:
        """Watch a socket for data. Raises OSError if the kernel has no descriptor or memory for that."""
        self._register(fd)
        self.assign(fd, polled)

    def assign(self, fd: int, polled: Polled) -> None:
        """Make `polled` the owner of a socket that is watched for data."""
        while len(self._polled) <= fd:
            self._polled.append(None)
        self._polled[fd] = polled

    # Called by the owners of the sockets.

    def watch(self, fd: int, before: int, events: int) -> None:
        """Watch a socket for `events` in place of `before`. A socket that is watched for no events is not registered,
        because epoll would report errors on it again and again. Raises OSError.
        """
        assert self._epoll is not None
        if self.hot is not None and self._polled[fd] is self.hot:
            self._cool(self.hot)
        if not events:
            self._epoll.unregister(fd)
        elif before:
            self._epoll.modify(fd, _with_leaving(events))
        else:
            self._epoll.register(fd, _with_leaving(events))

    def remove(self, fd: int, events: int) -> None:
        """Stop watching a socket, which its owner then closes."""
        polled, self._polled[fd] = self._polled[fd], None
        self._aside.pop(fd, None)
        if polled is self.hot is not None:
            self.hot = None
            self._loop.remove_reader(fd)
        if events and self._epoll is not None:
            # Closing it is not enough as long as the transport that it has left keeps the other descriptor.
            self._epoll.unregister(fd)

    def read_more(self, fd: int) -> memoryview:
        """Read what has arrived beyond the first `READ_SIZE` bytes. The result is valid until the next call. The end of
        the stream and errors are left to the next read.
        """
        try:
            return self._more[: os.readv(fd, (self._more,))]
        except OSError:
            return self._more[:0]

    def flush_soon(self, written: PolledSocket) -> None:
        """Flush `written` when the callbacks of this turn are done, or at once if it is the first of the turn: a
        message to one link does not wait for another turn, and messages to many take one system call for each link.
        """
        first = not self._unflushed
        self._unflushed.append(written)
        if first:
            self._loop.call_soon(self._flush)
            written.flush()

    def call_soon(self, callback: Callable[[OSError | None], None], error: OSError | None) -> None:
        """Call it in a later turn of the event loop, as the end of a connection."""
        self._leaving.put(callback, error)

    # Internal.

    def _register(self, fd: int) -> None:
        if self._epoll is None:
            self._loop, epoll = asyncio.get_running_loop(), select.epoll()
            try:
                self._loop.add_reader(epoll.fileno(), self._wake)
            except OSError:  # the kernel has no memory for it; the next socket tries again
                epoll.close()
                raise
            self._epoll, self._more = epoll, memoryview(bytearray(MOST_READ - READ_SIZE))
        self._epoll.register(fd, READABLE | CLOSED_BY_PEER)

    def _wake(self) -> None:
        """Serve sockets that are ready. The kernel moves sockets that are still ready to the end of its list, so that
        each gets its turn; the rest of a batch comes before the next batch for the same reason.
        """
        assert self._epoll is not None
        owners, clock = self._polled, self._clock
        until = clock() + self._turn
        events, self._left = self._left or self._next_batch(until), []
        if len(events) == 1:
            fd = events[0][0]
            if owners[fd] is self._alone:
                self._streak += 1
                if self._streak > HOT:
                    self._heat()
            else:
                self._alone, self._streak = owners[fd], 0
        else:
            self._streak = 0
        for position, (fd, event) in enumerate(events, 1):
            polled = owners[fd]
            if polled is None:
                continue  # an earlier socket of the batch has closed it
            try:
                polled.ready(event)
            except Exception:
                self._failed(polled)
            if clock() > until:
                self._left = events[position:]
                return

    def _next_batch(self, until: float) -> list[tuple[int, int]]:
        """The sockets that are ready. When many are, those whose peers have left are put aside: thousands of links that
        are lost at once would keep all others waiting, some 10 µs for each."""
        assert self._epoll is not None
        while True:
            events = self._epoll.poll(0, BATCH)
            if len(events) <= CROWD:
                return events
            staying = [(fd, event) for fd, event in events if not (event & LEFT and self._put_aside(fd, event))]
            if staying or len(events) < BATCH or self._clock() > until:
                return staying

    def _put_aside(self, fd: int, event: int) -> bool:
        """Read a socket later, and let the kernel not report it until then. Returns False for a socket that cannot be
        put aside, because it is not connected yet or no connection's."""
        assert self._epoll is not None
        polled = self._polled[fd]
        if not isinstance(polled, PolledSocket):
            return False
        if self._aside.get(fd) is not polled:
            self._aside[fd] = polled
            self._leaving.put(partial(self._read_aside, fd, polled, event), None)
        elif not event & ~RESET:
            return True  # once more, after a reset: to modify it again would have it reported for ever
        self._epoll.modify(fd, UNREPORTED)
        return True

    def _read_aside(self, fd: int, polled: PolledSocket, event: int, error: OSError | None) -> None:
        if self._aside.get(fd) is not polled:
            return  # it was closed meanwhile
        del self._aside[fd]
        try:
            polled.ready(event)
        except Exception:
            self._failed(polled)
        if self._epoll is not None and self._polled[fd] is polled and polled.watched_for:
            self._epoll.modify(fd, _with_leaving(polled.watched_for))

    def _heat(self) -> None:
        """Let the event loop watch the socket that was ready alone, in place of the previous one, which is quiet now.
        Only connections that wait for nothing but data are moved.

        The epoll still reports its errors: libuv ends its own watch at the first error of a socket, even if what
        arrived before the error is still unread.
        """
        assert self._epoll is not None
        alone, self._alone = self._alone, None
        if isinstance(alone, PolledSocket) and alone.only_reads:
            if self.hot is not None:
                self._cool(self.hot)
            try:
                self._loop.add_reader(alone.fd, self._wake_hot, alone)
            except OSError:  # the kernel has no memory for a second watch: the epoll is enough
                return
            self._epoll.modify(alone.fd, 0)
            self.hot = alone

    def _cool(self, hot: PolledSocket) -> None:
        """Let the epoll watch the socket that the event loop has watched, like all others."""
        assert self._epoll is not None
        self.hot = None
        self._loop.remove_reader(hot.fd)
        self._epoll.modify(hot.fd, READABLE | CLOSED_BY_PEER)

    def _wake_hot(self, hot: PolledSocket) -> None:
        self._streak = 0
        try:
            hot.ready(READABLE)
        except Exception:
            self._failed(hot)

    def _flush(self) -> None:
        until = self._clock() + self._turn
        unflushed = self._unflushed
        for position, written in enumerate(unflushed, 1):
            try:
                written.flush()
            except Exception:
                self._failed(written)
            if self._clock() > until and position < len(unflushed):
                del unflushed[:position]
                self._loop.call_soon(self._flush)
                return
        unflushed.clear()

    def _failed(self, polled: Polled) -> None:
        logger.exception("a connection failed and is dropped; the others continue")
        self.reading = None
        polled.abort()


def _with_leaving(events: int) -> int:
    """The same, and that the peer closes its half, if the socket is read."""
    return events | CLOSED_BY_PEER if events & READABLE else events


_NOBODY: Final = asyncio.Protocol()
"""The protocol of a transport that its connection has left."""
