"""Why a node leaves new links to other nodes although it can serve. This module is pure.

A node that is excluded from new links answers /readyz with 503, so that it leaves its Services and keeps the links that
it has. It says so in its row as well, so that the operator can distinguish it from a node that cannot serve.
`routing.membership.readiness` decides it.
"""

from __future__ import annotations

from enum import StrEnum

SETTLE = 10.0
"""Seconds after which a change of the operator's directives has reached nodes and load balancers: a heartbeat (5 s), in
which a node reads it; two probes (4 s); and the endpoints of the Services."""


class Exclusion(StrEnum):
    """The directive that excludes a node. The values are written into the rows of nodes."""

    ROLLOUT = "rollout"
    REBALANCE = "rebalance"

    @property
    def reason(self) -> str:
        """What /readyz answers."""
        if self is Exclusion.ROLLOUT:
            return "a newer revision takes new links"
        return "this node has its share of the links: nodes with fewer take new links"
