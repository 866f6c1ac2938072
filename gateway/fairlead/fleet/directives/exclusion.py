"""Why a node leaves new links to other nodes although it can serve. Pure.

A node that is excluded from new links answers /readyz with 503, so that it leaves its Services and keeps the links that
it has. It says so in its row as well: the operator tells it from a node that is unready because it cannot serve.
`routing.membership.readiness` decides it.
"""

from __future__ import annotations

from enum import StrEnum

SETTLE = 10.0
"""Seconds after which a change of the operator's directives has reached nodes and load balancers: a heartbeat (5 s), in
which a node reads it; two probes (4 s); and the endpoints of the Services."""


class Exclusion(StrEnum):
    """Why. The values are in the rows of nodes."""

    ROLLOUT = "rollout"
    REBALANCE = "rebalance"

    @property
    def reason(self) -> str:
        """What /readyz answers."""
        if self is Exclusion.ROLLOUT:
            return "a newer revision takes new links"
        return "this node has its share of the links: those that have fewer take new links"
