"""What runs in a handler's own process: calls the function, sends what it yields, and ends with the agent.

Called by `fork_server_process` in a process that it has forked. Items are encoded here, where that costs the agent's
event loop nothing. The socket also shows when the agent is gone: a thread waits for its end of file and exits the
process, because a busy handler would not notice.
"""

from __future__ import annotations

import ctypes
import logging
import os
import pickle
import signal
import socket
import struct
import sys
import threading
from collections.abc import Callable
from typing import Any

import msgspec

from fairlead.agent.commands.output import item, octets, result
from fairlead.agent.errors import CommandError
from fairlead.wire.messages import CHUNK_LIMIT, Error

PR_SET_PDEATHSIG = 1
"""prctl(2): the signal that the kernel sends to a process when its parent dies, here the fork server."""

READY = b"+"
"""The first byte that is sent: the module was imported and the handler was found. A failure before that is not the
handler's fault."""

logger = logging.getLogger("fairlead.agent")


class ChildMessage(msgspec.Struct, array_like=True, frozen=True):
    """One item (`kind` is set), or the last message: the result, or an error."""

    kind: str = ""
    data: bytes = b""
    error: Error | None = None


_encode = msgspec.msgpack.Encoder().encode
_prctl = ctypes.CDLL(None).prctl


def packed_job(function: Callable[..., Any], arguments: dict[str, Any], streams: bool) -> bytes:
    """The job as `main` reads it. Raises whatever pickle raises."""
    return _framed(pickle.dumps((function, arguments, streams)))


def main(pipe: socket.socket) -> None:
    """Run the handler that comes through the pipe; the process ends when this returns."""
    os.setsid()
    _prctl(PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL))
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    pipe.setblocking(True)
    job = _received(pipe)
    if job is None:
        return  # the command is over already
    function, arguments, streams = pickle.loads(job)
    pipe.sendall(READY)
    threading.Thread(target=_exit_with_the_agent, args=(pipe,), daemon=True).start()
    try:
        last = ChildMessage(data=_run(pipe, function, arguments, streams))
    except BrokenPipeError:
        return  # the agent is gone
    except CommandError as e:
        last = ChildMessage(error=e.to_wire())
    except (Exception, SystemExit) as e:
        logger.exception("a handler failed")
        last = ChildMessage(error=CommandError("handler_failed", f"{type(e).__name__}: {e}").to_wire())
    flush_output()  # now, since the process is killed when the agent has the result
    _send(pipe, last)


def flush_output() -> None:
    """Flush what the handler has printed to where the agent's own output goes."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            pass  # it is closed, or leads nowhere


def _run(pipe: socket.socket, function: Callable[..., Any], arguments: dict[str, Any], streams: bool) -> bytes:
    returned = function(**arguments)
    if not streams:
        return result(returned)
    while True:
        try:
            kind, data = item(next(returned))
        except StopIteration as stop:
            return result(stop.value)
        made = octets(kind, data, CHUNK_LIMIT)
        for start in range(0, len(made), CHUNK_LIMIT):
            _send(pipe, ChildMessage(kind, made[start : start + CHUNK_LIMIT]))


def _framed(data: bytes) -> bytes:
    return struct.pack("!I", len(data)) + data


def _send(pipe: socket.socket, report: ChildMessage) -> None:
    pipe.sendall(_framed(_encode(report)))


def _received(pipe: socket.socket) -> bytes | None:
    """The data of the next frame, or None at the end of the stream."""
    with pipe.makefile("rb") as file:
        head = file.read(4)
        size = struct.unpack("!I", head)[0] if len(head) == 4 else 0
        data = file.read(size)
    return data if data and len(data) == size else None


def _exit_with_the_agent(pipe: socket.socket) -> None:
    try:
        pipe.recv(1)
    except OSError:
        pass
    os._exit(1)
