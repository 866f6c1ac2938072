"""The revision whose nodes take new links while a rollout replaces the nodes of another one.

The operator writes it in every pass of a rollout, and every node reads it with its heartbeat. A node of another
revision then leaves its Service and keeps its links, so that an agent that has to move never lands on a node that must
move it again. What is written expires by itself: when the operator dies, all nodes are ready again. Raises
BusUnavailable if Redis does not answer.
"""

from __future__ import annotations

from dataclasses import dataclass

from fairlead.fleet import schema
from fairlead.store.backlog import Priority
from fairlead.store.reply import integer, items, text
from fairlead.store.store import Store


@dataclass(frozen=True, slots=True)
class PreferredRevision:
    """`name` is preferred until `until` (Redis TIME in ms)."""

    name: str = ""
    until: int = 0

    def excludes(self, revision: str, now: int) -> bool:
        """Whether a node of `revision` should take no new links at `now` (Redis TIME in ms). A node without a revision
        is never excluded."""
        return bool(self.name and revision) and self.name != revision and now < self.until


class PreferredRevisions:
    def __init__(self, store: Store) -> None:
        self._store = store

    async def read(self) -> PreferredRevision:
        reply = await self._store.submit("HMGET", schema.REVISION, "name", "until", priority=Priority.CONTROL)
        name, until = items(reply)
        return PreferredRevision(text(name), integer(until)) if name and until else PreferredRevision()

    async def write(self, preferred: PreferredRevision) -> None:
        fields = ("name", preferred.name, "until", preferred.until)
        await self._store.write("HSET", schema.REVISION, *fields, priority=Priority.CONTROL)
