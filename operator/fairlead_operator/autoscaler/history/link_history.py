"""The links of a fleet from one observation to the next: how many count, how fast they grow, and how many are refused.
Pure.

Links are counted so that a pod's death, silence or drain never looks like a fleet that has become smaller: its agents
are about to connect to another pod, which must not have been removed. Agents that said goodbye, as they do when they
are stopped, no longer count. An agent that moves from one pod to another counts once, even if the first pod has
reported it before the move and the second one after it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from fairlead.fleet.node_table import AWAY_MS
from fairlead_operator.autoscaler.observation import FRESH, FleetObservation

REMEMBERED = 120.0
"""Seconds for which lost links still count: within this time a pod has restarted and its agents are back."""
LOST_SECONDS = 600.0
"""Seconds for which the pods that lost links would need are not removed: a machine, a network or a zone that fails is
often repaired within this time."""
HERD_SECONDS = 3600.0
"""Seconds for which links that were lost together are expected to return together: after this time, most outages of a
network or a region are over."""
HERD_SHARE = 0.1
"""The share of the links whose loss within REMEMBERED counts as an outage. Smaller losses happen every day: machines
restart, laptops sleep, a pod dies."""
AWAY_SECONDS = AWAY_MS / 1000
"""Seconds within which an agent that moves, or whose pod is gone, has connected to another pod."""
SMOOTHING = 30.0
"""Seconds over which rates are smoothed: three passes, so that a trend requires pods and a single burst does not."""

TimedMaxima = tuple[tuple[float, int], ...]
"""Times and values of the maxima in a window. The values fall, so the sequence is short however long the window is."""


@dataclass(frozen=True, slots=True)
class PodLinks:
    """The last fresh report of one pod."""

    pod: str
    at: float
    links: int
    refused: int
    left: int = 0


@dataclass(frozen=True, slots=True)
class Outage:
    """Many links were lost together and are not back."""

    at: float
    links: int
    """The links before the outage, without those whose agents have left on purpose since."""


@dataclass(frozen=True, slots=True)
class LinkHistory:
    """What is remembered of the links. Times are those of the observations."""

    observed_at: float = 0.0
    live: int = 0
    """Links in fresh reports, minus those that may be in two of them, plus those of silent pods that have not appeared
    elsewhere."""
    growth: float = 0.0
    """New links per second, smoothed."""
    growing_since: float | None = None
    """When the present growth was first seen; None while the links do not grow."""
    grew_at: float | None = None
    """When it was last seen."""
    rejects: float = 0.0
    """Refused links per second, smoothed."""
    rejecting_since: float | None = None
    peaks: TimedMaxima = ()
    """The greatest `live` of the last LOST_SECONDS, without the links whose agents have left on purpose since."""
    outage: Outage | None = None
    given: tuple[tuple[float, int], ...] = ()
    """Times and numbers of the links by which the reports of pods that leave or shed links have fallen within
    AWAY_SECONDS. Other pods are about to report them."""
    reports: tuple[PodLinks, ...] = ()
    before_silence: tuple[tuple[str, int], ...] | None = None
    """Links of each fresh pod when the first of the pods that are now silent fell silent."""

    @property
    def links(self) -> int:
        """The links that count: live ones, and lost ones that may still come back."""
        return next((live for at, live in self.peaks if self.observed_at - at < REMEMBERED), 0)

    @property
    def growing_seconds(self) -> float:
        """For how many seconds the present growth has been seen. Links that return after an outage are not growth."""
        if self.growing_since is None or self.grew_at is None or self.outage is not None:
            return 0.0
        return self.grew_at - self.growing_since

    def observe(self, fleet: FleetObservation, now: float, donors: frozenset[str] = frozenset()) -> LinkHistory:
        """The history after this observation; unchanged when Redis could not be read. `donors`: the pods that a
        rebalance relieves."""
        if not fleet.readable:
            return self
        live, before_silence = self._count(fleet, now)
        given = ((now, self._given(fleet, donors)), *self.given)
        live -= self._in_two_reports(fleet, donors)
        left = self._left(fleet)
        peaks = ((at, max(0, peak - left)) for at, peak in self.peaks)
        counted = replace(
            self,
            observed_at=now,
            live=live,
            peaks=add_maximum(peaks, now, live, LOST_SECONDS),
            before_silence=before_silence,
            given=tuple((at, links) for at, links in given if links and now - at < AWAY_SECONDS),
            reports=self._reports(fleet, now),
        )
        seconds = now - self.observed_at
        if self.reports and seconds > 0:
            counted = counted._with_rates(fleet, self, seconds)
        return replace(counted, outage=counted._outage(self.outage, left))

    def _with_rates(self, fleet: FleetObservation, before: LinkHistory, seconds: float) -> LinkHistory:
        then = {report.pod: report.refused for report in before.reports}
        refused = sum(max(0, pod.refused - then.get(pod.name, pod.refused)) for pod in fleet.fresh_pods)
        weight = 1 - math.exp(-seconds / SMOOTHING)
        since = before.rejecting_since
        return replace(
            self._with_growth(before),
            growth=before.growth + weight * ((self.links - before.links) / seconds - before.growth),
            rejects=before.rejects + weight * (refused / seconds - before.rejects),
            rejecting_since=None if not refused else self.observed_at if since is None else since,
        )

    def _outage(self, before: Outage | None, left: int) -> Outage | None:
        """The present outage, or None. `left` agents have left on purpose since the last observation. Agents that move
        are not lost: in a fast drain, links disappear from one report before they are in another. An outage ends when
        the links are back and no longer grow, or when there are more than can have been lost, and at the latest after
        HERD_SECONDS.
        """
        if before is None:
            lost = self.links - self.live - sum(links for _, links in self.given)
            return Outage(self.observed_at, self.links) if lost > HERD_SHARE * self.links else None
        links = max(0, before.links - left)
        back = self.live >= (1 - HERD_SHARE) * links and self.growing_since is None
        over = back or self.live > (1 + HERD_SHARE) * links or self.observed_at - before.at >= HERD_SECONDS
        return None if over else Outage(before.at, links)

    def _with_growth(self, before: LinkHistory) -> LinkHistory:
        """This history with the time for which the links have grown. The numbers change only with a node's reports, so
        the growth has ended once none was seen for FRESH seconds.
        """
        if self.links > before.links:
            since = self.observed_at if self.growing_since is None else self.growing_since
            return replace(self, growing_since=since, grew_at=self.observed_at)
        if self.grew_at is not None and self.observed_at - self.grew_at > FRESH:
            return replace(self, growing_since=None, grew_at=None)
        return self

    def _left(self, fleet: FleetObservation) -> int:
        """Links whose agents have left on purpose since the last report of their node."""
        then = {report.pod: report.left for report in self.reports}
        return sum(max(0, pod.left - then.get(pod.name, pod.left)) for pod in fleet.pods)

    def _given(self, fleet: FleetObservation, donors: frozenset[str]) -> int:
        """The number of links that pods which leave, are gone or shed links have lost since their last reports."""
        now = {pod.name: pod for pod in fleet.pods}
        given = 0
        for report in self.reports:
            pod = now.get(report.pod)
            if pod is None:
                given += report.links
            elif pod.fresh and (pod.leaving or pod.name in donors):
                given += max(0, report.links - pod.links)
        return given

    def _in_two_reports(self, fleet: FleetObservation, donors: frozenset[str]) -> int:
        """Links that pods have gained since their last reports while others move links away. They may still be in the
        reports of the pods that they have left, which are up to a heartbeat older. New links among them count one pass
        later. Otherwise each pod that leaves would look like a peak of the demand, which would delay the next removal.
        """
        giving = {pod.name: pod.links for pod in fleet.fresh_pods if pod.leaving or pod.name in donors}
        if not giving or not self.reports:
            return 0
        then = {report.pod: report.links for report in self.reports}
        others = (pod for pod in fleet.fresh_pods if pod.name not in giving)
        return min(sum(giving.values()), sum(max(0, pod.links - then.get(pod.name, 0)) for pod in others))

    def _reports(self, fleet: FleetObservation, now: float) -> tuple[PodLinks, ...]:
        fresh = [PodLinks(pod.name, now, pod.links, pod.refused, pod.left) for pod in fleet.fresh_pods]
        silent = {pod.name for pod in fleet.pods if not pod.fresh}
        return (*fresh, *(one for one in self.reports if one.pod in silent and now - one.at <= REMEMBERED))

    def _count(self, fleet: FleetObservation, now: float) -> tuple[int, tuple[tuple[str, int], ...] | None]:
        """The links of fresh reports plus the last known links of silent pods, except those that have appeared
        elsewhere since; and the next `before_silence`.
        """
        fresh = {pod.name: pod.links for pod in fleet.fresh_pods}
        last = {one.pod: one.links for one in self.reports if now - one.at <= REMEMBERED}
        silent = [
            last.get(pod.name, pod.links)
            for pod in fleet.pods
            if not pod.fresh and (pod.name in last or pod.age <= REMEMBERED)
        ]
        live = sum(fresh.values())
        if not silent:
            return live, None
        before = self.before_silence
        if before is None:
            before = tuple((name, last.get(name, links)) for name, links in fresh.items())
        elsewhere = max(0, live - sum(links for name, links in before if name in fresh))
        return live + max(0, sum(silent) - elsewhere), before


def add_maximum(kept: Iterable[tuple[float, int]], now: float, value: int, seconds: float) -> TimedMaxima:
    """The maxima of the last `seconds`, with `value` added; the first is the greatest."""
    return (*((at, one) for at, one in kept if now - at < seconds and one > value), (now, value))
