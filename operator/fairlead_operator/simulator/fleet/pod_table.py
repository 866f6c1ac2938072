"""The pods of a modelled fleet, a row each: state, links, and what the node last reported of itself.

`deployment` adds and removes rows, `directives` says which take new links, `simulation` moves links, the policies read.
Columns are arrays of equal length.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fairlead_operator.simulator.arrays import Counts, Flags, Shares

BURST_SECONDS = 2
"""A node accepts this many seconds' worth of its accept rate at once (`BURST_SECONDS` of the gateway's accept rate)."""
HEARTBEAT_SECONDS = 5
"""Seconds between two heartbeats, in which a node writes its row and reads the operator's directives."""
RECENT_MOVES = 12
"""Parts of the hour within which a rebalance moves no agent twice."""
RECENT_SECONDS = 3600 // RECENT_MOVES
NEVER = -1
FAR = np.iinfo(np.int64).max
"""Stands for a second that never comes, and for a number of links that no pod has."""
COLUMNS: Mapping[str, type[np.generic]] = {
    **dict.fromkeys((
        "links", "awaited", "refused", "started_at", "ready_at", "unready_at", "left_at", "revision", "zone", "target",
        "enough", "accepted", "moved", "left", "recent", "reported_links", "reported_refused", "reported_moved",
        "reported_left", "reported_at",
    ), np.int64),
    **dict.fromkeys(("has_enough", "excluded", "started", "ready", "leaving", "serving"), np.bool_),
    **dict.fromkeys(("tokens", "owed", "reported_accepting", "reported_spare"), np.float64),
}  # fmt: skip
"""The columns and what is in them."""


class PodTable:
    links: Counts
    awaited: Counts
    """Waiting agents that a load balancer which pins will send to this pod."""
    refused: Counts
    """Attempts that it has refused since its start."""
    started_at: Counts
    """Second at which its start is over."""
    ready_at: Counts
    """Second from which on Kubernetes last considered it ready."""
    unready_at: Counts
    """Second at which Kubernetes considers it unready because its node wants no new links; FAR if there is none."""
    left_at: Counts
    """Second at which it began to leave; NEVER before that."""
    revision: Counts
    zone: Counts
    target: Counts
    """Links that a rebalance lets it keep; FAR while none runs."""
    enough: Counts
    """Links at which it leaves new ones to other pods; FAR while it takes all."""
    has_enough: Flags
    excluded: Flags
    """Whether its node leaves new links to others, although it can serve."""
    started: Flags
    """Whether its start is over: its node holds links and reports."""
    ready: Flags
    """Whether Kubernetes considers it ready. A pod that leaves stays so."""
    leaving: Flags
    serving: Flags
    """Whether a load balancer sends agents to it: it is ready and does not leave."""
    tokens: Shares
    """Links that it accepts at this moment."""
    accepted: Counts
    """Links that it has accepted since its last report."""
    moved: Counts
    """Agents that a rebalance has made it move."""
    left: Counts
    """Agents that have said goodbye."""
    owed: Shares
    """While it leaves: moves that its even pace requires and the budget has not granted."""
    recent: Counts
    """Of its agents, those that a rebalance has moved here in each part of the last hour."""
    reported_links: Counts
    reported_refused: Counts
    reported_moved: Counts
    reported_left: Counts
    reported_accepting: Shares
    """Links that it accepted per second before its last report."""
    reported_spare: Shares
    """Links per second that it can accept besides its present work."""
    reported_at: Counts
    """Second of its last report, NEVER before the first."""

    def __init__(self, accept_rate: int) -> None:
        self._accept_rate = accept_rate
        self._created = 0
        self.names: list[str] = []
        for column, kind in COLUMNS.items():
            setattr(self, column, np.zeros((0, RECENT_MOVES) if column == "recent" else 0, kind))

    def __len__(self) -> int:
        return len(self.names)

    @property
    def staying(self) -> Flags:
        return ~self.leaving

    def add(self, started_at: Counts, revision: int, zone: Counts | int = 0) -> None:
        """New pods, whose start is over at these seconds. `zone`: the one of each, or of all."""
        number = len(started_at)
        first = self._created
        self._created += number
        self.names += [f"pod-{first + i:05d}" for i in range(number)]
        new = {
            "started_at": started_at, "ready_at": started_at, "unready_at": FAR, "left_at": NEVER, "reported_at": NEVER,
            "revision": revision, "zone": zone, "target": FAR, "enough": FAR,
            "tokens": BURST_SECONDS * self._accept_rate,
        }  # fmt: skip
        for column in COLUMNS:
            old = getattr(self, column)
            grown = np.concatenate([old, np.zeros((number, *old.shape[1:]), old.dtype)])
            grown[len(old) :] = new.get(column, 0)
            setattr(self, column, grown)

    def leave(self, at: Counts, now: int) -> None:
        """The pods at these rows begin to leave."""
        self.left_at[at] = now
        self.leaving[at] = True
        self.serving[at] = False

    def drop(self, gone: Flags) -> None:
        """Removes the rows of pods that no longer exist."""
        if not gone.any():
            return
        self.names = [name for name, is_gone in zip(self.names, gone.tolist(), strict=True) if not is_gone]
        for column in COLUMNS:
            setattr(self, column, getattr(self, column)[~gone])

    def renew_readiness(self, now: int) -> None:
        """Pods whose start is over, and those that Kubernetes takes for ready in this second."""
        self.started = self.started_at <= now
        self.ready = (self.ready_at <= now) & (self.unready_at > now)
        self.serving = self.ready & ~self.leaving

    def refill(self) -> None:
        """One second's worth of the accept rate."""
        np.minimum(self.tokens + self._accept_rate, BURST_SECONDS * self._accept_rate, out=self.tokens)

    def report(self, now: int) -> None:
        """Each node writes its row to Redis."""
        np.copyto(self.reported_links, self.links, where=self.started)
        np.copyto(self.reported_refused, self.refused, where=self.started)
        np.copyto(self.reported_moved, self.moved, where=self.started)
        np.copyto(self.reported_left, self.left, where=self.started)
        self.reported_accepting = self.accepted / HEARTBEAT_SECONDS
        self.accepted = np.zeros(len(self), np.int64)
        self.reported_at[self.started] = now
