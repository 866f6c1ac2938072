"""How long the agent waits before its next attempt: as the retry policy says, or as long as the gateway requests.

`connector` asks it. Every wait has jitter, the first one too, because a whole fleet may lose its links at the same
moment. A time that the gateway names (a drain's slot, a bye, Retry-After) overrides the policy, within the bounds of
`wire.retry.pause`. This module only computes the time; it does not wait.
"""

from __future__ import annotations

import random

from fairlead.agent.link.attempt import AttemptEnd
from fairlead.wire.messages import Retry
from fairlead.wire.retry import STABLE_MS, RetryPolicy, pause


class Backoff:
    def __init__(self) -> None:
        self._policy = RetryPolicy()
        self._attempt = 0
        """The number of the next retry, from 0."""
        self._moving = False
        """Whether the attempts since the last welcome are part of a move."""

    def follow(self, retry: Retry) -> None:
        """Use the retry policy that the gateway has sent."""
        self._policy = RetryPolicy(retry.first, retry.base, retry.cap).bounded()

    def delay(self, end: AttemptEnd, linked: bool) -> float:
        """Seconds from `end` until the next attempt. `linked`: the agent moves, and its old link is still open."""
        if end.lived * 1000 >= STABLE_MS:
            self._attempt = 0
        if end.lived:
            self._moving = end.moved
        if end.moved and end.delay is None:
            return 0.0
        # `first` spreads the agents that have lost their node. Agents that move are spread by their slots already, and
        # their old link closes soon.
        attempt = max(self._attempt, 1) if linked else self._attempt
        self._attempt = attempt + 1
        draw = random.random()
        delay = end.delay
        if delay is None:
            # The fleet accepted this agent a moment ago, so the fault lies with the node that refuses it now, and the
            # next attempt may reach another node.
            slow = end.slow and not self._moving
            delay = self._policy.slow(draw) if slow else self._policy.delay(attempt, draw)
        return pause(delay, attempt, draw) / 1000
