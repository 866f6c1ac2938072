"""A connected stream socket that the poller serves: what is read and written, and when the socket is closed.

It is a mixin with no memory of its own. `SocketConnection` adds it to a WebSocket, so that an idle link is one object;
`SocketTransport` makes an asyncio transport of it. The poller calls `ready` when the socket can be read or written, and
`flush` when something was written. No method calls `connection_lost` before it returns, and data is written in the
order of `put`. This module never asks the kernel which sockets are ready.
"""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from fairlead.carrier.epoll.poller import Poller

READABLE: Final = 0x1
WRITABLE: Final = 0x4
"""EPOLLIN and EPOLLOUT of Linux, which `select` does not define elsewhere."""
READ_SIZE: Final = 64 << 10
"""Bytes that the first read of a turn asks for. glibc takes memory of this size from its heap; more than 128 KiB would
be mapped and unmapped for each read, which takes 16 µs."""
HIGH_WATER: Final = 64 << 10
"""`pause_writing` is called when more bytes than this are waiting, as in asyncio and uvloop. Below it a connection is
never congested, so writes do not check for overflow."""
LOW_WATER: Final = HIGH_WATER // 4
"""`resume_writing` is called when no more bytes than this are waiting, as in asyncio and uvloop."""


# The states of a socket, as numbers because an enumeration's members cost 50 ns each time.
OPEN: Final = 0
HALF_CLOSING: Final = 1  # our half is closed when all output has been written; incoming data is still read
HALF_CLOSED: Final = 2
CLOSING: Final = 3  # nothing is read any more; the socket is closed when all output has been written
CLOSED: Final = 4


class Polled(Protocol):
    """Owns a socket on the poller. Both methods may remove it."""

    def ready(self, events: int) -> None:
        """Do what the socket allows now, without waiting. `events` are a hint."""
        ...

    def abort(self) -> None:
        """Close the socket now: the poller closes, or `ready` has failed."""
        ...


class PolledSocket:
    """Owns the descriptor, which is watched for data from the beginning. A subclass has the `SLOTS` and one for
    `congested`, calls `_attach` first, and defines the events.
    """

    SLOTS = ("_events", "_fd", "_output", "_poller", "_state")

    if TYPE_CHECKING:
        _fd: int
        _poller: Poller
        _events: int  # what the poller watches the socket for
        _output: bytes | bytearray
        _state: int
        congested: bool  # True while more output waits than is good

        # The events. A subclass defines them, with the names and the meaning that they have in asyncio's protocols.
        def data_received(self, data: bytes) -> None: ...
        def eof_received(self) -> bool | None: ...
        def pause_writing(self) -> None: ...
        def resume_writing(self) -> None: ...
        def connection_lost(self, exc: Exception | None) -> None: ...
        def abort(self) -> None: ...
    else:  # a type checker would miss the attributes
        __slots__ = ()

    def _attach(self, fd: int, poller: Poller) -> None:
        self._fd = fd
        self._poller = poller
        self._events = READABLE
        self._output = b""
        self._state = OPEN
        self.congested = False

    # Called by the owner of the socket, which is a subclass.

    def put(self, data: bytes | bytearray | memoryview) -> None:
        """Write `data` with what else is written in the same turn, so that it takes one system call. The first output
        of a turn, to whichever socket, is written at once.
        """
        if self._state != OPEN:
            return
        output = self._output
        if not output:
            self._output = output = data if type(data) is bytes else bytes(data)
            if self._poller.reading is not self:
                self._poller.flush_soon(self)
        else:
            if not isinstance(output, bytearray):
                output = self._output = bytearray(output)
            output += data
        if len(self._output) > HIGH_WATER and not self.congested:
            self._relieve()

    def buffered(self) -> int:
        return len(self._output)

    def end_output(self) -> None:
        """Close our half when all output has been written."""
        if self._state == OPEN:
            self._state = HALF_CLOSING
            self._write_now()

    def is_closing(self) -> bool:
        return self._state >= CLOSING

    def disconnect(self) -> None:
        """Close the socket when all output has been written, and read nothing any more."""
        if self._state < CLOSING:
            self._state = CLOSING
            self._watch(self._events & ~READABLE)
            self._write_now()

    def drop(self, error: OSError | None = None) -> None:
        """Close the socket now, and report it in a later turn of the event loop."""
        if self._state == CLOSED:
            return
        self._poller.remove(self._fd, self._events)
        self._close_socket()
        self._state = CLOSED
        self._events = 0
        self._output = b""
        self._poller.call_soon(self.connection_lost, error)

    def is_reading(self) -> bool:
        return bool(self._events & READABLE)

    def stop_reading(self) -> None:
        self._watch(self._events & ~READABLE)

    def go_on_reading(self) -> None:
        if self._state < CLOSING:
            self._watch(self._events | READABLE)

    # Called by the poller.

    @property
    def fd(self) -> int:
        return self._fd

    @property
    def watched_for(self) -> int:
        return self._events

    @property
    def only_reads(self) -> bool:
        """Whether it waits for nothing but data."""
        return self._events == READABLE

    def ready(self, events: int) -> None:
        """Read and write what the socket can take now. `events` are a hint: they may be out of date, and an error of
        the socket is found by reading or writing. What has arrived is read before a failed write can discard it.
        """
        if self._events & READABLE and events != WRITABLE:
            try:
                data = self._receive()
            except BlockingIOError:
                pass
            except OSError as error:
                self.drop(error)
            else:
                if data:
                    poller = self._poller
                    poller.reading = self
                    self.data_received(data)
                    poller.reading = None
                    if self._output and not self._events & WRITABLE:
                        self.flush()
                elif not self.eof_received():
                    self.disconnect()
        if self._events & WRITABLE and events != READABLE:
            self.flush()

    def flush(self) -> None:
        """Write as much output as the socket takes, and continue when it takes more."""
        output = self._output
        if output:
            try:
                written = self._send(output)
            except BlockingIOError:
                written = 0
            except OSError as error:
                self.drop(error)
                return
            if written < len(output):
                # A bytearray is cut at its beginning without moving the rest.
                rest = output if isinstance(output, bytearray) else bytearray(output)
                del rest[:written]
                self._output = rest
                self._watch(self._events | WRITABLE)
            else:
                self._output = b""
                if self._events & WRITABLE:
                    self._watch(self._events & ~WRITABLE)
            if self.congested and len(self._output) <= LOW_WATER:
                self.congested = False
                self.resume_writing()
        if self._state and not self._output:
            self._output_written()

    # Internal.

    def _receive(self) -> bytes:
        """Read what has arrived, within limits. Returns b"" at the end of the stream. Raises OSError."""
        data = os.read(self._fd, READ_SIZE)
        if len(data) == READ_SIZE:
            data += self._poller.read_more(self._fd)
        return data

    def _send(self, output: bytes | bytearray) -> int:
        """Write a part of `output` and return its size in bytes. Raises OSError."""
        return os.write(self._fd, output)

    def _close_socket(self) -> None:
        os.close(self._fd)

    def _relieve(self) -> None:
        self._write_now()
        if len(self._output) > HIGH_WATER:
            self.congested = True
            self.pause_writing()

    def _write_now(self) -> None:
        """Write all output, unless the socket is known to take nothing."""
        if not self._events & WRITABLE:
            self.flush()

    def _output_written(self) -> None:
        """Do what had to wait until all output was written."""
        if self._state == CLOSING:
            self.drop()
        elif self._state == HALF_CLOSING:
            self._state = HALF_CLOSED
            lent = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 0, self._fd)
            try:
                lent.shutdown(socket.SHUT_WR)
            except OSError:
                pass  # the peer has reset the connection, which the next read finds
            finally:
                lent.detach()

    def _watch(self, events: int) -> None:
        if events != self._events:
            try:
                self._poller.watch(self._fd, self._events, events)
            except OSError as error:  # the kernel has no memory for it
                self.drop(error)
            else:
                self._events = events
