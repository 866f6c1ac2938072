"""What a simulated agent uses of its pool: an interface, so that neither file imports the other.

`agent_pool` implements it, `simulated_agent` calls it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

from fairlead.carrier.listener import Connection
from fairlead.swarm.counters import Counters
from fairlead.swarm.options import SwarmOptions
from fairlead.wire.codec import Codec
from fairlead.wire.messages import Drain, FromGateway, Hello, Welcome

if TYPE_CHECKING:
    from fairlead.swarm.agents.simulated_agent import SimulatedAgent


class AgentOwner(Protocol):
    """Each method is called once for what it names."""

    options: SwarmOptions
    loop: asyncio.AbstractEventLoop
    codec: Codec[FromGateway]
    counters: Counters
    heartbeat: float
    window: int
    stopping: bool

    def opened(self, agent: SimulatedAgent) -> float:
        """It has a connection. Returns the time."""

    def hello(self, agent: SimulatedAgent, have: dict[str, int]) -> Hello: ...
    def welcomed(self, agent: SimulatedAgent, welcome: Welcome) -> float:
        """Returns the time."""

    def echoed(self, agent: SimulatedAgent, ts: int) -> None: ...
    def on_bye(self, agent: SimulatedAgent, retry: int | None) -> None: ...
    def drained(self, agent: SimulatedAgent, connection: Connection, drain: Drain) -> None: ...
    def ended(self, agent: SimulatedAgent, code: int, reason: str, was_welcomed: bool) -> None: ...
    def violated(self, agent: SimulatedAgent, was_welcomed: bool) -> None: ...
    def refused(self, agent: SimulatedAgent, how: str, words: str, now: float) -> None: ...
    def reconnect(self, agent: SimulatedAgent, now: float) -> None: ...
    def event_id(self) -> str: ...
    def shrink(self, connection: Connection, size: int) -> None: ...
    def listen(self, connection: Connection) -> None: ...
