"""The listening sockets of a server on its poller: when they are watched, and for how long they are not.

`LinkAcceptor` owns one `ServerSockets` and accepts when it is told to. If several processes accept from the same
sockets, a process that has more than its share of connections leaves the sockets unwatched for a moment. It comes back
after `ASIDE`, or when it is called, and decides anew with the next connection; so nothing happens while none comes.
Whatever fails, the sockets stay open and are watched again: a server that accepts nothing any more looks healthy.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, Sequence
from typing import Final

from fairlead.carrier.accept.accept_share import PATIENCE
from fairlead.carrier.accept.worker_loads import PortShare
from fairlead.carrier.epoll.poller import Poller
from fairlead.carrier.epoll.poller_socket import READABLE

logger = logging.getLogger("fairlead.carrier")

ACCEPTED_AT_ONCE: Final = 32
"""The most connections that are accepted before open connections get their turn. Each takes some 10 µs."""
ASIDE: Final = PATIENCE
"""Seconds for which a process steps aside at most: it then knows whether the others have reacted."""
FAILURE_PAUSE: Final = 1.0
"""Seconds for which nothing is accepted after an error that nobody expects, so that it is not logged all the time."""
UNWATCHED: Final = 0x2
"""EPOLLPRI, which no listening socket ever reports. A socket that waits for it keeps its place on the epoll. One that
was taken off it might find no place later, because a user may have only so many."""


class ServerSockets:
    """`accept` is called with a socket on which connections wait, and accepts at most so many. It returns how many it
    has accepted. `load` is this process's load if it shares the sockets (`share`) with others."""

    def __init__(
        self,
        poller: Poller,
        accept: Callable[[socket.socket, int], int],
        share: PortShare | None,
        load: Callable[[], int],
    ) -> None:
        self.sockets: list[socket.socket] = []
        self._poller = poller
        self._accept = accept
        self._share = share
        self._load = load
        self._loop = asyncio.get_running_loop()
        self._pause: asyncio.TimerHandle | None = None
        self._aside = False
        """Whether others accept meanwhile, and may end the pause."""
        self._called_by_others = False
        """Whether the poller watches for their calls: from `listen` on."""
        self._closed = False

    def listen(self, sockets: Sequence[socket.socket], backlog: int) -> None:
        """Accept connections on bound sockets, until `close` closes them. Raises OSError."""
        share = self._share
        if share is not None:
            backlog *= share.workers  # they share one queue in the kernel
            share.start(self._load)
            self._poller.add(share.call_fd, _Call(self, share))
            self._called_by_others = True
        for one in sockets:
            one.setblocking(False)
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # inherited by what is accepted
            one.listen(backlog)
            self._poller.add(one.fileno(), _ListeningSocket(self, one))
            self.sockets.append(one)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._pause is not None:
            self._pause.cancel()
        if self._share is not None:
            self._share.leave()
            if self._called_by_others:
                self._poller.remove(self._share.call_fd, READABLE)
        for one in self.sockets:
            self._poller.remove(one.fileno(), READABLE)
            one.close()

    def pause(self, seconds: float) -> bool:
        """Accept nothing for so long, because it is impossible. Returns whether this is a new pause."""
        if self._closed or (self._pause is not None and not self._aside):
            return False
        if self._share is not None:
            self._share.leave()
        self._unwatch(seconds)
        self._aside = False
        return True

    # Called by the objects on the poller.

    def look(self, sock: socket.socket) -> None:
        """Accept some of the connections that wait, if it is this process's turn."""
        share = self._share
        if share is None:
            self._accept(sock, ACCEPTED_AT_ONCE)
            return
        most = share.most()
        if not most:
            self._step_aside()
            return
        accepted = self._accept(sock, min(most, ACCEPTED_AT_ONCE))
        if accepted:
            share.publish()
        elif self._pause is None and share.step_aside():
            self._step_aside()

    def called(self) -> None:
        """Another process leaves its turn to this one."""
        if self._aside and not self._closed:
            self._watch()

    def failed(self) -> None:
        """Accepting has failed with an exception that is being handled. Accept again after a pause."""
        logger.exception("accepting connections has failed; trying again in %g s", FAILURE_PAUSE)
        self.pause(FAILURE_PAUSE)

    def _step_aside(self) -> None:
        if self._pause is None:
            self._unwatch(ASIDE)
            self._aside = True

    def _unwatch(self, seconds: float) -> None:
        if self._pause is not None:
            self._pause.cancel()
        else:
            for one in self.sockets:
                self._poller.watch(one.fileno(), READABLE, UNWATCHED)
        self._pause = self._loop.call_later(seconds, self._watch)

    def _watch(self) -> None:
        if self._pause is not None:
            self._pause.cancel()
        self._pause, self._aside = None, False
        for one in self.sockets:
            self._poller.watch(one.fileno(), UNWATCHED, READABLE)
        if self._share is not None:
            self._share.come_back()


class _ListeningSocket:
    def __init__(self, owner: ServerSockets, sock: socket.socket) -> None:
        self._owner = owner
        self._sock = sock

    def ready(self, events: int) -> None:
        try:
            self._owner.look(self._sock)
        except Exception:
            self._owner.failed()

    def abort(self) -> None:
        self._owner.close()


class _Call:
    def __init__(self, owner: ServerSockets, share: PortShare) -> None:
        self._owner = owner
        self._share = share

    def ready(self, events: int) -> None:
        with contextlib.suppress(BlockingIOError):
            self._share.answer_call()
        try:
            self._owner.called()
        except Exception:
            self._owner.failed()

    def abort(self) -> None:
        self._owner.close()
