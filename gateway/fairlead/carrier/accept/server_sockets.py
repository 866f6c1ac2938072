"""The listening sockets of a server on its poller: when they are watched, and for how long they are not.

`LinkAcceptor` owns one `ServerSockets` and accepts when it is told to. If several processes accept from the same
sockets, a process that has more than its share of connections leaves the sockets unwatched for a moment. It comes back
after `ASIDE`, or when it is called, and decides anew with the next connection; so nothing happens while none comes.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Sequence
from typing import Final

from fairlead.carrier.accept.accept_share import PATIENCE
from fairlead.carrier.accept.worker_loads import PortShare
from fairlead.carrier.epoll.poller import Poller
from fairlead.carrier.epoll.poller_socket import READABLE

ACCEPTED_AT_ONCE: Final = 32
"""The most connections that are accepted before open connections get their turn. Each takes some 10 µs."""
ASIDE: Final = PATIENCE
"""Seconds for which a process steps aside at most: it then knows whether the others have reacted."""


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
        self._closed = False

    def listen(self, sockets: Sequence[socket.socket], backlog: int) -> None:
        """Accept connections on bound sockets, until `close` closes them. Raises OSError."""
        share = self._share
        if share is not None:
            backlog *= share.workers  # they share one queue in the kernel
            share.start(self._load)
            self._poller.add(share.call_fd, _Call(self, share))
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
            self._poller.remove(self._share.call_fd, READABLE)
        for one in self.sockets:
            self._poller.remove(one.fileno(), 0 if self._pause is not None else READABLE)
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

    def _step_aside(self) -> None:
        if self._pause is None:
            self._unwatch(ASIDE)
            self._aside = True

    def _unwatch(self, seconds: float) -> None:
        if self._pause is not None:
            self._pause.cancel()
        else:
            for one in self.sockets:
                self._poller.watch(one.fileno(), READABLE, 0)
        self._pause = self._loop.call_later(seconds, self._watch)

    def _watch(self) -> None:
        if self._pause is not None:
            self._pause.cancel()
        self._pause, self._aside = None, False
        if self._share is not None:
            self._share.come_back()
        for one in self.sockets:
            self._poller.watch(one.fileno(), 0, READABLE)


class _ListeningSocket:
    def __init__(self, owner: ServerSockets, sock: socket.socket) -> None:
        self._owner = owner
        self._sock = sock

    def ready(self, events: int) -> None:
        self._owner.look(self._sock)

    def abort(self) -> None:
        self._owner.close()


class _Call:
    def __init__(self, owner: ServerSockets, share: PortShare) -> None:
        self._owner = owner
        self._share = share

    def ready(self, events: int) -> None:
        with contextlib.suppress(BlockingIOError):
            self._share.answer_call()
        self._owner.called()

    def abort(self) -> None:
        self._owner.close()
