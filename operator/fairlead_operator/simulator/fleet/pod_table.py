"""The pods of a modelled fleet, a row each: state, links, and what the node last reported of itself.

`deployment` adds and removes rows, `simulation` moves links, the policies read. Columns are arrays of equal length.
"""

from __future__ import annotations

import numpy as np

from fairlead_operator.simulator.arrays import Counts, Flags, Shares

BURST_SECONDS = 2
"""A node accepts this many seconds' worth of its accept rate at once (`BURST_SECONDS` of the gateway's accept rate)."""
COLUMNS = (
    "links", "awaited", "refused", "ready_at", "left_at", "revision", "ready", "tokens",
    "reported_links", "reported_refused", "reported_moved", "reported_at", "moved", "accepted", "recent",
    "unready", "excluded",
)  # fmt: skip
RECENT_MOVES = 12
"""Parts of the hour within which a rebalance moves no agent twice."""
RECENT_SECONDS = 3600 // RECENT_MOVES
NEVER = -1


class PodTable:
    def __init__(self, accept_rate: int) -> None:
        self._accept_rate = accept_rate
        self._created = 0
        self.names: list[str] = []
        self.links: Counts = np.zeros(0, np.int64)
        self.awaited: Counts = np.zeros(0, np.int64)
        """Waiting agents that a load balancer which pins will send to this pod."""
        self.refused: Counts = np.zeros(0, np.int64)
        """Attempts that it has refused since its start."""
        self.ready_at: Counts = np.zeros(0, np.int64)
        """Second at which its start is over."""
        self.left_at: Counts = np.zeros(0, np.int64)
        """Second at which it began to leave, NEVER before."""
        self.revision: Counts = np.zeros(0, np.int64)
        self.ready: Flags = np.zeros(0, np.bool_)
        """Whether its start is over; a pod that leaves stays ready for links that it has, and gets no new ones."""
        self.tokens: Shares = np.zeros(0, np.float64)
        """Links that it accepts at this moment."""
        self.accepted: Shares = np.zeros(0, np.float64)
        """Links that it accepts per second, the mean since its last report."""
        self.moved: Counts = np.zeros(0, np.int64)
        """Agents that a rebalance has made it move."""
        self.recent: Counts = np.zeros((0, RECENT_MOVES), np.int64)
        """Of its agents, those that a rebalance has moved here in each part of the last hour."""
        self.unready: Flags = np.zeros(0, np.bool_)
        """Whether its last probes found that it leaves new links to others."""
        self.excluded: Flags = np.zeros(0, np.bool_)
        """Whether load balancers know so."""
        self.reported_moved: Counts = np.zeros(0, np.int64)
        self.reported_links: Counts = np.zeros(0, np.int64)
        self.reported_refused: Counts = np.zeros(0, np.int64)
        self.reported_at: Counts = np.zeros(0, np.int64)
        """Second of its last report, NEVER before the first."""

    def __len__(self) -> int:
        return len(self.names)

    @property
    def leaving(self) -> Flags:
        flags: Flags = self.left_at != NEVER
        return flags

    @property
    def staying(self) -> Flags:
        return ~self.leaving

    @property
    def serving(self) -> Flags:
        """Those that are ready and stay."""
        return self.ready & ~self.leaving

    @property
    def taking(self) -> Flags:
        """Those that a load balancer sends agents to."""
        return self.serving & ~self.excluded

    def add(self, ready_at: Counts, revision: int) -> None:
        """New pods, which are ready at these seconds."""
        number = len(ready_at)
        first = self._created
        self._created += number
        self.names += [f"pod-{first + i:05d}" for i in range(number)]
        new = {
            "ready_at": ready_at, "revision": revision, "ready": False, "tokens": BURST_SECONDS * self._accept_rate,
            "left_at": NEVER, "reported_at": NEVER,
        }  # fmt: skip
        for column in COLUMNS:
            old = getattr(self, column)
            grown = np.concatenate([old, np.zeros((number, *old.shape[1:]), old.dtype)])
            grown[len(old) :] = new.get(column, 0)
            setattr(self, column, grown)

    def drop(self, gone: Flags) -> None:
        """These pods exist no more."""
        self.names = [name for name, is_gone in zip(self.names, gone.tolist(), strict=True) if not is_gone]
        for column in COLUMNS:
            setattr(self, column, getattr(self, column)[~gone])

    def start_ready(self, now: int) -> None:
        """Pods whose start is over get ready."""
        self.ready |= self.ready_at <= now

    def refill(self) -> None:
        """One second's worth of the accept rate."""
        np.minimum(self.tokens + self._accept_rate, BURST_SECONDS * self._accept_rate, out=self.tokens)

    def report(self, now: int) -> None:
        """Each node that is ready writes its row to Redis."""
        np.copyto(self.reported_links, self.links, where=self.ready)
        np.copyto(self.reported_refused, self.refused, where=self.ready)
        np.copyto(self.reported_moved, self.moved, where=self.ready)
        self.reported_at[self.ready] = now
