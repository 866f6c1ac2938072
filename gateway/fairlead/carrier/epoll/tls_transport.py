"""A connected stream socket with TLS, as an asyncio transport that the poller serves.

`tls.tls_acceptor` creates one when a handshake is done, for a link as well as for an HTTP connection. OpenSSL reads and
writes the socket itself, so nothing is copied between buffers. Its own buffers are freed whenever they are empty
(`SSL_MODE_RELEASE_BUFFERS`, which Python sets), so an idle connection has none, whatever it has carried.

One read takes one whole record, so no plaintext ever waits in OpenSSL, where the kernel could not report it. Closing
sends close_notify. After `end_output`, what arrives can no longer be decrypted, because Python's `shutdown` has begun
to look for the peer's close_notify. It is read and discarded, like all data after a WebSocket's half was closed.
"""

from __future__ import annotations

import os
import socket
import ssl
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from fairlead.carrier.epoll.poller_socket import CLOSED, HALF_CLOSED, READABLE, WRITABLE
from fairlead.carrier.epoll.socket_transport import SocketTransport
from fairlead.carrier.tls import openssl

if TYPE_CHECKING:
    from fairlead.carrier.epoll.poller import Poller

RECORD: Final = 16 << 10
"""The most plaintext of one record (RFC 8446 §5.1)."""
MOST_READ: Final = 16 * RECORD
"""The most bytes that are read from one socket before the next one gets its turn, as without TLS."""


class TlsObject(Protocol):
    """The methods that are used of the object inside Python's `SSLSocket`."""

    context: ssl.SSLContext
    session_reused: bool

    def do_handshake(self) -> None: ...
    def read(self, length: int) -> bytes: ...
    def write(self, data: bytes | bytearray | memoryview) -> int: ...
    def shutdown(self) -> object: ...
    def cipher(self) -> tuple[str, str, int] | None: ...
    def version(self) -> str | None: ...
    def getpeercert(self, binary_form: bool = False) -> object: ...


class TlsTransport(SocketTransport):
    """The transport of a socket on which the handshake is done. It owns the socket."""

    __slots__ = ("_read_waits", "_socket", "_tls")

    def __init__(self, sock: socket.socket, tls: TlsObject, poller: Poller) -> None:
        super().__init__(sock.fileno(), poller)
        self._socket = sock
        self._tls = tls
        self._read_waits = False
        """True while OpenSSL must write before it can read, because it answers a key update of the peer (RFC 8446
        §4.6.3). Meanwhile the socket is not watched for data, which would be reported again and again."""

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return what HTTP connections ask for: one of the two addresses, or an object of TLS."""
        try:
            match name:
                case "sslcontext":
                    return self._tls.context
                case "ssl_object":
                    return self._tls
                case "peername":
                    return self._socket.getpeername()
                case "sockname":
                    return self._socket.getsockname()
        except OSError:  # the connection has been reset already
            pass
        return default

    def ready(self, events: int) -> None:
        if self._read_waits:
            self._end_read_wait()
            events |= READABLE
        super().ready(events)

    def flush(self) -> None:
        self._end_read_wait()
        super().flush()

    def is_reading(self) -> bool:
        return self._read_waits or super().is_reading()

    def stop_reading(self) -> None:
        self._end_read_wait()
        super().stop_reading()

    def end_output(self) -> None:
        self._end_read_wait()
        super().end_output()

    def disconnect(self) -> None:
        self._end_read_wait()
        super().disconnect()

    def _end_read_wait(self) -> None:
        """Watch for data again; the next read begins another wait if it has to."""
        if self._read_waits and self._state != CLOSED:
            self._read_waits = False
            self._watch((self._events if self._output else self._events & ~WRITABLE) | READABLE)

    def _receive(self) -> bytes:
        if self._state == HALF_CLOSED:
            return self._discard()
        tls = self._tls
        try:
            data = tls.read(RECORD)
            if len(data) == RECORD:
                data = self._receive_more(data)
        except ssl.SSLWantReadError:
            raise BlockingIOError from None
        except ssl.SSLWantWriteError:
            self._read_waits = True
            self._watch(self._events & ~READABLE | WRITABLE)
            raise BlockingIOError from None
        except (ssl.SSLEOFError, ssl.SSLZeroReturnError):
            return b""  # many clients close the connection without close_notify; frames and bodies have their lengths
        return data

    def _receive_more(self, data: bytes) -> bytes:
        records = [data]
        try:
            while len(data) == RECORD and len(records) < MOST_READ // RECORD:
                data = self._tls.read(RECORD)
                records.append(data)
        except OSError:
            pass  # the end of the stream and errors are left to the next read
        return b"".join(records)

    def _discard(self) -> bytes:
        """Discard what has arrived. Returns b"" at the end of the stream, and raises BlockingIOError before that."""
        if os.read(self._fd, MOST_READ):
            raise BlockingIOError
        return b""

    def _send(self, output: bytes | bytearray) -> int:
        """Write record by record: after an incomplete write, OpenSSL must be given the same bytes again."""
        written = 0
        try:
            if len(output) <= RECORD:
                return self._tls.write(output)
            with memoryview(output) as view:
                while written < len(view):
                    written += self._tls.write(view[written : written + RECORD])
        except (ssl.SSLWantWriteError, ssl.SSLWantReadError):
            pass
        return written

    def _output_written(self) -> None:
        try:
            self._tls.shutdown()
        except OSError:
            pass  # it has sent close_notify, and cannot wait for that of the peer
        super()._output_written()

    def _close_socket(self) -> None:
        self._socket.close()


def client_certificate(tls: object) -> bytes | None:
    """The client's certificate in DER, that of the first handshake if the session was resumed. None without one, and
    if other authorities are in use by now than those that it was verified against: the client has to connect again.
    `tls` may be None, for a connection without TLS."""
    if tls is None or getattr(cast(TlsObject, tls).context, "outdated", False):
        return None
    found = cast(TlsObject, tls).getpeercert(True)
    return found if isinstance(found, bytes) else None


def server_side(sock: socket.socket, context: ssl.SSLContext) -> TlsObject:
    """The server's end of TLS on a socket that does not block, before the handshake. The caller must keep the
    socket."""
    made: TlsObject = context._wrap_socket(sock, True)  # type: ignore[attr-defined]  # see decision 0026
    openssl.return_after_each_message(made, context)
    return made
