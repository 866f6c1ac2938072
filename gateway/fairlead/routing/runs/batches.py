"""The batches of a run: its targets in their order, and where each batch ends; or their order if they are spread.

Called by the API before a run begins. It is pure. `run_plan` then starts no target of a batch before all of the
batches before it have ended.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from itertools import accumulate, groupby
from math import ceil
from typing import Final

from fairlead.errors import InvalidRequest

BATCHES: Final = 1_000
"""Batches of one run. Each is a wait for its slowest target."""


def arrange(
    agents: Sequence[str], values: Mapping[str, str] | None = None, size: int = 0, share: float = 0.0
) -> tuple[list[str], tuple[int, ...]]:
    """The agents in the order of their batches, and the number of agents up to the end of each batch but the last.

    With `values`, which has the value of a label for each agent that has it, agents with different values are never in
    one batch; those without a value come last. Batches then have at most `size` agents, or `share` of those that they
    are chosen from: of one value, or of all. Raises InvalidRequest if there are more than BATCHES.
    """
    if values is None:
        groups = [list(agents)]
    else:
        ordered = sorted(agents, key=lambda agent: (agent not in values, values.get(agent, "")))  # it is stable
        groups = [list(group) for _, group in groupby(ordered, key=values.get)]
    lengths: list[int] = []
    for group in groups:
        most = size or ceil(len(group) * share) or len(group)
        lengths += [min(most, len(group) - at) for at in range(0, len(group), most)]
    if len(lengths) > BATCHES:
        raise InvalidRequest(
            f"the run would have {len(lengths)} batches: expected at most {BATCHES}, so make them larger, or choose a "
            "label with fewer values",
            field="batches",
        )
    return [agent for group in groups for agent in group], tuple(accumulate(lengths[:-1]))


def spread_order(agents: Sequence[str]) -> list[str]:
    """The agents in the order of places that each has in every run, whoever else is in it."""
    return sorted(agents, key=lambda agent: hashlib.sha256(agent.encode()).digest())
