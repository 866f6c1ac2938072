"""Tells whether Redis has just lost its data, in which case a missing row proves nothing.

Called by the API and by `dispatch` when they find no row of an agent, or have listed agents.
"""

from __future__ import annotations

from fairlead.errors import Rebuilding
from fairlead.fleet.data_epoch import DataEpochs
from fairlead.routing.membership.membership import Membership

REBUILDING = "Redis has lost its data, and the agents are being claimed again"


class DataCheck:
    def __init__(self, data_epochs: DataEpochs, membership: Membership) -> None:
        self._data_epochs = data_epochs
        self._membership = membership

    async def data_lost(self) -> bool:
        """True if Redis has just lost its data, and with it which agents are linked. Raises BusUnavailable."""
        return await self._data_epochs.read() != self._membership.data_epoch or self._membership.rebuilding

    async def check_agent(self) -> None:
        """Raise Rebuilding if an agent may be unknown only because Redis has just lost its data."""
        if await self.data_lost():
            raise Rebuilding(f"{REBUILDING}: try again in some seconds")

    async def check_index(self) -> None:
        """Raise Rebuilding if a list of agents may lack linked ones because Redis has lost its data."""
        if await self._data_epochs.read() != self._membership.data_epoch or self._membership.index_incomplete:
            raise Rebuilding(f"{REBUILDING}: a list would leave some out; try again in some seconds")
