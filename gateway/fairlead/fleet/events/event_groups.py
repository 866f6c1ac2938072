"""Groups of readers in Redis: how far each group has read the events of its tenant, and which it has not acknowledged.

`routing.events` calls it. A group is a position in the stream and the events before it that some reader has and has not
acknowledged, each with a time from which on another reader gets it. All keys of a tenant's groups share the hash tag of
its events, so that one script moves a position and takes the events before it. Nothing here knows who may read what.
Raises BusUnavailable if Redis does not answer.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from fairlead.errors import InvalidRequest
from fairlead.fleet import schema
from fairlead.fleet.events.event_log import BEGINNING, Position, StoredEvent, event_keys, parse_entry
from fairlead.store.backlog import Priority
from fairlead.store.reply import Reply, integer, items, octets, text
from fairlead.store.script import load
from fairlead.store.store import Store
from fairlead.tenant import shown_tenant

GROUPS_LIMIT: Final = 64
"""Groups of one tenant."""
SINKS_LIMIT: Final = 32
"""Groups besides, for sinks."""
PENDING_LIMIT: Final = 1_000
"""Events that one group has taken and not acknowledged, at some 150 bytes of Redis each."""
LIFE_MS: Final = 7 * 24 * 3600_000
"""A group that nobody reads or acknowledges for this long is removed."""
SINK_MARK: Final = "~"
"""What the name of the group of a sink begins with; no caller's does."""
NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z", re.ASCII)
NAME_RULE: Final = "1 to 64 characters of A-Z a-z 0-9 . _ -, the first a letter or digit"

_PACKAGE = "fairlead.fleet.events"
OPEN, TAKE_DUE = load(_PACKAGE, "scripts/open_event_group"), load(_PACKAGE, "scripts/take_due_events")
TAKE, ACKNOWLEDGE = load(_PACKAGE, "scripts/take_events"), load(_PACKAGE, "scripts/acknowledge_events")
EVENT_TOTAL = load(_PACKAGE, "scripts/event_total")


class GroupTerms(msgspec.Struct, frozen=True, omit_defaults=True):
    """Which events a group reads: `agent` is a qualified id, all are empty for every event."""

    agent: str = ""
    type: str = ""
    selector: str = ""


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(GroupTerms).decode


class OpenedGroup(NamedTuple):
    owner: str
    terms: GroupTerms


class DueEvents(NamedTuple):
    """`at` is the position of the group, and `room` how many more events the reader may take. `events` were due again,
    each with the number of this attempt; those at `lost` were removed before they were acknowledged."""

    at: Position
    room: int
    events: list[tuple[int, StoredEvent]]
    lost: list[Position]


class GroupStatus(NamedTuple):
    """One group as lists show it. `lag` counts events after its position that are kept, at most: those that are not for
    this group are among them. Times are ms, 0 for never; `lost` is BEGINNING if no event was lost."""

    name: str
    owner: str
    terms: GroupTerms
    at: Position
    pending: int
    lag: int
    lost: Position
    lost_at: int
    began: int
    used: int
    error: str = ""
    error_at: int = 0
    """What `note_error` has noted last."""


def check_group_name(given: str) -> str:
    """Raises InvalidRequest."""
    if not NAME.match(given):
        raise InvalidRequest(f"invalid group {given[:80]!r}: expected {NAME_RULE}", field="group")
    return given


class EventGroups:
    def __init__(self, store: Store) -> None:
        self._store = store

    async def open(self, tenant: str, name: str, owner: str, terms: GroupTerms, at: Position) -> OpenedGroup | None:
        """The group, which is made if there is none, at the position `at`; None if the tenant has too many."""
        groups, group, pending = _keys(tenant, name)
        most = GROUPS_LIMIT + SINKS_LIMIT if name.startswith(SINK_MARK) else GROUPS_LIMIT
        reply = await self._store.run(
            OPEN, (groups, group, pending, event_keys(tenant)[0]),
            (name, owner, _encode(terms), str(at), most, LIFE_MS),
        )  # fmt: skip
        answer = items(reply)
        if text(answer[0]) == "full":
            return None
        return OpenedGroup(text(answer[1]), _decode(octets(answer[2])))

    async def take_due(
        self, tenant: str, name: str, reader: str, window: int, due_ms: int, batch: int, size: int
    ) -> DueEvents | None:
        """Give the reader what others have not acknowledged in time, as far as it has fewer than `window` events,
        and at most `batch` of them; None if there is no such group."""
        groups, group, pending = _keys(tenant, name)
        events, _, trimmed = event_keys(tenant)
        reply = await self._store.run(
            TAKE_DUE, (group, pending, groups, events, trimmed),
            (name, reader, window, PENDING_LIMIT, due_ms, LIFE_MS, batch, size), priority=Priority.BACKGROUND,
        )  # fmt: skip
        answer = items(reply)
        if text(answer[0]) == "gone":
            return None
        taken = [(integer(one[0]), parse_entry(one[1])) for one in map(items, items(answer[3]))]
        lost = [Position.parse(text(one)) for one in items(answer[4])]
        return DueEvents(Position.parse(text(answer[1])), integer(answer[2]), taken, lost)

    async def take(
        self, tenant: str, name: str, reader: str, step: tuple[Position, Position], count: int, due_ms: int,
        taken: Sequence[Position] = (), *, lost: bool = False,
    ) -> str:  # fmt: skip
        """Move the group from the first position of `step` to the second, with `count` events between them, of which
        the reader takes some; with `lost`, they were removed before. Returns ok, moved, full or gone."""
        _, group, pending = _keys(tenant, name)
        before, after = step
        reply = await self._store.run(
            TAKE, (group, pending, event_keys(tenant)[0]),
            (reader, str(before), str(after), count, due_ms, PENDING_LIMIT, str(after) if lost else "",
             *map(str, taken)), priority=Priority.BACKGROUND,
        )  # fmt: skip
        return text(reply)

    async def acknowledge(self, tenant: str, name: str, owner: str, positions: Sequence[Position]) -> int | str:
        """How many of these events were pending and are not any more; gone if there is no such group, owner if it is
        not that of `owner` ("" for any)."""
        _, group, pending = _keys(tenant, name)
        answer = items(await self._store.run(ACKNOWLEDGE, (group, pending), (owner, *map(str, positions))))
        return integer(answer[1]) if text(answer[0]) == "ok" else text(answer[0])

    def postpone(self, tenant: str, name: str, position: Position, due: int) -> asyncio.Future[Reply]:
        """Have an event that is pending taken again at the time `due` (ms), and not before."""
        pending = _keys(tenant, name)[2]
        return self._store.submit("ZADD", pending, "XX", due, str(position), priority=Priority.RESULTS)

    def note_error(self, tenant: str, name: str, error: str, now: int) -> asyncio.Future[Reply]:
        """Note what has kept an event from being dealt with, for lists."""
        group = _keys(tenant, name)[1]
        return self._store.submit("HSET", group, "error", error, "error_at", now, priority=Priority.RESULTS)

    async def remove(self, tenant: str, name: str) -> None:
        groups, group, pending = _keys(tenant, name)
        await asyncio.gather(
            self._store.submit("DEL", group), self._store.submit("DEL", pending),
            self._store.submit("ZREM", groups, name),
        )  # fmt: skip

    async def find(self, tenant: str, name: str) -> OpenedGroup | None:
        _, group, _ = _keys(tenant, name)
        owner, terms = items(await self._store.submit("HMGET", group, "owner", "terms"))
        return None if owner is None else OpenedGroup(text(owner), _decode(octets(terms)))

    async def list(self, tenant: str) -> list[GroupStatus]:
        """All groups of a tenant, ordered by name."""
        events, background = event_keys(tenant)[0], Priority.BACKGROUND
        reply = await self._store.submit("ZRANGE", key_beside_events("fl1:event_groups", tenant), 0, -1, "WITHSCORES",
                                         priority=background)  # fmt: skip
        flat = items(reply)
        used = {text(flat[i]): int(float(octets(flat[i + 1]))) for i in range(0, len(flat), 2)}
        if not used:
            return []
        names = sorted(used)
        kept = self._store.submit("XLEN", events, priority=background)
        added = self._store.run(EVENT_TOTAL, (events,), (), priority=background)
        fields = "owner", "terms", "at", "read", "lost", "lost_at", "began", "error", "error_at"
        keys = [_keys(tenant, name) for name in names]
        rows = self._store.submit_each([("HMGET", group, *fields) for _, group, _ in keys], priority=background)
        counts = self._store.submit_each([("ZCARD", pending) for _, _, pending in keys], priority=background)
        most, total = integer(await kept), integer(await added)
        found = []
        for name, row, pending in zip(names, await rows, await counts, strict=True):
            if isinstance(row, Exception) or isinstance(pending, Exception) or items(row)[0] is None:
                continue
            found.append(_status(name, items(row), integer(pending), (total, most), used[name]))
        return found


def _status(name: str, row: list[Reply], pending: int, stream: tuple[int, int], used: int) -> GroupStatus:
    owner, terms, at, read, lost, lost_at, began, error, error_at = row
    added, kept = stream
    return GroupStatus(
        name, text(owner), _decode(octets(terms)), Position.parse(text(at)), pending,
        max(min(added - integer(read or 0), kept), 0), Position.parse(text(lost)) if lost else BEGINNING,
        integer(lost_at or 0), integer(began or 0), used, text(error or b""), integer(error_at or 0),
    )  # fmt: skip


def key_beside_events(kind: str, tenant: str) -> str:
    """A key beside the events of a tenant, which has their hash tag."""
    return f"{kind}:{{{tenant or schema.EVENTS}}}"


def _keys(tenant: str, name: str) -> tuple[str, str, str]:
    """The index of groups, a group, and what is pending in it."""
    group, pending = key_beside_events("fl1:event_group", tenant), key_beside_events("fl1:event_pending", tenant)
    return key_beside_events("fl1:event_groups", tenant), f"{group}:{name}", f"{pending}:{name}"


def shown_group(tenant: str, name: str) -> str:
    """How metrics name a group of a tenant."""
    return f"{shown_tenant(tenant)}/{name}" if tenant else name
