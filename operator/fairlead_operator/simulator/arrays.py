"""Arrays of counts, and functions that draw a number of agents from several groups. Used by the whole model."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Counts = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Shares = npt.NDArray[np.float64]


FEW = 20
"""If fewer than one in this many agents are drawn, they are drawn one by one: that costs less than a number for each
group."""


def draw_without_return(rng: np.random.Generator, groups: Counts, number: int) -> Counts:
    """How many of each group are among `number` agents that are drawn from all of them, each being as likely as any
    other; all agents when there are fewer. (The multivariate hypergeometric distribution.)"""
    if number <= 0:
        return np.zeros_like(groups)
    ends = groups.cumsum()
    total = int(ends[-1])
    if number >= total:
        return groups.copy()
    if number * FEW < total and number < FEW * len(groups):
        drawn = rng.choice(total, number, replace=False, shuffle=False)
        return np.bincount(ends.searchsorted(drawn, side="right"), minlength=len(groups))
    return rng.multivariate_hypergeometric(groups, number, method="marginals")


def spread_evenly(rng: np.random.Generator, number: int, groups: int) -> Counts:
    """How many of `number` agents are in each of `groups`, if every agent chooses one at random."""
    if number <= 0:
        return np.zeros(groups, np.int64)
    if number < FEW * groups:
        return np.bincount(rng.integers(0, groups, number), minlength=groups)
    return rng.multinomial(number, np.full(groups, 1 / groups))
