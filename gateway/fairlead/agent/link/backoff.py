"""How long the agent waits before its next attempt: by the policy, or as long as the gateway says.

`connector` asks it. Every wait is jittered, the first one too, because a whole fleet loses its links in the same
instant. What the gateway says of the time (a drain's slot, a bye, Retry-After) overrides the policy, within the bounds
of `wire.retry.pause`. This module only computes the time; it does not wait.
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
        """Whether the attempts since the last welcomed link are those of a move."""

    def follow(self, retry: Retry) -> None:
        """Follow another policy, which the gateway has named."""
        self._policy = RetryPolicy(retry.first, retry.base, retry.cap).bounded()

    def delay(self, end: AttemptEnd, linked: bool) -> float:
        """Seconds until the attempt that follows `end`. `linked`: the agent moves, and its old link is still open."""
        if end.lived * 1000 >= STABLE_MS:
            self._attempt = 0
        if end.lived:
            self._moving = end.moved
        if end.moved and end.delay is None:
            return 0.0
        # `first` spreads a fleet that has lost its node. Agents that move are spread by their slots already, and the
        # old link is closed soon.
        attempt = max(self._attempt, 1) if linked else self._attempt
        self._attempt = attempt + 1
        draw = random.random()
        delay = end.delay
        if delay is None:
            # A fleet that had this agent a moment ago has room for it: the node that refuses it is the one to be
            # corrected, and another one is reached by the next attempt.
            slow = end.slow and not self._moving
            delay = self._policy.slow(draw) if slow else self._policy.delay(attempt, draw)
        return pause(delay, attempt, draw) / 1000
