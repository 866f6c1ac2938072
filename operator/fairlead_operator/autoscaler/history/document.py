"""The history of a fleet as a document, with which one leader passes it on to the next. Pure.

`inputs.history_store` writes it to Redis in every pass and reads it when a leader begins. The times in a history are
those of its leader's clock, so the document also says what that clock showed, and Redis TIME at that moment: the next
leader sets its own clock for the history from both.

A field that is added has a default, so that documents of the version before can still be read. A change of what a field
means is a new VERSION.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import msgspec

from fairlead.errors import ConfigError
from fairlead_operator.autoscaler.history.fleet_history import History
from fairlead_operator.autoscaler.history.rebalance_history import PAUSE
from fairlead_operator.autoscaler.history.week_profile import QUARTERS, UNKNOWN, WeekProfile

VERSION = 1
MOST_BYTES = 1 << 20
"""The maximum size of a document. A history has some 150 bytes for each pod, so this is enough for more than 5,000
pods."""
GREATEST = 1e12
"""The greatest number that a history may contain. Sums and products of such numbers are finite."""
AHEAD_MS = 60_000
"""How far, in ms, a document may be ahead of Redis TIME, which after a failover is the clock of another machine."""


class UnusableHistory(ConfigError):
    """The document cannot be continued; the message says why."""


class _Version(msgspec.Struct, frozen=True):
    version: int


class HistoryDocument(msgspec.Struct, frozen=True, kw_only=True):
    version: int = VERSION
    gateway: str
    """The uid of the LinkGateway."""
    at: int
    """Redis TIME in ms when it was written."""
    clock: float
    """The history's clock at that moment, in seconds."""
    history: History

    def encode(self) -> bytes:
        """The document as JSON. Raises UnusableHistory if it is longer than MOST_BYTES."""
        found = msgspec.json.encode(self)
        if len(found) > MOST_BYTES:
            raise UnusableHistory(f"the history has {len(found)} bytes: expected at most {MOST_BYTES}")
        return found

    def gap(self, now: int) -> float:
        """Seconds since it was written. `now`: Redis TIME in ms."""
        return max(0.0, (now - self.at) / 1000)


def decode_history(data: bytes, gateway: str, now: int) -> HistoryDocument:
    """Raises UnusableHistory for a document of another version or LinkGateway, and for one that no operator can have
    written. So a forged document cannot stop rebalances and removals for longer than a genuine one. `now`: Redis TIME
    in ms.
    """
    if len(data) > MOST_BYTES:
        raise UnusableHistory(f"it has more than {MOST_BYTES} bytes")
    try:
        version = msgspec.json.decode(data, type=_Version).version
        if version != VERSION:
            raise UnusableHistory(f"it is of version {version}: expected version {VERSION}")
        document = msgspec.json.decode(data, type=HistoryDocument)
    except msgspec.MsgspecError as e:
        raise UnusableHistory(f"it is not a history: {e}") from e
    if document.gateway != gateway:
        raise UnusableHistory(f"it is of another LinkGateway, of the uid {document.gateway[:64]}")
    if refused := _refusal(document, now):
        raise UnusableHistory(refused)
    return document


def _refusal(document: HistoryDocument, now: int) -> str:
    """Why no operator can have written the document; "" if one can."""
    history, clock = document.history, document.clock
    counted = replace(history, links=replace(history.links, growth=0.0), week=WeekProfile(quarter=0, before=0))
    if any(abs(number) > GREATEST for number in (document.at // 1000, clock, *_numbers(history))):
        return f"it contains a number above {GREATEST:g}"
    if min(document.at, clock, *_numbers(counted)) < 0 or min(_numbers(history.week)) < UNKNOWN:
        return "it contains a negative number"
    if document.at > now + AHEAD_MS:
        return "it was written in the future"
    if max(_times(history), default=0.0) > clock:
        return "it contains a time after the one at which it was written"
    if (history.rebalance.paused_until or 0.0) > clock + PAUSE:
        return f"it contains a pause that lasts too long: expected at most {PAUSE:g} s"
    if len(history.week.links) not in (0, QUARTERS):
        return f"its profile of a week has not {QUARTERS} quarter hours"
    return ""


def _times(history: History) -> Iterator[float]:
    """All times of past events in the history."""
    links, rebalance = history.links, history.rebalance
    for known in (
        history.began,
        history.removed_at,
        links.growing_since,
        links.grew_at,
        links.rejecting_since,
        rebalance.uneven_since,
        rebalance.refusing_at,
    ):
        if known is not None:
            yield known
    compared = (history.compared.hpa, history.compared.keda)
    others = [one for known in compared for one in (*known.recommended, *known.sizes)]
    for at, _ in (*history.wanted, *history.sizes, *links.peaks, *links.given, *others):
        yield at
    yield from (report.at for report in links.reports)
    yield from (at for _, at in history.starts.starting)
    yield links.observed_at
    if links.outage is not None:
        yield links.outage.at
    yield history.signals.observed_at or 0.0
    yield from (at for _, at in history.zones.failed)
    if rebalance.run is not None:
        yield from (rebalance.run.began, rebalance.run.round_began)
    if rebalance.ended is not None:
        yield rebalance.ended.at


def _numbers(part: History | WeekProfile) -> Iterator[float]:
    return _numbers_in(msgspec.to_builtins(part))


def _numbers_in(node: Any) -> Iterator[float]:
    if isinstance(node, int | float):
        yield node
    elif isinstance(node, dict):
        for inner in node.values():
            yield from _numbers_in(inner)
    elif isinstance(node, list | tuple | set | frozenset):
        for inner in node:
            yield from _numbers_in(inner)
