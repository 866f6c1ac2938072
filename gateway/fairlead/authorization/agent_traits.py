"""What rules look at in an agent: its labels and facts, remembered for a moment.

A caller whose rules ask for labels posts many commands to few agents. With this memory a post needs no further
question to Redis, and a changed label counts within `AGE` seconds on every node, at once on the node that changed it.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from typing import Final

import msgspec

from fairlead.authorization.policy import AgentTraits
from fairlead.fleet.directory import Directory
from fairlead.fleet.schema import AgentRow

AGE: Final = 2.0
"""Seconds."""
AGENTS: Final = 10_000
"""The number of agents remembered, at about 1 KB each with a dozen facts and labels."""

_decode_map = msgspec.json.Decoder(dict[str, str]).decode


class AgentTraitsCache:
    def __init__(self, directory: Directory, size: int = AGENTS) -> None:
        self._directory = directory
        self._size = size
        self._found: OrderedDict[str, tuple[float, AgentTraits]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._found)

    async def find(self, agent: str) -> AgentTraits:
        """The traits of an agent. If it has no row, its labels are unknown, as Redis may have lost the row."""
        now = time.monotonic()
        known = self._found.get(agent)
        if known is not None and now - known[0] <= AGE:
            return known[1]
        row = await self._directory.look_up(agent)
        traits = AgentTraits(agent, None, {}) if row is None else traits_of(row)
        self._found[agent] = now, traits  # the time of the question: what changed after it may be missing
        self._found.move_to_end(agent)
        if len(self._found) > self._size:
            self._found.popitem(last=False)
        return traits

    def forget(self, agent: str) -> None:
        """Ask Redis again next time, because the agent's labels were changed."""
        self._found.pop(agent, None)


def traits_of(row: AgentRow) -> AgentTraits:
    return AgentTraits(row.agent, None if row.labels_lost else _decode_map(row.labels), _decode_map(row.facts))
