"""What runs in a handler's own process: calls the function, sends what it yields, and ends with the agent.

Started by `processes` through multiprocessing. Items are encoded here, where it costs the event loop nothing. The
socket also tells that the agent is gone: a thread reads its end and exits the process, because a busy handler would
not look.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import struct
import threading
from collections.abc import Callable
from typing import Any

import msgspec

from fairlead.agent.commands.output import item, octets, result
from fairlead.agent.errors import CommandError
from fairlead.wire.messages import CHUNK_LIMIT, Error

NICE = 5
"""Lowers the priority below the agent's, whose heartbeats must not wait for a handler."""

READY = b"+"
"""The first byte: the module was imported and the handler found. What fails before is not the handler's fault."""

logger = logging.getLogger("fairlead.agent")


class ChildMessage(msgspec.Struct, array_like=True, frozen=True):
    """One item (`kind` is set), or the last message: the result, or an error."""

    kind: str = ""
    data: bytes = b""
    error: Error | None = None


_encode = msgspec.msgpack.Encoder().encode


def main(pipe: socket.socket, function: Callable[..., Any], arguments: dict[str, Any], streams: bool) -> None:
    """Run the handler; the process ends when this returns."""
    os.setsid()
    os.nice(NICE)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    pipe.setblocking(True)
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
    _send(pipe, last)


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


def _send(pipe: socket.socket, report: ChildMessage) -> None:
    data = _encode(report)
    pipe.sendall(struct.pack("!I", len(data)) + data)


def _exit_with_the_agent(pipe: socket.socket) -> None:
    try:
        pipe.recv(1)
    except OSError:
        pass
    os._exit(1)
