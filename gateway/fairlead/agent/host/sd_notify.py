"""systemd's notify protocol, sd_notify(3): ready, status, watchdog, stopping.

Used by `Agent.run`, which owns the process. It sends nothing if NOTIFY_SOCKET is not in the environment. Each
notification is one datagram, so no library is needed. The event loop feeds the watchdog: systemd restarts an agent
whose loop hangs, but an unreachable gateway does not trip it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import MutableMapping

from fairlead.text import plain

logger = logging.getLogger("fairlead.agent")


class SystemdNotifier:
    """Sends nothing before `attach`, and never without a service manager."""

    def __init__(self) -> None:
        self._address = ""
        self._period = 0.0
        self._ready = False
        self._timer: asyncio.TimerHandle | None = None
        self._socket: socket.socket | None = None

    def attach(self, environment: MutableMapping[str, str]) -> None:
        """Remove the protocol's variables from `environment`, which programs that the agent starts must not use."""
        address = environment.pop("NOTIFY_SOCKET", "")
        period = environment.pop("WATCHDOG_USEC", "")
        watched = environment.pop("WATCHDOG_PID", "")
        if not address:
            return
        # @ stands for the null byte of an abstract name.
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        if period.isdecimal() and watched in ("", str(os.getpid())):
            self._period = int(period) / 1_000_000
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)

    def start_watchdog(self) -> None:
        """Feed the watchdog from the running loop, twice in each period, if systemd wants it."""
        if self._period:
            self._feed(asyncio.get_running_loop())

    def _feed(self, loop: asyncio.AbstractEventLoop) -> None:
        self._send("WATCHDOG=1")
        self._timer = loop.call_later(self._period / 2, self._feed, loop)

    def linked(self, status: str) -> None:
        """The gateway has welcomed this agent; the first time, the service is ready."""
        self._send(f"STATUS={plain(status)}" if self._ready else f"READY=1\nSTATUS={plain(status)}")
        self._ready = True

    def waiting(self, status: str) -> None:
        # `plain`, because a line end in the status, which may quote the gateway, would begin another assignment.
        self._send(f"STATUS={plain(status)}")

    def stopping(self) -> None:
        self._send("STOPPING=1\nSTATUS=ending running commands")

    def close(self) -> None:
        self._period, self._ready = 0.0, False
        if self._timer is not None:
            self._timer.cancel()
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _send(self, text: str) -> None:
        if self._socket is None:
            return
        try:
            self._socket.sendto(text.encode(errors="replace"), self._address)
        except OSError as e:
            logger.debug("cannot notify systemd of %r: %s", text, e)
