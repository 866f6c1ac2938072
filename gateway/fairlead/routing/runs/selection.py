"""Chooses the targets of a run: those of a list, or all agents that match a selector and that the caller may use.

Called by the API. A selection is a snapshot: the index has every agent that was ever claimed, whatever moves meanwhile,
so an agent that moves is not missing from it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import aclosing
from typing import Final

import msgspec

from fairlead.errors import InvalidRequest
from fairlead.fleet.directory import NAMES_AT_ONCE, Directory
from fairlead.fleet.schema import AgentRow
from fairlead.fleet.selector import Selector

TARGETS: Final = 100_000
"""Targets of one run."""

_decode_map = msgspec.json.Decoder(dict[str, str]).decode


class Selection(msgspec.Struct, frozen=True):
    """`undecided` counts agents that were left out because the selector asks for labels that were lost."""

    agents: list[str]
    undecided: int = 0


class AgentSelection:
    def __init__(self, directory: Directory) -> None:
        self._directory = directory

    async def rows(self, agents: Sequence[str]) -> list[AgentRow]:
        """The rows of those of `agents` that have one."""
        return await self._directory.look_up_all(agents)

    async def select(self, wanted: Selector, allowed: Callable[[AgentRow], bool] | None) -> Selection:
        """All agents that match and for which `allowed` holds, if it is given. Raises InvalidRequest if there are more
        than TARGETS."""
        found: list[str] = []
        undecided = 0
        async with aclosing(self._directory.index_pages(0, "", NAMES_AT_ONCE)) as pages:
            async for names, _, _ in pages:
                if not wanted.terms and allowed is None:
                    found += names
                else:
                    for row in await self._directory.look_up_all(names):
                        matches = _matches(row, wanted)
                        if matches is not False and (allowed is None or allowed(row)):
                            if matches:
                                found.append(row.agent)
                            else:
                                undecided += 1
                if len(found) > TARGETS:
                    raise InvalidRequest(
                        f"the selector matches more than {TARGETS} agents, the most for one run: expected one that "
                        "matches fewer",
                        field="selector",
                    )
        return Selection(found, undecided)


def _matches(row: AgentRow, wanted: Selector) -> bool | None:
    """None if the agent's lost labels decide it."""
    if not wanted.terms:
        return True
    return wanted.matches(None if row.labels_lost else _decode_map(row.labels), _decode_map(row.facts))
