"""Delivers the events of one sink while this node owns it: takes them as a reader of a group, posts each, tries again.

The keeper starts and stops it. The group remembers the position and what is under way, so another node goes on where
this one ends, and nothing is forgotten: an event is acknowledged when the receiver has accepted it, or when it is among
the dead letters. An event that fails is put off, and others are delivered meanwhile. A driver that is to leave finishes
what is under way first: otherwise the next owner would send it a second time.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from fairlead.errors import BusUnavailable, FairleadError
from fairlead.fleet.events.dead_letters import DeadLetter, DeadLetters
from fairlead.fleet.events.event_groups import PENDING_LIMIT, SINK_MARK, GroupTerms
from fairlead.fleet.events.event_log import BEGINNING, Position, StoredEvent
from fairlead.routing.events.group_reader import GroupReader, GroupReaders, ReaderTerms, TakenEvent
from fairlead.routing.sinks.sinks_file import Sink
from fairlead.routing.sinks.webhook import body_of, headers_of, message_id, pause_after
from fairlead.routing.sinks.webhook_client import SendOutcome, WebhookClient
from fairlead.store.errors import StoreError

logger = logging.getLogger(__name__)

LOOK: Final = 0.5
"""Seconds between two looks for events when there were none."""
AT_ONCE: Final = 16
"""Events under way to one sink."""
MARGIN_MS: Final = 30_000
"""How much longer than its timeout an event stays with its reader; another node takes those of a dead one then."""
OWNER: Final = "sink"
"""The owner of the groups of sinks, which is no identity of a caller."""
REFUSED_FOR: Final = 30.0
"""Seconds of pauses, at most, for an event that the receiver itself refuses: three attempts. An agent could otherwise
stop a sink for a day with as many such events as may wait."""
ERROR_EVERY: Final = 1.0
"""Seconds between two errors that are noted."""


class Traits(Protocol):
    @property
    def labels(self) -> Mapping[str, str] | None: ...
    @property
    def facts(self) -> Mapping[str, str]: ...


TraitsOf = Callable[[str], Awaitable[Traits]]


@dataclass(slots=True)
class SinkCounts:
    """What was done for each sink on this node, by its name."""

    delivered: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    dead: Counter[str] = field(default_factory=Counter)
    lost: Counter[str] = field(default_factory=Counter)


class SinkDriver:
    def __init__(
        self, sink: Sink, readers: GroupReaders, letters: DeadLetters, traits: TraitsOf, counts: SinkCounts,
        now: Callable[[], int],
    ) -> None:  # fmt: skip
        self.sink = sink
        self._readers = readers
        self._letters = letters
        self._traits = traits
        self._counts = counts
        self._now = now
        self._client = WebhookClient(sink)
        self._reader = readers.reader(sink.tenant, group_of(sink), reader_terms(sink))
        self._noted = 0.0
        self._leaving = asyncio.Event()

    def leave(self) -> None:
        """Have `run` return when what is under way is dealt with, within the timeout of the sink."""
        self._leaving.set()

    async def run(self) -> None:
        """Deliver until it is to leave, or is cancelled."""
        sink = self.sink
        try:
            while not self._leaving.is_set():
                try:
                    await self._readers.open(sink.tenant, group_of(sink), OWNER, terms_of(sink), BEGINNING)
                    while not self._leaving.is_set():
                        if not await self.step(self._reader):
                            await self._pause(LOOK * random.uniform(0.8, 1.0))
                except (BusUnavailable, StoreError) as e:
                    logger.debug("sink %s waits for Redis: %s", sink.name, e)
                except FairleadError as e:
                    logger.info("sink %s begins anew: %s", sink.name, e.message)
                await self._pause(random.uniform(0.5, 1.0))
        finally:
            await self._client.aclose()

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._leaving.wait()

    async def step(self, reader: GroupReader) -> bool:
        """Deliver some events at once. Returns whether there may be more."""
        update, more = await reader.step(self._chosen)
        if update.lost:
            self._counts.lost[self.sink.name] += len(update.lost)
            logger.warning(
                "events before %s were removed before sink %s had delivered them", update.lost[-1], self.sink.name
            )
        done = await asyncio.gather(*(self._deliver(one) for one in update.taken), return_exceptions=True)
        if accepted := [one for one in done if isinstance(one, Position)]:
            await self._readers.groups.acknowledge(self.sink.tenant, group_of(self.sink), OWNER, accepted)
        for one in done:
            if isinstance(one, BaseException):
                raise one
        return more

    async def _deliver(self, taken: TakenEvent) -> Position | None:
        """The position of the event if it is dealt with; None if it is tried again."""
        outcome = await send_event(self._client, self.sink, taken.event)
        name = self.sink.name
        if not outcome.error:
            self._counts.delivered[name] += 1
            return taken.event.position
        self._counts.failed[name] += 1
        await self._note(outcome.error)
        retry_for = min(self.sink.retry_for, REFUSED_FOR) if outcome.refused else self.sink.retry_for
        pause = pause_after(taken.attempt, retry_for, random.random(), outcome.pause)
        if pause is None or outcome.last:
            await self._bury(taken, outcome.error)
            return taken.event.position
        due = self._now() + int(pause * 1000)
        await self._readers.groups.postpone(self.sink.tenant, group_of(self.sink), taken.event.position, due)
        return None

    async def _bury(self, taken: TakenEvent, error: str) -> None:
        name = self.sink.name
        removed = await self._letters.add(self.sink.tenant, name, DeadLetter(taken.event, taken.attempt, error))
        self._counts.dead[name] += 1
        logger.warning(
            "sink %s could not deliver event %s of agent %s in %d attempts: it is a dead letter (%s)%s",
            name, taken.event.id, taken.event.agent, taken.attempt, error,
            f"; {removed} older ones made room" if removed else "",
        )  # fmt: skip

    async def _note(self, error: str) -> None:
        if time.monotonic() - self._noted >= ERROR_EVERY:
            self._noted = time.monotonic()
            await self._readers.groups.note_error(self.sink.tenant, group_of(self.sink), error, self._now())

    async def _chosen(self, events: list[StoredEvent]) -> list[StoredEvent]:
        return [event for event in events if await self._fits(event)]

    async def _fits(self, event: StoredEvent) -> bool:
        wanted = self.sink.type
        if wanted and not (event.type.startswith(wanted[:-1]) if wanted.endswith("*") else event.type == wanted):
            return False
        if not self.sink.selector.terms:
            return True
        traits = await self._traits(event.agent)
        return self.sink.selector.matches(traits.labels, traits.facts) is True


async def send_event(client: WebhookClient, sink: Sink, event: StoredEvent) -> SendOutcome:
    """One attempt."""
    body = body_of(event)
    # Receivers compare the time with their own clock, so it is that of this machine and not of Redis.
    return await client.send(body, headers_of(message_id(event), int(time.time()), body, sink.secrets))


def group_of(sink: Sink) -> str:
    return f"{SINK_MARK}{sink.name}"


def reader_terms(sink: Sink) -> ReaderTerms:
    return ReaderTerms(PENDING_LIMIT, int(sink.timeout * 1000) + MARGIN_MS, AT_ONCE)


def terms_of(sink: Sink) -> GroupTerms:
    return GroupTerms("", sink.type, sink.selector_text)
