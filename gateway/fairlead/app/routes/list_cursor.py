"""How far a list of agents has come, as the cursor of the next page tells it to the caller.

The cursor is a shard of the index and the last name in it. It must not name an agent that the caller may not see, so
the place of such a caller stays behind the hidden agents until one that is not hidden, or the end of the shard. The
next page looks at them again; a shard has one agent in 64. It is pure.
"""

from __future__ import annotations

from typing import Final

from fairlead.fleet.schema import AgentRow
from fairlead.shards import SHARDS, agent_shard
from fairlead.tenant import local_id


class ListCursor:
    def __init__(self, shard: int, after: str, *, sees_all: bool) -> None:
        self.shard = shard
        self.after = after
        self._sees_all = sees_all
        self.begun: Final = shard, after

    @property
    def moved(self) -> bool:
        return (self.shard, self.after) != self.begun

    @property
    def cursor(self) -> str | None:
        """None at the end of the list."""
        return f"{self.shard}:{local_id(self.after)}" if self.shard < SHARDS else None

    def saw(self, row: AgentRow, visible: bool) -> bool:
        """The list has examined an agent. Returns `visible`."""
        shard = agent_shard(row.agent)
        if visible:
            self.shard, self.after = shard, row.agent
        elif shard != self.shard:
            self.shard, self.after = shard, ""
        return visible

    def page_ended(self, shard: int, after: str) -> None:
        """The list has examined a whole page of the index; `shard` and `after` are where the next one begins."""
        if self._sees_all or not after:
            self.shard, self.after = shard, after
