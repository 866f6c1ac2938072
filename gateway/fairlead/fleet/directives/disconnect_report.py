"""How far one node is with a Disconnect. This module is pure, so that the operator's decisions may use it."""

from __future__ import annotations

from typing import NamedTuple


class DisconnectReport(NamedTuple):
    """Numbers of links: all that the node examines, those that it has yet to examine, those closed, and those that stay
    because Redis has lost the labels that would decide."""

    total: int
    left: int
    closed: int
    undecided: int

    def encode(self) -> str:
        return " ".join(map(str, self))

    @classmethod
    def parse(cls, text: bytes) -> DisconnectReport | None:
        """What `encode` wrote; None for anything else."""
        numbers = text.split()
        if len(numbers) != len(cls._fields) or not all(number.isdigit() for number in numbers):
            return None
        return cls(*map(int, numbers))
