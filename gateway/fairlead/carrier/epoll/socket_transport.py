"""A connected stream socket without TLS, with the interface of an asyncio transport and a twentieth of its memory.

`Poller` creates one for each connection that it takes over, calls `ready` when the socket can be read or written, and
`flush` when something was written. The connection on it cannot tell it from the transport of an event loop: no method
calls the protocol's `connection_lost` before it returns, data is written in the order of `write`, and the reference to
the protocol is dropped at the end. This module never asks the kernel which sockets are ready.
"""

from __future__ import annotations

import asyncio
import os
import socket
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from fairlead.carrier.epoll.poller import Poller

READABLE: Final = 0x1
WRITABLE: Final = 0x4
"""EPOLLIN and EPOLLOUT of Linux, which `select` does not define elsewhere."""
READ_SIZE: Final = 64 << 10
"""Bytes that the first read of a turn asks for. glibc takes memory of this size from its heap; more than 128 KiB would
be mapped and unmapped for each read, which takes 16 µs."""
HIGH_WATER: Final = 64 << 10
"""The protocol is told to pause writing when more bytes than this are waiting, as in asyncio and uvloop."""
LOW_WATER: Final = HIGH_WATER // 4
"""The protocol is told to resume writing when no more bytes than this are waiting, as in asyncio and uvloop."""


# The states of a socket, as numbers because an enumeration's members cost 50 ns each time.
OPEN: Final = 0
HALF_CLOSING: Final = 1  # our half is closed when all output has been written; incoming data is still read
HALF_CLOSED: Final = 2
CLOSING: Final = 3  # nothing is read any more; the socket is closed when all output has been written
CLOSED: Final = 4


class SocketTransport(asyncio.Transport):
    """The transport of one socket, whose descriptor it owns. It reads from the beginning; its creator sets the protocol
    before control returns to the event loop.
    """

    __slots__ = ("_congested", "_events", "_fd", "_output", "_poller", "_protocol", "_state")

    def __init__(self, fd: int, poller: Poller) -> None:
        self._fd = fd
        self._poller = poller
        self._events = READABLE  # what the poller watches the socket for
        self._output: bytes | bytearray = b""
        self._protocol: asyncio.Protocol
        self._state = OPEN
        self._congested = False

    # Called by the connection.

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        assert isinstance(protocol, asyncio.Protocol)
        self._protocol = protocol

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return `default`: everything that an application may ask for was asked before the upgrade."""
        return default

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Write `data` with what else is written in the same turn, so that it takes one system call. The first output
        of a turn, to whichever socket, is written at once.
        """
        if self._state != OPEN:
            return
        output = self._output
        if not output:
            self._output = data if type(data) is bytes else bytes(data)
            if self._poller.reading is not self:
                self._poller.flush_soon(self)
        else:
            if not isinstance(output, bytearray):
                output = self._output = bytearray(output)
            output += data
        if len(self._output) > HIGH_WATER and not self._congested:
            self._relieve()

    def get_write_buffer_size(self) -> int:
        return len(self._output)

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        if self._state == OPEN:
            self._state = HALF_CLOSING
            self._write_now()

    def is_closing(self) -> bool:
        return self._state >= CLOSING

    def close(self) -> None:
        if self._state < CLOSING:
            self._state = CLOSING
            self._watch(self._events & ~READABLE)
            self._write_now()

    def abort(self) -> None:
        self._drop(None)

    def is_reading(self) -> bool:
        return bool(self._events & READABLE)

    def pause_reading(self) -> None:
        self._watch(self._events & ~READABLE)

    def resume_reading(self) -> None:
        if self._state < CLOSING:
            self._watch(self._events | READABLE)

    # Called by the poller.

    @property
    def fd(self) -> int:
        return self._fd

    @property
    def only_reads(self) -> bool:
        """Whether it waits for nothing but data."""
        return self._events == READABLE

    def ready(self, events: int) -> bool:
        """Read and write what the socket can take now. Returns whether anything was read. `events` are a hint: they may
        be out of date, and an error of the socket is found by reading or writing. What has arrived is read before a
        failed write can discard it.
        """
        received = bool(self._events & READABLE) and events != WRITABLE and self._read()
        if self._events & WRITABLE and events != READABLE:
            self.flush()
        return received

    def flush(self) -> None:
        """Write as much output as the socket takes, and continue when it takes more."""
        output = self._output
        if output:
            try:
                written = self._send(output)
            except BlockingIOError:
                written = 0
            except OSError as error:
                self._drop(error)
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
            if self._congested and len(self._output) <= LOW_WATER:
                self._congested = False
                self._protocol.resume_writing()
        if self._state and not self._output:
            self._finish()

    # Internal.

    def _read(self) -> bool:
        try:
            data = self._receive()
        except BlockingIOError:
            return False
        except OSError as error:
            self._drop(error)
            return True
        if not data:
            if not self._protocol.eof_received():
                self.close()
            return True
        poller = self._poller
        poller.reading = self
        self._protocol.data_received(data)
        poller.reading = None
        if self._output and not self._events & WRITABLE:
            self.flush()
        return True

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
            self._congested = True
            self._protocol.pause_writing()

    def _write_now(self) -> None:
        """Write all output, unless the socket is known to take nothing."""
        if not self._events & WRITABLE:
            self.flush()

    def _finish(self) -> None:
        """Do what had to wait until all output was written."""
        if self._state == CLOSING:
            self._drop(None)
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
                self._drop(error)
            else:
                self._events = events

    def _drop(self, error: OSError | None) -> None:
        """Close the socket now, and report it to the protocol in the next turn of the event loop."""
        if self._state == CLOSED:
            return
        self._poller.remove(self._fd, self._events)
        self._close_socket()
        self._state = CLOSED
        self._events = 0
        self._output = b""
        self._poller.call_soon(self._lost, error)

    def _lost(self, error: OSError | None) -> None:
        protocol = self._protocol
        del self._protocol  # the protocol refers to this transport
        protocol.connection_lost(error)
