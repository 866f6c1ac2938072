"""What one fault of a Redis is: its servers, what is done to them, and what it may bring to commands."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from faults.fault_fleet import FaultFleet
from faults.redis.played_fleet import LAST_MOMENT

LOCAL, FSYNC, REPLICATED = "local", "fsync", "replicated"


@dataclass(frozen=True)
class Lengths:
    """How long the faults last, in seconds."""

    frozen: float = 30.0
    """A server is stopped, and another one takes its place meanwhile."""
    partition: float = 20.0
    away: float = 60.0
    """A shard without a primary."""
    trouble: float = 15.0
    """A disk is full, or Redis is slow, or late."""


FULL = Lengths()
SHORT = Lengths(frozen=8.0, partition=8.0, away=18.0, trouble=5.0)
"""For `make test`. A shard is away for longer than the 15 s after which a node without heartbeats counts as dead."""


@dataclass
class Scene:
    """What a fault gets: the fleet, the servers, and how long to last. It names the agents that it concerns."""

    fleet: FaultFleet
    servers: Any
    lengths: Lengths
    concerned: set[str] = field(default_factory=set)

    def concerns(self, agents: set[str]) -> None:
        """The fault concerns these alone."""
        self.concerned.clear()
        self.concerned |= agents


@dataclass(frozen=True)
class RedisFault:
    """`servers` makes the servers in a folder; they have the `url` of the nodes. `told` is what the fault may bring to
    commands with the durability `local`; with the others nothing that was told may be lost."""

    words: str
    servers: Callable[[Path], AbstractAsyncContextManager[Any]]
    play: Callable[[Scene], Awaitable[None]]
    told: frozenset[str] = LAST_MOMENT
    durabilities: tuple[str, ...] = (LOCAL, REPLICATED)
    flags: tuple[str, ...] = ()
    events: bool = True
    """Whether all events have to be there afterwards."""
    results: bool = True
    """Whether all results have to be there afterwards."""
    agents: int = 18
    """So few that each of them is probed about once a second."""
    rate: float = 8.0
    """Commands a second, besides the probes."""

    @property
    def name(self) -> str:
        """`sentinel.killed`, for example: the part of the module and the function."""
        return f"{self.play.__module__.rpartition('.')[2].removesuffix('_faults')}.{self.play.__name__}"
