"""The events of agents in Redis: one stream for each tenant, in the order in which they were stored, of which the
newest are kept.

The recorder adds events, the removal of an agent removes its events, and the event feed reads them. A position in the
stream is the id of a stream entry, which grows from one event to the next. Nothing here knows who may read what.
"""

from __future__ import annotations

import asyncio
import re
from typing import Final, NamedTuple

from fairlead.errors import InvalidRequest
from fairlead.fleet import lua, schema
from fairlead.store.backlog import Priority
from fairlead.store.reply import Reply, integer, items, octets, text
from fairlead.store.store import Store
from fairlead.tenant import tenant_of

EVENTS_A_STEP: Final = 64
"""The number of events that one call examines while Redis serves no other client: 64 MiB of the largest events, 10 KiB
of usual ones."""
EVENTS_DROPPED: Final = "fairlead.events.dropped"
"""The type of the event that takes the place of older ones of an agent that has sent too many (see add_event.lua)."""
_POSITION = re.compile(r"(\d{1,15})-(\d{1,15})\Z", re.ASCII)
EVENTS_LIMIT: Final = 100_000
"""Events of the whole fleet that are kept."""
EVENTS_OF_ONE_AGENT: Final = 8
"""One agent may have an eighth of the events that are kept, and of their bytes."""


class Position(NamedTuple):
    """The id of a stream entry (https://valkey.io/topics/streams-intro/): Redis TIME in ms, and a number that
    distinguishes the entries of one millisecond. BEGINNING is before every event."""

    ms: int
    number: int

    def __str__(self) -> str:
        return f"{self.ms}-{self.number}"

    @classmethod
    def parse(cls, given: str) -> Position:
        """Raises InvalidRequest."""
        found = _POSITION.match(given)
        if found is None:
            raise InvalidRequest(
                f"invalid position {given[:64]!r} in the events: expected the `offset` of an event, such as "
                "1767225600000-0",
                field="after",
            )
        return cls(int(found[1]), int(found[2]))


BEGINNING: Final = Position(0, 0)


class StoredEvent(NamedTuple):
    """`id` is the agent's own, and the same for an event that was stored twice. `at` is when it happened by the agent's
    clock (ms since 1970), 0 if the agent does not say."""

    position: Position
    agent: str
    type: str
    id: str
    at: int
    payload: bytes


class EventPage(NamedTuple):
    """`newest` is the position of the newest event that was ever added, `trimmed` that of the last one that was removed
    for space or lost. `complete` is True if there is nothing after these events yet."""

    events: list[StoredEvent]
    newest: Position
    trimmed: Position
    complete: bool


class EventLog:
    def __init__(self, store: Store) -> None:
        self._store = store

    def add(self, agent: str, kind: str, event: str, at: int, payload: bytes, most_bytes: int) -> asyncio.Future[Reply]:
        """Append one event of an agent; of the events of its tenant, the newest `most_bytes` are kept, and of one agent
        an eighth of that. The reply is how many older events of the agent were removed for this one."""
        tenant, share = tenant_of(agent), EVENTS_OF_ONE_AGENT
        return self._store.run(
            lua.ADD_EVENT, (*event_keys(tenant), _agents_key(tenant)),
            (EVENTS_LIMIT, most_bytes, agent, kind, event, at, payload, EVENTS_LIMIT // share,
             most_bytes // share), priority=Priority.RESULTS,
        )  # fmt: skip

    async def remove(self, agent: str) -> int:
        """Remove all events of an agent. Returns how many there were."""
        removed, after = 0, "-"
        events, events_bytes, _ = event_keys(tenant_of(agent))
        while after:
            reply = await self._store.run(
                lua.REMOVE_EVENTS, (events, events_bytes, _agents_key(tenant_of(agent))), (agent, after, EVENTS_A_STEP),
                priority=Priority.BACKGROUND,
            )  # fmt: skip
            count, last = items(reply)
            removed, after = removed + integer(count), text(last)
        return removed

    async def read(self, tenant: str, after: Position, count: int, size: int) -> EventPage:
        """The events of a tenant after a position: at most `count`, and no more after `size` bytes. Raises
        BusUnavailable."""
        events, _, events_trimmed = event_keys(tenant)
        reply = await self._store.run(
            lua.READ_EVENTS, (events, events_trimmed), (str(after), count, size),
            priority=Priority.BACKGROUND,
        )  # fmt: skip
        newest, trimmed, entries = items(reply)
        found = [parse_entry(entry) for entry in items(entries)]
        last = Position.parse(text(newest))
        gone = text(trimmed)
        complete = not found or found[-1].position >= last
        return EventPage(found, last, Position.parse(gone) if gone else BEGINNING, complete)


def event_keys(tenant: str) -> tuple[str, str, str]:
    """The stream, its bytes, and what was trimmed."""
    if not tenant:
        return schema.EVENTS, schema.EVENTS_BYTES, schema.EVENTS_TRIMMED
    return f"{schema.EVENTS}:{{{tenant}}}", f"fl1:events_bytes:{{{tenant}}}", f"fl1:events_trimmed:{{{tenant}}}"


def _agents_key(tenant: str) -> str:
    """What each agent has of the events."""
    return f"fl1:events_agents:{{{tenant}}}" if tenant else schema.EVENTS_AGENTS


def parse_entry(entry: Reply) -> StoredEvent:
    position, fields = items(entry)
    flat = items(fields)
    at, payload = integer(flat[7]), octets(flat[9])
    return StoredEvent(Position.parse(text(position)), text(flat[1]), text(flat[3]), text(flat[5]), at, payload)
