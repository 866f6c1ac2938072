"""Whose command it is: who posted it, with which method and to which agent. None of that ever changes, so it is
remembered, and following a command or sending it input costs one look at its record."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from fairlead.fleet.command_record import OwnedCommand
from fairlead.fleet.commands import Commands
from fairlead.tenant import tenant_of

COMMANDS: Final = 5_000
"""The number of commands remembered, at about 400 bytes each: those that are followed at a time, and no history."""


class CommandOwners:
    def __init__(self, records: Commands, size: int = COMMANDS) -> None:
        self._records = records
        self._size = size
        self._owners: OrderedDict[str, OwnedCommand] = OrderedDict()

    async def find(self, command: str, tenant: str) -> OwnedCommand | None:
        """None if the tenant has no such command. That of another tenant takes as long as one that there is not."""
        owner = self._owners.get(command)
        if owner is None or tenant_of(owner.agent) != tenant:
            owner = await self._records.owner(command)
            if owner is None or tenant_of(owner.agent) != tenant:
                return None
            self.remember(command, owner)
        return owner

    def remember(self, command: str, owner: OwnedCommand) -> None:
        self._owners[command] = owner
        self._owners.move_to_end(command)
        if len(self._owners) > self._size:
            self._owners.popitem(last=False)
