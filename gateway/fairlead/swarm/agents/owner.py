"""The interface of the pool that a simulated agent uses, so that neither module imports the other.

`agent_pool` implements it, `simulated_agent` calls it.
"""

from __future__ import annotations

import asyncio
from typing import Protocol, TypeVar

from fairlead.carrier.listener import Connection
from fairlead.swarm.agents.attempts import UnwelcomedLinks
from fairlead.swarm.counters import Counters
from fairlead.swarm.options import SwarmOptions
from fairlead.wire.codec import Codec
from fairlead.wire.messages import Drain, FromGateway, Hello, Welcome

A_contra = TypeVar("A_contra", contravariant=True)
"""The class of the agents."""


class SimulatedAgentOwner(Protocol[A_contra]):
    """The owner of simulated agents: they report to it what happens, and get from it what they share."""

    options: SwarmOptions
    loop: asyncio.AbstractEventLoop
    codec: Codec[FromGateway]
    counters: Counters
    heartbeat: float
    window: int
    unwelcomed: UnwelcomedLinks
    stopping: bool

    def opened(self, agent: A_contra) -> float:
        """The agent has a connection. Returns the time, by the system's monotonic clock."""

    def hello(self, agent: A_contra, have: dict[str, int]) -> Hello: ...
    def welcomed(self, agent: A_contra, welcome: Welcome) -> float:
        """The agent's link was welcomed. Returns the time by the same clock, with the resolution of one tick."""

    def echoed(self, agent: A_contra, ts: int) -> None: ...
    def on_bye(self, agent: A_contra, retry: int | None) -> None: ...
    def drained(self, agent: A_contra, connection: Connection, drain: Drain) -> None: ...
    def ended(self, agent: A_contra, code: int, reason: str, was_welcomed: bool) -> None: ...
    def violated(self, agent: A_contra, was_welcomed: bool) -> None: ...
    def refused(self, agent: A_contra, reason: str, message: str, now: float) -> None: ...
    def reconnect(self, agent: A_contra, now: float) -> None: ...
    def event_id(self) -> str: ...
    def shrink(self, connection: Connection, size: int) -> None: ...
    def listen(self, connection: Connection) -> None: ...
