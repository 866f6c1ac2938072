"""The statistics of a link as its node sees it: how old, how fast and how busy it is.

`link_query` returns them for one link, `worst_links` for many. They are made on the node that holds the link and read
on the node that was asked: they travel as one MessagePack list, so fields may only be added at the end.
"""

from __future__ import annotations

import asyncio

import msgspec

from fairlead.hub.session import Session
from fairlead.telemetry.command_timing import STAGES, CommandStats
from fairlead.telemetry.decaying_histogram import quantile


class Quantiles(msgspec.Struct, frozen=True, array_like=True):
    """Two quantiles of recent durations, in seconds."""

    p50: float
    p99: float


class LinkStats(msgspec.Struct, frozen=True, array_like=True):
    """The statistics of one link. `unstored` is in bytes; `age_ms` and `rtt`, the last round trip that the agent
    reported, are in ms."""

    sid: str
    age_ms: int
    messages: int
    """Numbered messages received."""
    rtt: float | None
    streams: int
    """Open commands."""
    unstored: int
    congested: bool
    """True if the agent reads more slowly than the node sends."""
    undelivered: int
    """Commands that wait to be sent."""
    encoding: str
    round_trips: Quantiles | None = None
    ended: int = 0
    """Commands that ended on this link."""
    failed: int = 0
    """The commands of `ended` that failed."""
    stages: list[Quantiles | None] = []
    """The durations of its commands, in the order of STAGES."""
    agent: str = ""
    conn: int = 0


def link_stats(session: Session) -> LinkStats:
    now, known, tally = asyncio.get_running_loop().time(), session.identity, session.tally
    return LinkStats(
        known.sid, int((now - known.welcomed_at) * 1000), session.received, session.rtt,
        len(session.streams or ()), session.pending_bytes,
        session.connection is not None and session.connection.congested, len(session.deliveries or ()),
        session.context.codec.subprotocol, _quantiles(session.rtt_histogram), tally.commands if tally else 0,
        tally.failed if tally else 0, _stages(tally) if tally else [],
        session.agent, known.conn,
    )  # fmt: skip


def _stages(tally: CommandStats) -> list[Quantiles | None]:
    return [_quantiles(tally.histogram(stage)) for stage in range(len(STAGES))]


def score(session: Session, measure: str) -> float:
    """The value by which links are ranked: a p99 in seconds, or a count. Larger is worse; 0 if nothing is known."""
    if measure == "rtt":
        return quantile(session.rtt_histogram, 0.99) or 0.0
    if measure == "open":
        return len(session.streams or ())
    if measure == "reconnects":
        return session.conn - 1
    if session.tally is None:
        return 0.0
    if measure == "failed":
        return session.tally.failed
    return quantile(session.tally.histogram(STAGES.index(measure)), 0.99) or 0.0


MEASURES = ("rtt", *STAGES, "open", "failed", "reconnects")
"""The measures that `score` knows."""


def _quantiles(histogram: bytearray | None) -> Quantiles | None:
    p50, p99 = quantile(histogram, 0.5), quantile(histogram, 0.99)
    return None if p50 is None or p99 is None else Quantiles(p50, p99)
