"""What the rows of the nodes say: which nodes are alive, whether their agents are online, away or offline, and which
node does a piece of work of the whole fleet.

Each node of the gateway has a table that `node_rows` fills, and the operator reads one. No other
module decides whether a node is alive; it follows from the row and Redis TIME. The module is pure.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from hashlib import blake2b
from typing import NamedTuple, TypeVar

from fairlead.fleet.reports.traffic import COUNTERS, Traffic
from fairlead.fleet.schema import AgentRow

ALIVE_MS = 15_000
"""Three heartbeats. A node that has sent none for longer than this no longer holds any agent."""
AWAY_MS = 45_000
"""An agent that lost its link because its node or network restarted reconnects within this time: the longest pause
that a gateway tells agents to wait (`wire.retry.HANDED_OUT_MS`), and one connection attempt."""


GREATEST = 10**15
"""The greatest valid number in a row: times in ms have 13 digits, and sums over all rows remain finite."""


class Presence(StrEnum):
    ONLINE = "online"
    AWAY = "away"
    OFFLINE = "offline"


@dataclass(frozen=True, slots=True)
class NodeRow:
    """One node as it last reported itself. `at` and `began` are Redis TIME in ms: `at` is the time of the last
    heartbeat, `began` the time when this registration of the node began. `accepted` and `refused` are counted since the
    start of the process; `links`, `capacity` and `in_flight` are current values."""

    node: str
    epoch: str
    at: int
    began: int
    state: str
    links: int
    capacity: int
    in_flight: int
    version: str
    accepted: int
    refused: int
    lag_ms: float
    doubtful: bool = False
    """The node has links that it has not yet compared with the rows of their agents."""
    process: str = ""
    """The identity of the process, packed by `routing.membership.process_identity`."""
    moved: int = 0
    """Links that a rebalance has made it move since the start of the process."""
    spare_accept_rate: float = 0.0
    """Links per second that the node can accept besides its present work, as it measured; 0 if it is full, drains or
    leaves new links to others. See `moves.move_rate`."""
    excluded_by: str = ""
    """Why the node leaves new links to others although it can serve: a value of `directives.exclusion.Exclusion`, ""
    if it takes them."""
    left: int = 0
    """Links whose agents have left on purpose, and not for another node, since the start of the process."""
    cpu: float = 0.0
    """Share of the time since the last report for which the event loop was busy, from 0 to 1."""
    memory: float = 0.0
    """Share of the container's memory limit that is in use, from 0 to 1; 0 without a limit."""
    traffic: Traffic | None = None
    """What it has served since the start of the process; None if its version does not count that."""
    has_sinks: bool = False
    """Whether it reads a file of sinks, so that it can deliver to them."""

    @property
    def lease(self) -> str:
        """The name of this registration of the node in leases."""
        return f"{self.node}#{self.epoch}"

    def alive(self, now: int) -> bool:
        return now - self.at <= ALIVE_MS

    @classmethod
    def parse(cls, node: str, row: Mapping[bytes, bytes]) -> NodeRow:
        """Parse what `node` wrote. Raises ValueError for what no node writes: text that is not UTF-8, and numbers that
        are negative, not finite or above GREATEST."""

        def word(field: bytes) -> str:
            return row.get(field, b"").decode()

        def count(field: bytes) -> int:
            return _checked(int(row.get(field, b"0")))

        def number(field: bytes) -> float:
            return _checked(float(row.get(field, b"0")))

        traffic = Traffic.parse(row)
        if traffic is not None:
            for counted in (*(getattr(traffic, name) for name in COUNTERS), *traffic.overheads):
                _checked(counted)
        return cls(
            node, word(b"epoch"), count(b"at"), count(b"began"), word(b"state"), count(b"links"),
            count(b"capacity"), count(b"in_flight"), word(b"version"), count(b"accepted"), count(b"refused"),
            number(b"lag_ms"), count(b"doubtful") > 0,
            word(b"process"), count(b"moved"), number(b"spare_accept_rate"),
            word(b"excluded_by"), count(b"left"), number(b"cpu"), number(b"memory"),
            traffic, count(b"has_sinks") > 0,
        )  # fmt: skip


Number = TypeVar("Number", int, float)


def _checked(value: Number) -> Number:
    if not 0 <= value <= GREATEST:  # also NaN
        raise ValueError(f"invalid number {value} in a node's row: expected 0 to {GREATEST:g}")
    return value


class UnrecordedEnd(NamedTuple):
    """The end of a link that no node has recorded. Times are Redis TIME in ms, 0 if unknown."""

    node: str
    alive: bool
    """True if the node is alive and will record it; otherwise the node ended without closing the link."""
    heartbeat: int
    """The last heartbeat of the node."""
    before: int
    """The link had ended by then. Used where the last heartbeat is not known."""


class NodeTable:
    """The rows of all nodes as this node last read them, and the presence of agents that follows from them.

    `back` is when Redis began, or began again, to answer this node's own heartbeats (ms). The node cannot know what
    other nodes did before that time.
    """

    __slots__ = ("_back", "_rows")

    def __init__(self, rows: Mapping[str, NodeRow], back: int = 0) -> None:
        self._rows = rows
        self._back = back

    def rows(self) -> list[NodeRow]:
        return list(self._rows.values())

    def row(self, lease: str) -> NodeRow | None:
        """The row of the node if it belongs to the registration that `lease` names, otherwise None."""
        row = self._rows.get(lease.partition("#")[0])
        return row if row is not None and row.lease == lease else None

    def holds(self, lease: str, now: int) -> bool:
        """Whether `lease` names the current registration of a node that is alive."""
        row = self._rows.get(lease.partition("#")[0])
        return row is not None and row.lease == lease and row.alive(now)

    def last_sign(self, lease: str) -> int:
        """The latest time at which the registration that `lease` names may have been alive; 0 if it is unknown."""
        row = self._rows.get(lease.partition("#")[0])
        if row is None:
            return 0
        # A row of a later registration of the same node: the one in the lease had ended when the later one began.
        return row.at if row.lease == lease else row.began

    def presence(self, agent: AgentRow, now: int) -> tuple[Presence, int, str]:
        """The agent's presence, the time since which it holds (ms), and the reason in words."""
        if agent.lease and self.holds(agent.lease, now):
            return Presence.ONLINE, agent.up, f"linked to {agent.lease.partition('#')[0]}"
        if agent.lease:
            since = max(self.last_sign(agent.lease), agent.seen)
            why = f"its node {agent.lease.partition('#')[0]} is gone"
            absent = now - max(since, self._back)
        else:
            since = agent.seen
            why = "it moves to another node" if agent.drained else f"its link closed with {agent.close}"
            absent = now - since
        return Presence.AWAY if absent <= AWAY_MS else Presence.OFFLINE, since, why

    def unrecorded_end(self, agent: AgentRow, now: int) -> UnrecordedEnd | None:
        """How the agent's last link ended if its close was not recorded: because its node was killed, or because the
        agent has a new link already and the node has not recorded the end of the old one yet. None if it was recorded,
        and then `AgentRow.close` is its code."""
        if agent.lease and not self.holds(agent.lease, now):
            lease, before = agent.lease, agent.seen if agent.seen > agent.up else 0
        elif agent.unrecorded:
            lease, before = agent.unrecorded.partition(" ")[0], agent.up
        else:
            return None
        row = self.row(lease)
        return UnrecordedEnd(
            lease.partition("#")[0], self.holds(lease, now), row.at if row else 0, self.last_sign(lease) or before
        )


def choose(work: str, leases: Sequence[str], count: int = 1) -> list[str]:
    """The nodes that do a piece of work that any node could do: the `count` highest ranked of `leases` for `work`, in
    order of rank; all of them if there are no more.

    Nodes rank by rendezvous hashing (highest random weight) and need not communicate: those with the same table choose
    the same nodes, and a table that differs by one node changes only the work of that node. If the tables of two nodes
    differ, both may do a piece of work, or neither. That is harmless: the work may be done twice, and its name changes
    with time, so that other nodes are chosen the next time.
    """
    return heapq.nlargest(count, leases, key=lambda lease: blake2b(f"{work} {lease}".encode(), digest_size=8).digest())
