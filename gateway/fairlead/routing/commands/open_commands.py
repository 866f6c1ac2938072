"""Lists the commands that have not ended: of one agent, or of all of them, page by page.

Called by the API. The deadline queue has every open command, so the list costs nothing while nobody asks for it.
Commands that have ended are found by their ids alone.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from fairlead.fleet.command_record import CommandRecord
from fairlead.routing.fleet_store import FleetStore
from fairlead.shards import SHARDS
from fairlead.store.answer import map_bounded
from fairlead.tenant import tenant_of

EXAMINED: Final = 2_000
"""Commands that are looked at for one page."""
AT_ONCE: Final = 64

Shown = Callable[[CommandRecord], Awaitable[bool]]
"""Whether a command belongs to the list."""


class OpenCommands:
    def __init__(self, fleet: FleetStore) -> None:
        self._records = fleet.records
        self._deadlines = fleet.deadlines
        self._directory = fleet.directory

    async def of_agent(self, agent: str, shown: Shown) -> list[CommandRecord]:
        return await self._read(await self._directory.open_commands(agent), shown)

    async def page(
        self, tenant: str, shard: int, cursor: int, count: int, shown: Shown
    ) -> tuple[list[CommandRecord], tuple[int, int] | None]:
        """Open commands of a tenant from a place on, until there are `count` or a few more, or many were looked at; and
        the place of the next page, None after the last one."""
        found: list[CommandRecord] = []
        examined = 0
        while shard < SHARDS and len(found) < count and examined < EXAMINED:
            cursor, members = await self._deadlines.scan(shard, cursor, count)
            examined += len(members)
            found += await self._read([command for command, agent in members if tenant_of(agent) == tenant], shown)
            if not cursor:
                shard += 1
        return found, (shard, cursor) if shard < SHARDS else None

    async def _read(self, commands: Sequence[str], shown: Shown) -> list[CommandRecord]:
        found = []
        async for _, record in map_bounded(self._records.look_up, commands, AT_ONCE):
            if record is not None and not record.targets[0].state.over and await shown(record):
                found.append(record)
        return found
