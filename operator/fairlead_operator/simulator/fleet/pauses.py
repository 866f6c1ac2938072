"""How long agents wait before they try again, as distributions over whole seconds.

Each is computed from the agents' and the gateway's own functions in `fairlead.wire.retry`, by evaluating them at evenly
spaced draws. A pause is rounded up to a whole second, the step of the model. Used by `reconnect_queue`.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

import numpy as np

from fairlead.wire.retry import (
    HANDED_OUT_MS,
    RETRY_AFTER_MOST,
    RetryPolicy,
    after_refusal,
    first_ceiling,
    pause,
    retry_after,
)
from fairlead_operator.simulator.arrays import Counts, Shares

LONGEST = HANDED_OUT_MS // 1000
"""The longest pause in seconds, whatever the reason."""
MOST_ASKED = RETRY_AFTER_MOST - 1
"""The greatest `most` that makes a difference: larger ones give the same pauses."""
DRAWS = 1200
"""Evenly spaced draws. A multiple of RETRY_AFTER_MOST, so that whole seconds are met without a remainder."""


def _distribution(pauses_ms: Iterable[float]) -> Shares:
    """The share of each whole second, from 0 to LONGEST."""
    seconds = np.ceil(np.fromiter(pauses_ms, np.float64) / 1000).astype(np.int64)
    numbers: Shares = np.bincount(np.clip(seconds, 1, LONGEST), minlength=LONGEST + 1).astype(np.float64)
    return numbers / float(numbers.sum())


def _draws(number: int = DRAWS) -> list[float]:
    return [(i + 0.5) / number for i in range(number)]


def first_seconds(links: Counts, accept_rate: int) -> Counts:
    """The ceiling of the first retry, in whole seconds, that nodes with this many links have sent to their agents."""
    ceilings = _first_ceilings(accept_rate)
    return ceilings[np.minimum(links, len(ceilings) - 1)]


@cache
def _first_ceilings(accept_rate: int) -> Counts:
    """Those of nodes with 0, 1, 2, … links; the last one is that of all larger nodes too."""
    return np.array([first_ceiling(one, accept_rate) // 1000 for one in range(LONGEST * accept_rate + 1)], np.int64)


@cache
def after_loss(first: int) -> Shares:
    """After a link was lost; `first` is the ceiling from the welcome of the lost node, in seconds."""
    policy = RetryPolicy(first * 1000, cap=HANDED_OUT_MS)
    return _distribution(pause(policy.delay(0, draw), 0, draw) for draw in _draws())


@cache
def after_failure(retry: int) -> Shares:
    """After retry number `retry` found no node: the load balancer has nobody to send it to."""
    policy = RetryPolicy(cap=HANDED_OUT_MS)
    return _distribution(pause(policy.delay(retry, draw), retry, draw) for draw in _draws())


@cache
def after_retry_after(most: int) -> Shares:
    """After a refusal whose Retry-After was drawn up to `most` seconds."""
    return _distribution(
        pause(after_refusal(retry_after(most, asked), more), 0, more)
        for asked in _draws(RETRY_AFTER_MOST * 3)
        for more in _draws(100)
    )
