"""What the service manager is told: ready, how it stands, still turning, stopping. systemd's sd_notify protocol.

Used by `Agent.run`, which owns the process; an agent without NOTIFY_SOCKET in its environment tells nobody. It is
one datagram for each word, so that no library is needed. The watchdog is fed by the event loop: an agent whose loop
hangs is started anew, one whose gateway is away is not.
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
    """Silent until `attach`, and without a service manager for ever."""

    def __init__(self) -> None:
        self._address = ""
        self._period = 0.0
        self._ready = False
        self._timer: asyncio.TimerHandle | None = None
        self._socket: socket.socket | None = None

    def attach(self, environment: MutableMapping[str, str]) -> None:
        """Take its variables out of `environment`: what the agent starts must not speak for it."""
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

    def begin(self) -> None:
        """Feed the watchdog from the running loop, twice in each period."""
        if self._period:
            self._feed(asyncio.get_running_loop())

    def _feed(self, loop: asyncio.AbstractEventLoop) -> None:
        self._say("WATCHDOG=1")
        self._timer = loop.call_later(self._period / 2, self._feed, loop)

    def linked(self, status: str) -> None:
        """The gateway has welcomed this agent: from the first time on it is ready."""
        self._say(f"STATUS={plain(status)}" if self._ready else f"READY=1\nSTATUS={plain(status)}")
        self._ready = True

    def waiting(self, status: str) -> None:
        """A line end in `status`, which may quote the gateway, would begin a word of its own."""
        self._say(f"STATUS={plain(status)}")

    def stopping(self) -> None:
        self._say("STOPPING=1\nSTATUS=ending what runs")

    def close(self) -> None:
        self._period, self._ready = 0.0, False
        if self._timer is not None:
            self._timer.cancel()
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _say(self, text: str) -> None:
        if self._socket is None:
            return
        try:
            self._socket.sendto(text.encode(errors="replace"), self._address)
        except OSError as e:
            logger.debug("the service manager was not told %r: %s", text, e)
