"""A link as its node sees it: how old, how fast, how busy. What `link_query` answers for one, `worst_links` for many.

Made on the node that holds the link, read on the node that was asked; so it travels, as one short list, and a field may
only be added behind the others.
"""

from __future__ import annotations

import asyncio

import msgspec

from fairlead.hub.session import Session
from fairlead.telemetry.command_timing import STAGES
from fairlead.telemetry.decaying_histogram import quantile


class Quantiles(msgspec.Struct, frozen=True, array_like=True):
    """Two quantiles of the durations in a window, in seconds."""

    p50: float
    p99: float


class LinkStats(msgspec.Struct, frozen=True, array_like=True):
    """Sizes are in bytes; `linked` and `rtt`, the last round trip that the agent told, in ms."""

    sid: str
    linked: int
    heard: int
    rtt: float | None
    streams: int
    unstored: int
    unsent: bool
    undelivered: int
    encoding: str
    trips: Quantiles | None = None
    ended: int = 0
    failed: int = 0
    """Commands that ended on this link, and those of them that failed."""
    stages: list[Quantiles | None] = []
    """Of its commands, in the order of STAGES."""
    agent: str = ""
    conn: int = 0


def link_stats(session: Session) -> LinkStats:
    loop = asyncio.get_running_loop()
    tally = session.tally
    return LinkStats(
        session.sid, int((loop.time() - session.since) * 1000), session.link.received, session.rtt,
        len(session.link.streams or ()), session.pending_bytes,
        session.connection is not None and session.connection.congested, len(session.rung or ()),
        session.codec.subprotocol, _quantiles(session.trips), tally.commands if tally else 0,
        tally.failed if tally else 0, [_quantiles(w) for w in tally.windows] if tally else [],
        session.agent, session.conn,
    )  # fmt: skip


def rank_score(session: Session, by: str) -> float:
    """What links are ranked by: a p99 in seconds, or a number; the larger the worse. 0 for nothing known."""
    if by == "rtt":
        return quantile(session.trips, 0.99) or 0.0
    if by == "open":
        return len(session.link.streams or ())
    if by == "reconnects":
        return session.conn - 1
    if session.tally is None:
        return 0.0
    if by == "failed":
        return session.tally.failed
    return quantile(session.tally.windows[STAGES.index(by)], 0.99) or 0.0


RANKS = ("rtt", *STAGES, "open", "failed", "reconnects")
"""What `rank_score` knows."""


def _quantiles(counts: bytearray | None) -> Quantiles | None:
    p50, p99 = quantile(counts, 0.5), quantile(counts, 0.99)
    return None if p50 is None or p99 is None else Quantiles(p50, p99)
