"""Schedules in Redis: what they run, when each is due, and how its last start went.

`routing.schedules` calls it; it is the only writer of these keys. A start is noted only if the schedule is still due at
the same time, so that two nodes that both begin it note it once. Raises BusUnavailable if Redis does not answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from fairlead.fleet import schema
from fairlead.fleet.schedules.schedule_record import LastStart, ListedSchedule, Schedule
from fairlead.store.reply import Reply, integer, items, octets, table, text
from fairlead.store.script import load
from fairlead.store.store import Store

SCHEDULES_LIMIT: Final = 1_000
"""Schedules of the whole fleet: whoever lists those of one tenant reads all, which are 10 MB at most and often far
less."""
TENANT_LIMIT: Final = SCHEDULES_LIMIT // 4
"""Schedules of one tenant, where there are several."""
PAYLOAD_LIMIT: Final = 8 << 10
"""Bytes of a schedule's payload. Larger ones are contents, which no list reads."""
PUT_SCHEDULE = load("fairlead.fleet.schedules", "scripts/put_schedule")
RECORD_START = load("fairlead.fleet.schedules", "scripts/record_start")

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Schedule).decode
_decode_last = msgspec.msgpack.Decoder(LastStart).decode


class Schedules:
    def __init__(self, store: Store) -> None:
        self._store = store

    async def put(self, schedule: Schedule, due: int) -> bool:
        """Write a new schedule. False if there are as many as there may be."""
        reply = await self._store.run(
            PUT_SCHEDULE,
            (schema.SCHEDULES, schema.SCHEDULES_DUE),
            (schedule.id, _encode(schedule), due, SCHEDULES_LIMIT),
        )
        return integer(reply) == 1

    async def remove(self, id: str) -> None:
        removed = self._store.submit("HDEL", schema.SCHEDULES, id)
        self._store.write("ZREM", schema.SCHEDULES_DUE, id)
        self._store.write("HDEL", schema.SCHEDULE_STARTS, id)
        await removed

    async def read(self, id: str) -> Schedule | None:
        reply = await self._store.submit("HGET", schema.SCHEDULES, id)
        return None if reply is None else _decode(octets(reply))

    async def count(self, tenant: str) -> int:
        """How many schedules a tenant has."""
        return sum(one.schedule.terms.tenant == tenant for one in await self.all())

    async def all(self) -> list[ListedSchedule]:
        """All schedules, the oldest first."""
        stored = self._store.submit("HGETALL", schema.SCHEDULES, expected=1 << 20)
        times = self._store.submit("ZRANGE", schema.SCHEDULES_DUE, 0, -1, "WITHSCORES", expected=1 << 16)
        started = self._store.submit("HGETALL", schema.SCHEDULE_STARTS, expected=1 << 16)
        found, due, last = table(await stored), _pairs(items(await times)), table(await started)
        listed = [
            ListedSchedule(schedule, due.get(schedule.id, 0), _last(last.get(schedule.id.encode())))
            for schedule in map(_decode, found.values())
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


def _last(blob: bytes | None) -> LastStart | None:
    return None if blob is None else _decode_last(blob)
