"""What waits while it is not certain that Redis has all that the nodes have told: from each new connection on, until
the server is known to be the same, or all nodes have said again what they know.

It is one gate for each server, which in a Cluster is each primary: only what relies on the keys of that server waits.
`Recovery` closes and opens them. The recorder waits until this node has said its part, since what an agent sends now
follows on what it sent before. Deliveries, cancels, reads of records and the sweeper wait for all nodes: a record that
has gone back to `queued` must neither be delivered nor be told. Without a failover nothing waits, and nothing is asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Final

from fairlead.errors import BusUnavailable
from fairlead.fleet.schema import agent_key, cmd_key

PATIENCE: Final = 5.0
"""Seconds that a caller waits: as long as a post waits for Redis."""


class _ClosedGate:
    """The gate of one server while it is closed."""

    __slots__ = ("said", "settled", "since")

    def __init__(self, since: int) -> None:
        self.since = since
        """The fleet's time (ms) at which it closed: commands accepted later cannot be among those that were lost."""
        self.said = asyncio.Event()
        self.settled = asyncio.Event()


class FailoverGate:
    def __init__(self, owner: Callable[[str], str], owners: Callable[[], Collection[str]]) -> None:
        """The functions of the store that name the server of a key, and all servers."""
        self._owner = owner
        self._owners = owners
        self._gates: dict[str, _ClosedGate] = {}
        """Those that are closed, by the names of their servers."""
        self.closed = False
        """True while something waits."""

    def close(self, owner: str, now: int) -> None:
        """A connection to this server is new, or it is another one. `now` is the fleet's time (ms)."""
        gate = self._gates.setdefault(owner, _ClosedGate(now))
        gate.said.clear()
        gate.settled.clear()
        self.closed = True

    def is_closed(self, owner: str) -> bool:
        return owner in self._gates

    def closed_for(self, key: str) -> bool:
        """Whether what relies on this key waits."""
        return bool(self._gates) and bool(self._gates_of(key))

    def said(self, owner: str) -> None:
        """This node has said again to this server what it knows."""
        if owner in self._gates:
            self._gates[owner].said.set()

    def open(self, owner: str) -> None:
        """This server has what the nodes know."""
        gate = self._gates.pop(owner, None)
        if gate is not None:
            gate.said.set()
            gate.settled.set()
        self.closed = bool(self._gates)

    async def wait_said(self, agent: str) -> None:
        """Wait until this node has said again what it knows of this agent's commands. Raises BusUnavailable if that
        takes too long."""
        if self.closed:
            await _wait([gate.said for gate in self._gates_of(agent_key(agent))])

    async def wait_settled(self, command: str) -> None:
        """Wait until Redis has what all nodes know of a command, unless it was accepted since the gate closed. Raises
        BusUnavailable if that takes too long."""
        if self.closed:
            gates = self._gates_of(cmd_key(command))
            await _wait([gate.settled for gate in gates if _accepted_ms(command) <= gate.since])

    async def wait_settled_for(self, *keys: str) -> None:
        """Wait until Redis has what all nodes know of what these keys have. Raises BusUnavailable if that takes too
        long."""
        if self.closed:
            await _wait([gate.settled for key in keys for gate in self._gates_of(key)])

    def _gates_of(self, key: str) -> list[_ClosedGate]:
        """The closed gates that concern a key. A server that has no keys yet may be about to get any."""
        owner, owners = self._owner(key), self._owners()
        return [gate for name, gate in self._gates.items() if name == owner or name not in owners]


async def _wait(events: list[asyncio.Event]) -> None:
    try:
        async with asyncio.timeout(PATIENCE):
            for event in events:
                await event.wait()
    except TimeoutError as e:
        raise BusUnavailable(
            "another Redis server has taken over, and the nodes still compare what they know with its data: try "
            "again in some seconds"
        ) from e


def _accepted_ms(command: str) -> int:
    """When the command was accepted, by its id (UUIDv7); 0 if its caller has chosen the id (UUIDv4), which tells no
    time."""
    try:
        return int(command[:8] + command[9:13], 16) if command[14:15] == "7" else 0
    except ValueError:
        return 0
