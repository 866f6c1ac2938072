"""Why a node leaves new links to other nodes although it can serve, and when it has enough of them. Pure.

A node that is excluded from new links answers /readyz with 503, so that it leaves its Services and keeps the links that
it has. It says so in its row as well: the operator tells it from a node that is unready because it cannot serve.
`routing.membership.readiness` applies it on a node, the operator's simulator on modelled ones.
"""

from __future__ import annotations

from enum import StrEnum

SETTLE = 10.0
"""Seconds after which all have seen a change of what the operator tells the nodes: a heartbeat (5 s), in which a node
reads it; two probes (4 s); and the endpoints of the Services."""
SLACK = 0.02
"""Share of the links that are enough by which a node must be below before it takes new ones again, so that its
readiness does not follow every link that comes or goes."""


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


class EnoughLinks:
    """Whether a node has as many links as are enough for it: from `enough` on, and until it is SLACK below that."""

    __slots__ = ("_reached",)

    def __init__(self) -> None:
        self._reached = False

    def reached(self, links: int, enough: int | None) -> bool:
        """`enough` is None while the node takes new links however many it has."""
        if enough is None:
            self._reached = False
        elif links >= enough:
            self._reached = True
        elif links < enough * (1 - SLACK):
            self._reached = False
        return self._reached
