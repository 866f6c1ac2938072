"""How many moves a second a fleet can take: the one formula that nodes and the operator share. This module is pure.

A move is an agent that leaves its node because Fairlead wants it to: the node drains, is replaced, or has more than its
share. Each node reports with its heartbeat what it could accept besides its present work. The operator adds the reports
up and writes the rate to Redis (see `move_bucket`); without an operator, a node that moves its agents computes it.
"""

from __future__ import annotations

from collections.abc import Iterable

RECEIVED_SHARE = 0.5
"""The share that moves may use of what the receiving nodes can accept. The other half is for agents that connect for
reasons of their own, so that a rollout and a network failure can happen together."""
FULL_SHARE = 0.95
"""The share of its capacity from which on a node receives no moves: the rest is for agents that come by themselves."""
LEAST_SHARE = 0.1
"""The share of its accept rate that a node can always accept: a measurement over a few seconds must not stop a
drain."""
FINAL_SECONDS = 60
"""The last part of a drain, in which a node waits neither for the budget nor for the end of commands."""

LAG_SECONDS = 5
"""How far a drain may fall behind its even pace before it overdraws the budget: grants come in batches, and the nodes
that drain take turns."""


def spare_accept_rate(accept_rate: float, idle: float, accepting: float, links: int, capacity: int) -> float:
    """New links a second that a node can accept on top of its present work, from its own measurements.

    `idle` is the share of its CPU that was idle, from 0 to 1. `accepting` are the links a second that it accepted
    meanwhile, which its accept rate covers only once. The result is 0 for a node that is full.
    """
    if links >= capacity * FULL_SHARE:
        return 0.0
    return max(accept_rate * LEAST_SHARE, min(accept_rate * idle, accept_rate - accepting))


def move_rate(spare: Iterable[float], most: float) -> float:
    """Moves a second for the whole fleet: half of what the receiving nodes can accept, at most `most`; 0 if no node
    receives. `spare` has the spare accept rate of each receiving node."""
    return min(most, RECEIVED_SHARE * sum(spare))


def even_pace(waiting: int, seconds: float, accepted: float) -> float:
    """Moves a second with which a draining node moves `waiting` agents in `seconds`, so that none are left to be moved
    in a hurry. At most `accepted`, its part of what the receiving nodes can accept, whatever the budget is."""
    return min(waiting / seconds, accepted) if seconds > 0 else accepted
