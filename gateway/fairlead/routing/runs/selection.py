"""Chooses the targets of a run: those of a list, or all agents that match a selector and that the caller may use.

Called by the API. A selection is a snapshot: the index has every agent that was ever claimed, and the columns the facts
and labels of each, whatever moves meanwhile, so an agent that moves is not missing from it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import aclosing
from typing import Final

import msgspec

from fairlead.errors import InvalidRequest
from fairlead.fleet.columns.agent_columns import AgentColumns
from fairlead.fleet.directory import NAMES_AT_ONCE, Directory
from fairlead.fleet.schema import AgentRow
from fairlead.fleet.selector import Key, Selector

TARGETS: Final = 100_000
"""Targets of one run."""

_decode_map = msgspec.json.Decoder(dict[str, str]).decode


class Selection(msgspec.Struct, frozen=True):
    """`undecided` counts agents that were left out because the selector asks for labels that were lost. `values` has
    the value of the key that was asked for, for each agent that has it."""

    agents: list[str]
    undecided: int = 0
    values: dict[str, str] = {}


class AgentSelection:
    def __init__(self, directory: Directory, columns: AgentColumns) -> None:
        self._directory = directory
        self._columns = columns

    async def rows(self, agents: Sequence[str]) -> list[AgentRow]:
        """The rows of those of `agents` that have one."""
        return await self._directory.look_up_all(agents)

    async def select(
        self, tenant: str, wanted: Selector, allowed: Callable[[AgentRow], bool] | None, key: Key | None = None
    ) -> Selection:
        """All agents of a tenant that match and for which `allowed` holds, if it is given, with their values of `key`.
        Raises InvalidRequest if there are more than TARGETS."""
        found: list[str] = []
        values: dict[str, str] = {}
        undecided = 0
        async with aclosing(self._columns.pages(0, "", NAMES_AT_ONCE, tenant, wanted)) as pages:
            async for names, _, _ in pages:
                if not wanted.terms and allowed is None and key is None:
                    found += names
                else:
                    rows = await self._directory.look_up_all(names)
                    values |= values_of(key, rows)
                    for row in rows:
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
        return Selection(found, undecided, values)


def values_of(key: Key | None, rows: Sequence[AgentRow]) -> dict[str, str]:
    """The value of a label or fact, for each agent that has it."""
    if key is None:
        return {}
    found = ((row.agent, key.find(_decode_map(row.labels), _decode_map(row.facts))) for row in rows)
    return {agent: value for agent, value in found if value is not None}


def _matches(row: AgentRow, wanted: Selector) -> bool | None:
    """None if the agent's lost labels decide it."""
    if not wanted.terms:
        return True
    return wanted.matches(None if row.labels_lost else _decode_map(row.labels), _decode_map(row.facts))
