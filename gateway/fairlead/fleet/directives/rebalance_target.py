"""What a rebalance asks of a node: how many links it keeps, and from how many on it takes no new ones. This module is
pure.

The operator makes the targets and writes them to Redis (see `rebalance_targets`). `routing.membership.readiness`
applies the rule for new links on a node, the operator's simulator on modelled ones.
"""

from __future__ import annotations

from dataclasses import dataclass

SLACK = 0.02
"""A node that has had enough links takes new ones again once it is this share below `enough`, so that its
readiness does not follow every link that comes or goes."""


@dataclass(frozen=True, slots=True)
class RebalanceTarget:
    """What a rebalance asks of one node."""

    keep: int
    """Links that it should keep at most: it moves those above."""
    enough: int | None = None
    """Links from which on it leaves new ones to other nodes; None if it takes them however many it has."""


class EnoughLinks:
    """Whether a node has enough links: true from `enough` links on, until it is SLACK below that again."""

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
