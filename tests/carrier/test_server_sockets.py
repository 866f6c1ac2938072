"""Processes that accept from one socket, played by servers on one event loop: who accepts, and what ends a pause."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest
import pytest_asyncio

from fairlead.carrier.accept import server_sockets
from fairlead.carrier.accept.accept_share import UNAVAILABLE
from fairlead.carrier.accept.server_sockets import ServerSockets
from fairlead.carrier.accept.worker_loads import PortShare, WorkerLoads
from fairlead.carrier.epoll.poller import Poller

from support.waiting import until

BACKLOG = 64


class Acceptor:
    """One of the processes: accepts, and holds what it has accepted."""

    def __init__(self, loads: WorkerLoads | None, number: int, listening: socket.socket) -> None:
        self.held: list[socket.socket] = []
        self.available = True
        self.error: OSError | None = None
        self.fails = ""
        """Which of its two methods raises an error that nobody expects."""
        self.looked = 0
        self.poller = Poller()
        self._listening = listening.dup()
        share = None if loads is None else PortShare(loads, number)
        self.sockets = ServerSockets(self.poller, self.accept, share, self.load)

    def start(self) -> None:
        self.sockets.listen([self._listening], BACKLOG)

    def accept(self, listening: socket.socket, most: int) -> int:
        self.looked += 1
        self._fail("accept")
        for accepted in range(most):
            if self.error is not None:
                self.sockets.pause(0.05)
                return accepted
            try:
                self.held.append(listening.accept()[0])
            except BlockingIOError:
                return accepted
        return most

    def load(self) -> int:
        self._fail("load")
        return len(self.held) if self.available else UNAVAILABLE

    def _fail(self, method: str) -> None:
        if self.fails == method:
            raise RuntimeError("on purpose")

    def close(self) -> None:
        self.sockets.close()
        self.poller.close()
        self._listening.close()
        for one in self.held:
            one.close()


class Port:
    """A socket, the processes that accept from it, and clients of it."""

    def __init__(self) -> None:
        self.listening = socket.socket()
        self.listening.setblocking(False)  # also for its duplicates
        self.listening.bind(("127.0.0.1", 0))
        self.acceptors: list[Acceptor] = []
        self.clients: list[socket.socket] = []

    def share(self, number: int) -> list[Acceptor]:
        loads = WorkerLoads(number)
        self.acceptors = [Acceptor(loads, n, self.listening) for n in range(number)]
        return self.acceptors

    def held(self) -> list[int]:
        return [len(acceptor.held) for acceptor in self.acceptors]

    async def connect(self, count: int, at_once: int = 8) -> None:
        """Connect, and wait until all are accepted."""
        expected = sum(self.held())
        for start in range(0, count, at_once):
            more = min(at_once, count - start)
            expected += more
            for _ in range(more):
                self.clients.append(socket.create_connection(self.listening.getsockname(), 5))
            await until(lambda expected=expected: sum(self.held()) == expected, 10)  # type: ignore[misc]

    def close(self) -> None:
        for acceptor in self.acceptors:
            acceptor.close()
        for client in self.clients:
            client.close()
        self.listening.close()


@pytest_asyncio.fixture
async def port() -> AsyncIterator[Port]:
    made = Port()
    yield made
    made.close()


async def test_connections_are_spread_evenly(port: Port) -> None:
    for acceptor in port.share(4):
        acceptor.start()
    await port.connect(200)
    assert max(port.held()) - min(port.held()) <= 4


async def test_one_that_comes_later_gets_all_until_it_has_as_many(port: Port) -> None:
    *first, late = port.share(3)
    for acceptor in first:
        acceptor.start()
    await port.connect(60)
    late.start()
    await port.connect(20)
    assert port.held()[2] >= 20 - 4
    await port.connect(40)
    assert max(port.held()) - min(port.held()) <= 4


async def test_one_that_takes_no_links_gets_none_while_another_does(port: Port) -> None:
    busy, other = port.share(2)
    busy.available = False
    busy.start()
    other.start()
    await port.connect(20)
    assert port.held() == [0, 20]
    other.available = False
    await port.connect(10)
    assert sum(port.held()) == 30, "when none takes links, one of them has to refuse them"


async def test_a_process_that_has_ended_is_left_out_and_may_come_back(port: Port) -> None:
    loads = WorkerLoads(2)
    port.acceptors = [Acceptor(loads, n, port.listening) for n in range(2)]
    one, two = port.acceptors
    one.start()
    two.start()
    await port.connect(20)
    two.close()
    loads.mark_ended(1)
    port.acceptors[1] = again = Acceptor(loads, 1, port.listening)
    await port.connect(20)
    assert len(again.held) == 0, "it has not started yet"
    again.start()
    await port.connect(len(one.held))
    assert abs(len(one.held) - len(again.held)) <= 4


async def test_what_waits_is_accepted_when_the_only_other_closes(port: Port) -> None:
    one, two = port.share(2)
    one.start()
    two.start()
    await port.connect(12)
    two.sockets.close()
    await port.connect(30)
    assert len(one.held) + len(two.held) == 42


async def test_without_a_share_everything_is_accepted_at_once(port: Port) -> None:
    acceptor = Acceptor(None, 0, port.listening)
    port.acceptors = [acceptor]
    acceptor.start()
    await port.connect(100, at_once=50)
    assert port.held() == [100]


async def test_a_pause_because_of_an_error_is_ended_by_nobody_else(port: Port) -> None:
    one, _ = port.share(2)
    one.start()
    one.error = OSError(errno.EMFILE, "no files")
    client = socket.create_connection(port.listening.getsockname(), 5)
    port.clients.append(client)
    await until(lambda: one.looked > 0)
    looked = one.looked
    one.sockets.called()
    await asyncio.sleep(0)
    assert one.looked == looked
    one.error = None
    await until(lambda: port.held() == [1, 0])


class FullEpoll:
    """The epoll of a user who has as many sockets on all epolls as the kernel allows."""

    def __init__(self, epoll: Any) -> None:
        self._epoll = epoll

    def __getattr__(self, name: str) -> Any:
        return getattr(self._epoll, name)

    def register(self, fd: int, events: int) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")


async def test_a_pause_ends_when_the_epoll_takes_no_other_socket(port: Port) -> None:
    [one] = port.acceptors = [Acceptor(None, 0, port.listening)]
    one.start()
    one.poller._epoll = cast(Any, FullEpoll(one.poller._epoll))
    one.error = OSError(errno.ENOSPC, "no space left on device")
    port.clients.append(socket.create_connection(port.listening.getsockname(), 5))
    await until(lambda: one.looked > 0)
    one.error = None
    await until(lambda: port.held() == [1])


@pytest.mark.parametrize("method", ["accept", "load"])
async def test_an_unexpected_error_does_not_end_the_accepting(
    port: Port, method: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(server_sockets, "FAILURE_PAUSE", 0.05)
    one, _ = port.share(2)
    one.start()
    one.fails = method
    port.clients.append(socket.create_connection(port.listening.getsockname(), 5))
    await until(lambda: "accepting connections has failed" in caplog.text)
    assert port.held() == [0, 0]
    one.fails = ""
    await until(lambda: port.held() == [1, 0])
