"""What the rebalance remembers from one pass to the next: since when the links are uneven, and the progress of the one
that runs. Pure.

`fleet_history` holds it, and `rebalance.plan_rebalance` alone changes it. A new leader continues the rebalance of the
one before, and keeps to its pause.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Annotated, NamedTuple

from msgspec import Meta

PAUSE = 600.0
"""Seconds without a rebalance after one that changed nothing."""
MOST_CHARACTERS = 1000
"""The maximum length of the message of an ended rebalance, which is also that of a condition."""


class RebalanceOutcome(StrEnum):
    """How a rebalance ended. They are reasons of the condition Rebalanced, of Events and of a LinkOperation."""

    EVEN = "Even"
    """The fullest pod is near the mean."""
    LOAD_BALANCER_PINS = "LoadBalancerPins"
    """Links were moved and came back to the pods that they had left."""
    NOTHING_TO_MOVE = "NothingToMove"
    """The remaining links run commands, or have been moved within the last hour."""
    INTERRUPTED = "Interrupted"
    """Something else that moves links has begun: a rollout, a removal or an operation."""


@dataclass(frozen=True, slots=True)
class RebalanceRun:
    """The rebalance that runs. Times are those of the passes."""

    began: float
    operation: str = ""
    """The uid of the LinkOperation that asked for it, "" for none."""
    donors: frozenset[str] = frozenset()
    """Pods that shed links down to the mean."""
    moved: int = 0
    """Links that nodes have moved since it began."""
    round_began: float = 0.0
    least: int = 0
    """The smallest surplus at the end of a round that made progress."""
    moved_in_round: int = 0
    idle_rounds: int = 0
    """Rounds since the last one that made progress."""
    moved_in_vain: int = 0
    """Links that were moved in them."""


@dataclass(frozen=True, slots=True)
class EndedRebalance:
    """How the last rebalance ended."""

    outcome: RebalanceOutcome
    at: float
    moved: int
    message: Annotated[str, Meta(max_length=MOST_CHARACTERS)]
    operation: str = ""


class PodCounters(NamedTuple):
    """What a pod's node has counted since its start."""

    pod: str
    moved: int
    refused: int = 0


@dataclass(frozen=True, slots=True)
class RebalanceHistory:
    """Times are those of the passes."""

    pods: frozenset[str] = frozenset()
    """Pods over which the links were to be spread at the last pass."""
    uneven_since: float | None = None
    """Since when the links over the same pods are uneven."""
    counters: tuple[PodCounters, ...] = ()
    """Those of each pod at the last pass."""
    refusing_at: float | None = None
    """When a pod that should take new links was last seen to have refused one."""
    run: RebalanceRun | None = None
    ended: EndedRebalance | None = None
    paused_until: float | None = None
    """No rebalance starts before this time, because the last one changed nothing."""

    def resume(self) -> RebalanceHistory:
        """The history for a leader that begins long after the last pass: the targets of a rebalance have expired."""
        return replace(self, pods=frozenset(), uneven_since=None, counters=(), run=None)
