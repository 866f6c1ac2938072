"""Arrays of counts, and how a number of agents is drawn from several groups of them. Used by the whole model."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Counts = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Shares = npt.NDArray[np.float64]


def draw_without_return(rng: np.random.Generator, groups: Counts, number: int) -> Counts:
    """How many of each group are among `number` agents that are drawn from all of them, each being as likely as any
    other; all agents when there are fewer. (The multivariate hypergeometric distribution.)"""
    if number <= 0:
        return np.zeros_like(groups)
    if number >= int(groups.sum()):
        return groups.copy()
    return rng.multivariate_hypergeometric(groups, number, method="marginals")


def spread_evenly(rng: np.random.Generator, number: int, groups: int) -> Counts:
    """How many of `number` agents are in each of `groups` of which every agent chooses one by chance."""
    if number <= 0:
        return np.zeros(groups, np.int64)
    return rng.multinomial(number, np.full(groups, 1 / groups))
