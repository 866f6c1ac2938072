"""How full Redis is, and what this node therefore refuses.

`routing` runs its loop. Through `FleetStore`, `dispatch` asks whether a new command may be stored, and the recorder how
many bytes of events may be kept. What was accepted before always goes on: heartbeats, claims, results, ends and
cancellations are written by scripts that Redis runs even when its memory is full. So a full Redis costs new commands,
and never the fleet.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Mapping
from enum import IntEnum

from fairlead.errors import BusUnavailable, NotConfirmed
from fairlead.fleet.schema import agent_key
from fairlead.routing.store_disk import StoreDisk
from fairlead.store.answer import answers_or_errors
from fairlead.store.backlog import Priority
from fairlead.store.errors import store_full
from fairlead.store.reply import text
from fairlead.store.store import Store

logger = logging.getLogger(__name__)

LOW_SHARE = 0.80
"""The share of the limit from which on commands with a large payload are refused."""
FULL_SHARE = 0.90
"""The share from which on all new commands are refused. The rest is for what was accepted before."""
MARGIN = 0.02
"""How far the share must fall below a threshold before more is accepted again, so that answers do not alternate."""
LARGE_PAYLOAD = 4 * 1024
"""Bytes of a payload that is not accepted when memory is low."""
INFO_BYTES = 4_096
PERIOD, SOON = 5.0, 1.0
"""Seconds between two looks while memory is sufficient, and while half of it or more is used."""
EVENTS_SHARE = 0.05
"""The share of the limit that the events of the fleet may use."""
RESULTS_SHARE = 0.4
"""The share of the limit that the results of ended commands may use: half of what may be used before anything is
refused."""
EVENTS_BYTES = 256 * 1024 * 1024
"""Bytes of events at most, also when Redis has no limit."""


class MemoryLevel(IntEnum):
    SUFFICIENT = 0
    LOW = 1
    FULL = 2


def next_level(level: MemoryLevel, share: float) -> MemoryLevel:
    """The level when this share of the limit is used, after `level`."""
    found = MemoryLevel.SUFFICIENT
    for candidate, least in ((MemoryLevel.LOW, LOW_SHARE), (MemoryLevel.FULL, FULL_SHARE)):
        if share >= (least - MARGIN if level >= candidate else least):
            found = candidate
    return found


class StoreMemory:
    def __init__(self, store: Store, limit: int) -> None:
        """`limit` is in bytes; 0 for the `maxmemory` of the server, if it has one."""
        self._store = store
        self._setting = limit
        self.limit = limit
        """In bytes; 0 if there is none, and then nothing is refused."""
        self.used = 0
        """In bytes, as the server compares it with its `maxmemory`."""
        self.level = MemoryLevel.SUFFICIENT
        self._servers = 1
        self._address = store.address
        """Of the server that these describe."""
        self.refused = 0
        """Commands so far."""
        self.disk = StoreDisk()

    @property
    def share(self) -> float:
        """The used share of the limit; 0 without a limit."""
        return self.used / self.limit if self.limit else 0.0

    @property
    def problem(self) -> str:
        """Why not everything is accepted now; "" if it is."""
        if self.level is MemoryLevel.SUFFICIENT:
            return ""
        refused = "new commands" if self.level is MemoryLevel.FULL else f"commands of more than {LARGE_PAYLOAD} bytes"
        return (
            f"Redis at {self._address} is nearly full: it uses {self.share:.0%} of its {self.limit >> 20} MiB, and "
            f"{refused} are refused"
        )

    @property
    def events_bytes(self) -> int:
        """How many bytes of events Redis may hold."""
        return min(EVENTS_BYTES, int(self.limit * EVENTS_SHARE)) if self.limit else EVENTS_BYTES

    @property
    def results_bytes(self) -> int:
        """How many bytes of results of ended commands the fleet may keep; 0 if Redis has no limit."""
        return int(self.limit * RESULTS_SHARE) * self._servers

    async def run(self) -> None:
        while True:
            try:
                await self.refresh()
            except BusUnavailable as e:
                logger.debug("the memory of Redis is not known: %s", e)
            await asyncio.sleep((SOON if self.share >= 0.5 else PERIOD) * random.uniform(0.75, 1.25))

    async def refresh(self) -> None:
        """Ask Redis how much memory it uses, and whether it can write to its disk; of the primaries of a Cluster, the
        fullest one counts. Raises BusUnavailable if none answers."""
        replies = self._store.submit_to_each(
            "INFO", "memory", "persistence", priority=Priority.CONTROL, expected=INFO_BYTES
        )
        answers = await answers_or_errors(replies.values())
        found = {
            address: dict(line.split(":", 1) for line in text(reply).splitlines() if ":" in line)
            for address, reply in zip(replies, answers, strict=True)
            if not isinstance(reply, Exception)
        }
        if not found:
            raise next((e for e in answers if isinstance(e, Exception)), self._store.last_error)
        self._servers = len(replies)
        self.disk.note(found)
        sizes = [(*self._size(info), address) for address, info in found.items()]
        self.used, self.limit, self._address = max(sizes, key=lambda one: one[0] / one[1] if one[1] else 0.0)
        self._set_level(next_level(self.level, self.share))

    def _size(self, info: Mapping[str, str]) -> tuple[int, int]:
        """What a server uses, and its limit."""
        # Buffers of replicas and of the append-only file do not count for maxmemory.
        used = int(info["used_memory"]) - int(info.get("mem_not_counted_for_evict", 0))
        return used, min(filter(None, (self._setting, int(info.get("maxmemory", 0)))), default=0)

    def _set_level(self, level: MemoryLevel) -> None:
        was, self.level = self.level, level
        self._store.low_memory = level >= MemoryLevel.LOW
        if level > was:
            what = "new commands" if level is MemoryLevel.FULL else f"commands with more than {LARGE_PAYLOAD} bytes"
            logger.warning(
                "Redis at %s is nearly full: it uses %.0f %% of its %d MiB; %s are refused with store_full until "
                "results have expired, or until it has more memory",
                self._address, self.share * 100, self.limit >> 20, what,
            )  # fmt: skip
        elif level < was and level is MemoryLevel.SUFFICIENT:
            logger.info("Redis at %s has enough memory again: %.0f %% are used", self._address, self.share * 100)

    def check_command(self, payload: int, agent: str = "") -> None:
        """Raises StoreFull if a new command with so many bytes of payload is not accepted now, and NotConfirmed if what
        is accepted now might be lost. It is for `agent`, "" for agents on several servers."""
        why = self._store.unconfirmed
        if why and agent:
            why = self._store.unconfirmed_at(agent_key(agent))
        if why:
            raise NotConfirmed(
                f"the command was not accepted, because it might be lost: {why}, as the setting durability demands; "
                "it can be posted again once a replica, or the disk, keeps up"
            )
        if self.level is MemoryLevel.SUFFICIENT or (self.level is MemoryLevel.LOW and payload <= LARGE_PAYLOAD):
            return
        self.refused += 1
        used = f"Redis uses {self.share:.0%} of its {self.limit >> 20} MiB"
        if self.level is MemoryLevel.LOW:
            used += f", and the command has {payload} bytes, of which {LARGE_PAYLOAD} are accepted now"
        raise store_full(used)
