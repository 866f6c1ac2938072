"""The read scheduler: decides how much is read from each link, with a budget for each link and a share of the event
loop for all links together.

The node creates one, and the connections of its link port share it through their `ConnectionContext`. It accounts only
for connections that were read often or much recently; all others, which are nearly all, cost nothing. Data that exceeds
a budget is not lost: the connection is paused until its turn comes, and TCP makes the peer wait. A connection is closed
only if its peer keeps exceeding the rate of messages, or leaves a message incomplete while memory is short.

Four rules, in the order in which they pause a connection:

- **messages, events, bytes**: a token bucket for each. Messages that the peer was asked for do not count.
- **memory**: the incomplete messages of all connections together are bounded (see `message_memory`).
- **turns**: at most `SLICE` frames of a connection are read in one iteration of the event loop, and the rest is read
  for one connection at a time.
- **share**: all turns together get a quarter of the time; the connection that has used the least comes first.

The scheduler knows nothing above RFC 6455: the listener says what an event is and which messages the peer was asked
for.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
import time
from collections.abc import Callable
from typing import Final

from fairlead.carrier.listener import MeteredListener
from fairlead.carrier.reading.account import (
    DEFAULT_BUDGET,
    FramedReader,
    PausableConnection,
    ReadAccount,
    ReadBudget,
    can_feed,
)
from fairlead.carrier.reading.message_memory import MessageMemory

logger = logging.getLogger("fairlead.carrier")

SLICE: Final = 64
"""The most frames that are read from one connection in one iteration of the event loop. So many heartbeats take less
than a millisecond."""
SHARE: Final = 0.25
"""The fraction of the event loop's time for reading the connections that are accounted for. Reading messages is a
quarter of the work of storing them, so a useful peer comes nowhere near this limit."""
LEEWAY: Final = 0.02
"""Seconds of turns that may be taken at once after a pause."""
MODEST: Final = 0.002
"""Seconds of reading within a few ticks. A connection that used no more does not wait for the share until the share is
overdrawn by `DEBT`."""
DEBT: Final = 0.02
"""Seconds for which the share may be used up in advance. Beyond that, even connections below `MODEST` wait."""
RECEIVING: Final = 0.5e-9
"""Seconds that the transport takes for each byte that it delivers. The scheduler cannot measure this time, because it
has passed before the data arrives here. Measured on loopback: 0.4 ns."""
TICK: Final = 0.25
"""Seconds between two refills of the token buckets."""
STRAIN_LIMIT: Final = 30.0
"""Seconds for which a peer may stay at its limit for messages before its connection is closed."""
STALE: Final = 10.0
"""Seconds after which the scheduler gives up an incomplete message if other connections wait for its memory."""
CUTS: Final = 8
"""The most messages that one tick gives up. Each closes a link; all of them together take a millisecond."""


class ReadScheduler:
    """Decides which connections are read now and which are held. `held` counts how often a connection was held, and
    `cut` counts the connections that the scheduler closed.
    """

    def __init__(self, budget: ReadBudget = DEFAULT_BUDGET, clock: Callable[[], float] = time.perf_counter) -> None:
        self.budget = budget
        self.held = 0
        self.cut = 0
        self._message_memory = MessageMemory(budget.incomplete)
        self._clock = clock
        self._accounts: dict[PausableConnection, ReadAccount] = {}
        self._queue: list[tuple[float, int, ReadAccount]] = []
        self._numbers = itertools.count()
        self._next_turn: asyncio.Handle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._ticked = 0.0
        self._paid = 0.0
        """The time until which the share of the event loop is used up."""

    def __len__(self) -> int:
        """The number of connections that are accounted for."""
        return len(self._accounts)

    @property
    def kept(self) -> int:
        """The number of bytes, unread or of incomplete messages, that the accounted connections keep."""
        return self._message_memory.kept

    @property
    def waiting(self) -> int:
        """The number of connections that are held."""
        return sum(account.held for account in self._accounts.values())

    def stop(self) -> None:
        """Cancel all timers. Held connections stay held, because their server has stopped."""
        for handle in (self._next_turn, self._timer):
            if handle is not None:
                handle.cancel()
        self._next_turn = self._timer = None

    # -- called by connections ---------------------------------------------------------------------

    def read(self, connection: FramedReader, data: bytes) -> None:
        """Handle `data` that has arrived: read it now, or keep it until it is the connection's turn."""
        account = self._account(connection)
        now = self._clock()
        ahead = self._paid - now
        self._pay(account, len(data) * RECEIVING, now)
        # With many flooding connections, each gets only its part of the time that one may use.
        modest = min(MODEST, SHARE * TICK / len(self._accounts))
        if account.held or (ahead > 0 and account.used > modest) or ahead > DEBT:
            connection.keep(data)
            self._message_memory.note(account, now, 0)
            if not account.held:
                self._hold(account)
            return
        self._read(account, connection, data, now)

    def took(self, connection: PausableConnection, frames: int, size: int) -> None:
        """Count `frames`, which the peer was not asked for, and `size` bytes. Both have been read already."""
        account = self._account(connection)
        account.count(frames, size)
        if account.overdrawn:
            self._hold(account)

    def charge(self, connection: PausableConnection, messages: float, events: int) -> None:
        """Count the message that the listener has just received as `messages` more messages and `events` events."""
        account = self._account(connection)
        account.messages -= messages
        account.events -= events
        if account.overdrawn and not account.reading:
            self._hold(account)

    def silence(self, connection: PausableConnection, silent: bool) -> bool:
        """Record that the listener pauses reading (`silent`) or resumes it. Returns False if the connection is not held
        and has to pause or resume its transport itself.
        """
        account = self._accounts.get(connection)
        if account is None or not account.held:
            return False
        account.silent = silent
        if not silent and not account.reading:
            self._enqueue(account)
        return True

    def forget(self, connection: PausableConnection) -> None:
        """Forget a connection that is lost or no longer needs an account."""
        account = self._accounts.pop(connection, None)
        if account is not None:
            self._message_memory.forget(account)
            account.held = account.queued = False
            self._admit()

    # -- internal ----------------------------------------------------------------------------------

    def _account(self, connection: PausableConnection) -> ReadAccount:
        account = self._accounts.get(connection)
        if account is None:
            listener = connection.listener
            metered = listener if isinstance(listener, MeteredListener) else None
            account = self._accounts[connection] = ReadAccount(connection, metered, self.budget)
            if self._timer is None:
                self._ticked = self._clock()
                self._timer = asyncio.get_running_loop().call_later(TICK, self._tick)
        return account

    def _read(self, account: ReadAccount, connection: FramedReader, data: bytes, now: float) -> None:
        """Read one slice from the account's connection, charge the account, and hold the connection if necessary."""
        unparsed = connection.unparsed + len(data)
        metered = account.metered
        asked = 0 if metered is None else metered.asked
        account.reading = True
        frames = connection.feed(data, SLICE)
        account.reading = False
        asked = 0 if metered is None else metered.asked - asked
        self._pay(account, self._clock() - now, now)
        account.count(frames - asked, unparsed - connection.unparsed)
        self._message_memory.note(account, now, frames)
        if account.held:
            self._enqueue(account)
        elif account.overdrawn or connection.keeps_frames or self._message_memory.crowded(account):
            self._hold(account)
        self._admit()

    def _pay(self, account: ReadAccount, took: float, now: float) -> None:
        self._paid = max(self._paid, now - LEEWAY) + took / SHARE
        account.used += took

    def _hold(self, account: ReadAccount) -> None:
        if account.held:
            return
        self.held += 1
        account.held = True
        account.silent = account.connection.hold()
        self._enqueue(account)

    def _enqueue(self, account: ReadAccount) -> None:
        """Let a held connection wait for its turn, unless it must wait for something else first. In that case, the next
        tick calls this again, or the code that removes the obstacle does.
        """
        if account.queued or not account.held:
            return
        connection = account.connection
        if not connection.closing:  # a closing connection only waits for the peer's close frame
            if account.overdrawn or (account.silent and connection.keeps_frames):
                return
            if not connection.keeps_frames and self._message_memory.crowded(account):
                self._message_memory.wait(account)
                return
        account.queued = True
        heapq.heappush(self._queue, (account.used, next(self._numbers), account))
        if self._next_turn is None:
            self._arm()

    def _arm(self) -> None:
        loop, delay = asyncio.get_running_loop(), self._paid - self._clock()
        # uvloop's timers have a resolution of 1 ms; the delay of the next turn makes up for a shorter one.
        self._next_turn = loop.call_soon(self._take_turn) if delay < 0.001 else loop.call_later(delay, self._take_turn)

    def _take_turn(self) -> None:
        self._next_turn = None
        while self._queue:
            account = heapq.heappop(self._queue)[2]
            if not account.queued:
                continue  # the connection was lost meanwhile
            account.queued = False
            connection = account.connection
            if can_feed(connection):
                if account.silent and not connection.closing:
                    continue  # the listener has paused reading meanwhile
                self._read(account, connection, b"", self._clock())
                break
            if self._message_memory.crowded(account) and not connection.closing:
                self._message_memory.wait(account)  # others have used the free memory meanwhile
                continue
            account.held = False
            connection.release(account.silent)
            if account.kept:
                break  # much data may arrive from it at once
        if self._queue and self._next_turn is None:
            self._arm()

    def _tick(self) -> None:
        now = self._clock()
        passed, self._ticked = now - self._ticked, now
        late = max(passed - 2 * TICK, 0.0)  # nothing was read in this time, for which no peer is responsible
        budget = self.budget
        for account in tuple(self._accounts.values()):
            account.used /= 2
            if account.since:
                account.since += late
            account.strained = account.strained + min(passed, 2 * TICK) if account.messages < SLICE else 0.0
            account.refill(budget, passed)
            if account.strained >= STRAIN_LIMIT and not account.connection.closing:
                self._cut(account, f"more than {budget.messages:g} messages a second for {STRAIN_LIMIT:g} s")
            elif account.held:
                self._enqueue(account)
            elif not account.kept and account.used < MODEST / 64 and account.is_full(budget):
                self.forget(account.connection)
        if len(self._message_memory):
            self._free_memory(now)
            self._admit()
        self._timer = asyncio.get_running_loop().call_later(TICK, self._tick) if self._accounts else None

    def _free_memory(self, now: float) -> None:
        """Give up incomplete messages for whose memory others have waited too long, the oldest first and a few at a
        time. It stops when half of the limit is free, because younger messages may be late only for lack of memory.
        """
        stale = [
            account
            for account in self._accounts.values()
            if account.kept and now - account.since > STALE and not account.connection.keeps_frames
        ]
        for account in heapq.nsmallest(CUTS, stale, key=lambda one: one.since):
            if self.kept <= self.budget.incomplete // 2:
                return
            self._cut(account, f"a message that was incomplete for {STALE:g} s while others waited for its memory")

    def _cut(self, account: ReadAccount, reason: str) -> None:
        connection = account.connection
        self.cut += 1
        if account.metered is not None:
            try:
                account.metered.on_excess(connection, reason)
            except Exception:
                logger.exception("listener failed in on_excess; its connection is closed with 1008")
        connection.cut(1008, reason)
        self._message_memory.note(account, self._clock(), 0)
        if account.held:
            self._enqueue(account)

    def _admit(self) -> None:
        """Let the connections continue that have waited for memory and get it now."""
        for account in self._message_memory.admit(self._clock()) if len(self._message_memory) else ():
            self._enqueue(account)
