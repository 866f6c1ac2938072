"""The read scheduler: how much is read from each link, with a budget for each link and a share of the event loop for
all.

The node makes one, and the connections of its link port share it through their `ConnectionContext`. It accounts only
for connections that were read often or much recently; all others, nearly all, cost nothing. What exceeds a budget is
not lost: the connection is paused until its turn comes, and TCP makes the peer wait. A connection is closed only if its
peer keeps exceeding the rate of messages, or leaves a message incomplete while memory is short.

Four rules, in the order in which they pause a connection:

- **messages, events, bytes**: a token bucket for each. Messages that the peer was asked for do not count.
- **memory**: the incomplete messages of all connections together are bounded (see `message_memory`).
- **turns**: at most `SLICE` frames of a connection are read in one iteration of the event loop, and the rest is read
  for one connection at a time.
- **share**: all turns together get a quarter of the time; the connection that has used the least comes first.

It knows no protocol above RFC 6455: the listener says what an event is, and what the peer was asked for.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from fairlead.carrier.listener import MeteredListener
from fairlead.carrier.reading.account import FramedReader, PausableConnection, ReadAccount, is_ripe
from fairlead.carrier.reading.message_memory import MessageMemory

SLICE: Final = 64
"""Frames that are read of one connection in one turn of the event loop: under a millisecond of heartbeats."""
SHARE: Final = 0.25
"""Of the event loop's time, for reading what is accounted for here. Reading is a quarter of the work that storing
what was read makes, so nobody who is useful comes near it."""
LEEWAY: Final = 0.02
"""Seconds of turns that may be taken at once, after a time without."""
MODEST: Final = 0.002
"""Seconds of reading within a few ticks up to which a connection never waits for the share."""
DEBT: Final = 0.02
"""Seconds for which the share may be used up in advance: beyond it even the modest wait."""
RECEIVING: Final = 0.5e-9
"""Seconds that the transport takes for each byte that it hands over, which is over before anybody can measure
it. Measured on loopback: 0.4."""
TICK: Final = 0.25
"""Seconds between two fillings of the buckets."""
CREDIT: Final = 10.0
"""Seconds' worth of messages and of events that may come at once, after a time without."""
BYTES_CREDIT: Final = 2.0
"""As `CREDIT`, for bytes."""
FRAGMENT: Final = 1024
"""Bytes of a frame from which on it is counted by its bytes alone, so that a message may be sent in fragments."""
PATIENCE: Final = 30.0
"""Seconds for which a peer may go on at the limit of its messages before it is closed."""
STALE: Final = 10.0
"""Seconds after which an incomplete message is given up when others wait for its room."""
CUTS: Final = 8
"""Messages that are given up with one tick: each closes a link, which takes a millisecond in all."""


@dataclass(frozen=True, slots=True)
class ReadBudget:
    """Of each link, a second: `messages` that it was not asked for, `events`, `bytes`. Of all links: bytes of
    incomplete messages."""

    messages: float = 500.0
    events: float = 100.0
    bytes: float = 32 << 20
    incomplete: int = 32 << 20


class ReadScheduler:
    """`held` counts the times that a connection was held, `cut` the connections that were closed."""

    def __init__(self, budget: ReadBudget = ReadBudget(), clock: Callable[[], float] = time.perf_counter) -> None:
        self.budget = budget
        self.held = 0
        self.cut = 0
        self._room = MessageMemory(budget.incomplete)
        self._clock = clock
        self._accounts: dict[PausableConnection, ReadAccount] = {}
        self._turns: list[tuple[float, int, ReadAccount]] = []
        self._numbers = itertools.count()
        self._turn: asyncio.Handle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._ticked = 0.0
        self._paid = 0.0
        """Until when the share of the loop is used up."""

    def __len__(self) -> int:
        """Connections that are accounted for."""
        return len(self._accounts)

    @property
    def kept(self) -> int:
        """Bytes that the connections which are accounted for keep unread or incomplete."""
        return self._room.kept

    @property
    def waiting(self) -> int:
        """Connections that are held."""
        return sum(account.held for account in self._accounts.values())

    def stop(self) -> None:
        """End all timers. Who is held stays so: its server is over."""
        for handle in (self._turn, self._timer):
            if handle is not None:
                handle.cancel()
        self._turn = self._timer = None

    # -- the connection calls ----------------------------------------------------------------------

    def read(self, connection: FramedReader, data: bytes) -> None:
        """`data` has arrived: read it now, or keep it until the connection's turn."""
        account = self._account(connection)
        now = self._clock()
        ahead = self._paid - now
        self._pay(account, len(data) * RECEIVING, now)
        # A hundred floods must not each have what one may.
        modest = min(MODEST, SHARE * TICK / len(self._accounts))
        if account.held or (ahead > 0 and account.used > modest) or ahead > DEBT:
            connection.keep(data)
            self._room.note(account, now, 0)
            if not account.held:
                self._hold(account)
            return
        self._read(account, connection, data, now)

    def took(self, connection: PausableConnection, frames: int, size: int) -> None:
        """`frames` that nobody asked for, and `size` bytes, have been read already."""
        account = self._account(connection)
        self._count(account, frames, size)
        if account.overdrawn:
            self._hold(account)

    def charge(self, connection: PausableConnection, messages: float, events: int) -> None:
        """What the listener has just been given counts for so much more."""
        account = self._account(connection)
        account.messages -= messages
        account.events -= events
        if account.overdrawn and not account.reading:
            self._hold(account)

    def silence(self, connection: PausableConnection, silent: bool) -> bool:
        """The listener pauses or resumes; False when the connection is not held and may do so by itself."""
        account = self._accounts.get(connection)
        if account is None or not account.held:
            return False
        account.silent = silent
        if not silent and not account.reading:
            self._place(account)
        return True

    def forget(self, connection: PausableConnection) -> None:
        """The connection is lost."""
        account = self._accounts.pop(connection, None)
        if account is not None:
            self._room.forget(account)
            account.held = account.queued = False
            self._admit()

    # -- our own -----------------------------------------------------------------------------------

    def _account(self, connection: PausableConnection) -> ReadAccount:
        account = self._accounts.get(connection)
        if account is None:
            listener = connection.listener
            metered = listener if isinstance(listener, MeteredListener) else None
            budget = self.budget
            account = self._accounts[connection] = ReadAccount(
                connection, metered, budget.messages * CREDIT, budget.events * CREDIT, budget.bytes * BYTES_CREDIT
            )
            if self._timer is None:
                self._ticked = self._clock()
                self._timer = asyncio.get_running_loop().call_later(TICK, self._tick)
        return account

    def _read(self, account: ReadAccount, connection: FramedReader, data: bytes, now: float) -> None:
        """One slice of the account's connection, and what follows from it."""
        unparsed = connection.unparsed + len(data)
        metered = account.metered
        asked = 0 if metered is None else metered.asked
        account.reading = True
        frames = connection.feed(data, SLICE)
        account.reading = False
        asked = 0 if metered is None else metered.asked - asked
        self._pay(account, self._clock() - now, now)
        self._count(account, frames - asked, unparsed - connection.unparsed)
        self._room.note(account, now, frames)
        if account.held:
            self._place(account)
        elif account.overdrawn or connection.ripe or self._room.crowded(account):
            self._hold(account)
        self._admit()

    def _pay(self, account: ReadAccount, took: float, now: float) -> None:
        self._paid = max(self._paid, now - LEEWAY) + took / SHARE
        account.used += took

    @staticmethod
    def _count(account: ReadAccount, frames: int, size: int) -> None:
        account.messages -= max(0, frames - size // FRAGMENT)
        account.bytes -= size

    def _hold(self, account: ReadAccount) -> None:
        if account.held:
            return
        self.held += 1
        account.held = True
        account.silent = account.connection.hold()
        self._place(account)

    def _place(self, account: ReadAccount) -> None:
        """Let a held connection wait for its turn, if there is nothing else that it has to wait for: the next tick
        looks again, or whoever lifts the hindrance."""
        if account.queued or not account.held:
            return
        connection = account.connection
        if not connection.closing:  # of one that closes only the peer's close frame is awaited
            if account.overdrawn or (account.silent and connection.ripe):
                return
            if not connection.ripe and self._room.crowded(account):
                self._room.wait(account)
                return
        account.queued = True
        heapq.heappush(self._turns, (account.used, next(self._numbers), account))
        if self._turn is None:
            self._arm()

    def _arm(self) -> None:
        loop, delay = asyncio.get_running_loop(), self._paid - self._clock()
        # uvloop knows milliseconds only; less is made up for by the time of the next turn.
        self._turn = loop.call_soon(self._take_turn) if delay < 0.001 else loop.call_later(delay, self._take_turn)

    def _take_turn(self) -> None:
        self._turn = None
        while self._turns:
            account = heapq.heappop(self._turns)[2]
            if not account.queued:
                continue  # lost meanwhile
            account.queued = False
            connection = account.connection
            if is_ripe(connection):
                if account.silent and not connection.closing:
                    continue  # the listener has paused meanwhile
                self._read(account, connection, b"", self._clock())
                break
            if self._room.crowded(account) and not connection.closing:
                self._room.wait(account)  # what was left has been used meanwhile
                continue
            account.held = False
            connection.release(account.silent)
            if account.kept:
                break  # much may come of it at once
        if self._turns and self._turn is None:
            self._arm()

    def _tick(self) -> None:
        now = self._clock()
        passed, self._ticked = now - self._ticked, now
        budget = self.budget
        for account in tuple(self._accounts.values()):
            account.used /= 2
            account.strained = account.strained + min(passed, 2 * TICK) if account.messages < SLICE else 0.0
            account.messages = min(account.messages + budget.messages * passed, budget.messages * CREDIT)
            account.events = min(account.events + budget.events * passed, budget.events * CREDIT)
            account.bytes = min(account.bytes + budget.bytes * passed, budget.bytes * BYTES_CREDIT)
            if account.strained >= PATIENCE and not account.connection.closing:
                self._cut(account, f"more than {budget.messages:g} messages a second for {PATIENCE:g} s")
            elif account.held:
                self._place(account)
            elif not account.kept and account.used < MODEST / 64 and self._full(account):
                self.forget(account.connection)
        if len(self._room):
            self._make_room(now)
            self._admit()
        self._timer = asyncio.get_running_loop().call_later(TICK, self._tick) if self._accounts else None

    def _full(self, account: ReadAccount) -> bool:
        budget = self.budget
        return (
            account.messages >= budget.messages * CREDIT
            and account.events >= budget.events * CREDIT
            and account.bytes >= budget.bytes * BYTES_CREDIT
        )

    def _make_room(self, now: float) -> None:
        """Give up incomplete messages that others have waited for too long, the oldest first and a few at a time, until
        half of the limit is free: whoever came later may only have waited for that room."""
        stale = [
            account
            for account in self._accounts.values()
            if account.kept and now - account.since > STALE and not account.connection.ripe
        ]
        for account in heapq.nsmallest(CUTS, stale, key=lambda one: one.since):
            if self.kept <= self.budget.incomplete // 2:
                return
            self._cut(account, f"a message that was incomplete for {STALE:g} s while others waited for its memory")

    def _cut(self, account: ReadAccount, reason: str) -> None:
        connection = account.connection
        self.cut += 1
        if account.metered is not None:
            account.metered.on_excess(connection, reason)
        connection.cut(1008, reason)
        self._room.note(account, self._clock(), 0)
        if account.held:
            self._place(account)

    def _admit(self) -> None:
        """Whoever has waited for room and gets it now."""
        for account in self._room.admit(self._clock()) if len(self._room) else ():
            self._place(account)
