"""Counts the agents that match a selector and that the caller may see, for lists of agents.

Columns in Redis give most counts. What they cannot decide, such as a state, a right that depends on ids, or labels that
were lost, is read row by row, in turns with the lists of this node.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Final

import msgspec

from fairlead.app.routes.list_scheduler import ListScheduler
from fairlead.authorization.policy import Verb
from fairlead.authorization.subject import Subject
from fairlead.errors import Unavailable
from fairlead.fleet.directory import NAMES_AT_ONCE
from fairlead.fleet.node_table import Presence
from fairlead.fleet.schema import AgentRow
from fairlead.fleet.selector import Selector
from fairlead.node import Node

COUNT_TIME: Final = 5.0
"""Seconds that a count may take, as long as a page."""
SLICE: Final = 32
"""As many rows as a list reads in one turn."""

_decode_map = msgspec.json.Decoder(dict[str, str]).decode


class AgentCounter:
    def __init__(self, node: Node, scheduler: ListScheduler) -> None:
        self._directory = node.directory
        self._columns = node.columns
        self._membership = node.membership
        self._authorizer = node.authorizer
        self._scheduler = scheduler

    async def count(self, subject: Subject, wanted: Selector, state: Presence | None) -> int:
        """Raises Unavailable if it takes too long."""

        def counts(row: AgentRow) -> bool:
            return (
                self._authorizer.allows_on_row(subject, Verb.VIEW, row)
                and wanted.matches(None if row.labels_lost else _decode_map(row.labels), _decode_map(row.facts)) is True
                and state in (None, self._membership.table.presence(row, self._membership.now())[0])
            )

        among = self._authorizer.visible(subject)
        try:
            async with asyncio.timeout(COUNT_TIME), self._scheduler.place():
                if state is not None or among is None:
                    return await self._rows(self._names(subject.tenant, wanted), counts)
                found = 0
                async with aclosing(self._columns.counts(subject.tenant, wanted, among)) as parts:
                    async for part in parts:
                        found += part.sure + await self._rows(_slices(part.open), counts)
                return found
        except TimeoutError as e:
            raise Unavailable(
                f"the agents could not be counted within {COUNT_TIME:g} s: this one has to read their rows, because of "
                "a state, a rule for ids or a key that is in no column; count with another selector, or list the agents"
            ) from e

    async def _rows(self, names: AsyncIterator[list[str]], counts: Callable[[AgentRow], bool]) -> int:
        found = 0
        async for some in names:
            async with self._scheduler.turn():
                found += sum(map(counts, await self._directory.look_up_all(some)))
        return found

    async def _names(self, tenant: str, wanted: Selector) -> AsyncIterator[list[str]]:
        async with aclosing(self._columns.pages(0, "", NAMES_AT_ONCE, tenant, wanted)) as pages:
            async for names, _, _ in pages:
                async for some in _slices(names):
                    yield some


async def _slices(names: list[str]) -> AsyncIterator[list[str]]:
    for at in range(0, len(names), SLICE):
        yield names[at : at + SLICE]
