"""Schedules in Redis: what they run, when each is due, and how its last start went.

`routing.schedules` calls it; it is the only writer of these keys. A start is noted only if the schedule is still due at
the same time, so that two nodes that both begin it note it once. Raises BusUnavailable if Redis does not answer.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from typing import Final

import msgspec

from fairlead.fleet import schema
from fairlead.fleet.schedules.schedule_record import LastStart, ListedSchedule, Schedule
from fairlead.store.reply import Reply, integer, items, octets, text
from fairlead.store.script import load
from fairlead.store.store import Store

logger = logging.getLogger(__name__)

SCHEDULES_LIMIT: Final = 1_000
"""Schedules of the whole fleet: whoever lists them reads 10 MB at most, and often far less."""
TENANT_LIMIT: Final = SCHEDULES_LIMIT // 4
"""Schedules of one tenant, where there are several."""
PAYLOAD_LIMIT: Final = 8 << 10
"""Bytes of a schedule's payload. Larger ones are contents, which no list reads."""
PUT_SCHEDULE = load("fairlead.fleet.schedules", "scripts/put_schedule")
REMOVE_SCHEDULE = load("fairlead.fleet.schedules", "scripts/remove_schedule")
RECORD_START = load("fairlead.fleet.schedules", "scripts/record_start")

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Schedule).decode
_decode_last = msgspec.msgpack.Decoder(LastStart).decode


def names_key(tenant: str) -> str:
    """The names of a tenant's schedules, by which they are found without reading those of others."""
    return f"{schema.SCHEDULE_NAMES}/{tenant}"


class Schedules:
    def __init__(self, store: Store) -> None:
        self._store = store

    async def put(self, schedule: Schedule, due: int, most: int) -> tuple[str, str]:
        """Write a new schedule. Returns `ok`, or why not: `full` or `tenant` if there are as many as there may be, or
        `most` of this tenant, and `name` with the id of another one of this caller and name."""
        tenant = schedule.terms.tenant
        reply = await self._store.run(
            PUT_SCHEDULE,
            (schema.SCHEDULES, schema.SCHEDULES_DUE, names_key(tenant)),
            (schedule.id, _encode(schedule), due, SCHEDULES_LIMIT, most, _name(schedule)),
        )
        why, *taken = map(text, items(reply))
        return why, "".join(taken)

    async def remove(self, schedule: Schedule) -> None:
        await self._remove(schedule.id, schedule.terms.tenant, _name(schedule))

    async def remove_unreadable(self, id: str, tenant: str) -> None:
        """Remove one of which nobody can say more than that it is the tenant's."""
        await self._remove(id, tenant, await self._name_of(id, tenant))

    async def _remove(self, id: str, tenant: str, name: str) -> None:
        keys = (schema.SCHEDULES, schema.SCHEDULES_DUE, schema.SCHEDULE_STARTS, names_key(tenant))
        await self._store.run(REMOVE_SCHEDULE, keys, (id, name))

    def forget(self, id: str) -> None:
        """Remove what is left of a schedule that was removed: when it is due, and its last start."""
        self._store.write("ZREM", schema.SCHEDULES_DUE, id)
        self._store.write("HDEL", schema.SCHEDULE_STARTS, id)

    async def holds(self, id: str, tenant: str) -> bool:
        """Whether a schedule is the tenant's, also if it cannot be read."""
        return bool(await self._name_of(id, tenant))

    async def _name_of(self, id: str, tenant: str) -> str:
        flat = [text(one) for one in items(await self._store.submit("HGETALL", names_key(tenant), expected=1 << 16))]
        return next((name for name, taken in zip(flat[::2], flat[1::2], strict=True) if taken == id), "")

    async def read(self, id: str) -> Schedule | None:
        """Raises MsgspecError if it cannot be read, such as one of a newer version."""
        reply = await self._store.submit("HGET", schema.SCHEDULES, id)
        return None if reply is None else _decode(octets(reply))

    async def of_tenant(self, tenant: str) -> list[ListedSchedule]:
        """All schedules of a tenant, the oldest first."""
        return await self._listed(items(await self._store.submit("HVALS", names_key(tenant), expected=1 << 16)))

    async def all(self) -> list[ListedSchedule]:
        """Those of all tenants, the oldest first."""
        return await self._listed(items(await self._store.submit("HKEYS", schema.SCHEDULES, expected=1 << 16)))

    async def _listed(self, ids: Sequence[Reply]) -> list[ListedSchedule]:
        """Those that can be read: one that cannot must not hide the others, nor end what looks after them."""
        if not ids:
            return []
        stored = self._store.submit("HMGET", schema.SCHEDULES, *map(octets, ids), expected=1 << 20)
        times = self._store.submit("ZRANGE", schema.SCHEDULES_DUE, 0, -1, "WITHSCORES", expected=1 << 16)
        started = self._store.submit("HMGET", schema.SCHEDULE_STARTS, *map(octets, ids), expected=1 << 16)
        found, due, last = items(await stored), _pairs(items(await times)), items(await started)
        listed = [
            one
            for id, blob, start in zip(map(text, ids), found, last, strict=True)
            if (one := _readable(id, blob, due.get(id, 0), start)) is not None
        ]
        return sorted(listed, key=lambda one: one.schedule.created)

    async def due(self, now: int, most: int) -> dict[str, int]:
        """Up to `most` schedules that are due at the time `now` (ms), and since when."""
        reply = await self._store.submit(
            "ZRANGEBYSCORE", schema.SCHEDULES_DUE, "-inf", now, "WITHSCORES", "LIMIT", 0, most
        )
        return _pairs(items(reply))

    async def advance(self, id: str, due: int, following: int, start: LastStart) -> bool:
        """Note how the start that was due went, and when the schedule is due next. False if another node has."""
        reply = await self._store.run(
            RECORD_START, (schema.SCHEDULES_DUE, schema.SCHEDULE_STARTS), (id, due, following, _encode(start))
        )
        return integer(reply) == 1


def _pairs(flat: Sequence[Reply]) -> dict[str, int]:
    """The reply to a range with scores."""
    return {text(flat[at]): int(float(text(flat[at + 1]))) for at in range(0, len(flat), 2)}


def _readable(id: str, blob: Reply, due: int, start: Reply) -> ListedSchedule | None:
    """The schedule; None if it was removed meanwhile, or cannot be read, such as one of a newer version."""
    if blob is None:
        return None
    try:
        return ListedSchedule(_decode(octets(blob)), due, None if start is None else _decode_last(octets(start)))
    except msgspec.MsgspecError as e:
        logger.warning("schedule %s cannot be read: %s", id, e)
        return None


def _name(schedule: Schedule) -> str:
    """What no other schedule of the tenant may have: the name, which is one of its caller's own."""
    return hashlib.sha256(f"{schedule.terms.subject}\0{schedule.name}".encode()).hexdigest()[:32]
