"""What is seen of a fleet, and what is remembered of it: the numbers under every decision. Pure, like `decide`.

Links are counted so that a pod's death, its silence or its drain never looks like a fleet that became smaller: what
was there a moment ago is on its way to another pod, and would find it gone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

FRESH = 15.0
"""Seconds: three beats of a node, as old as a row may be, and as long as a ready pod may take to its first beat."""
REMEMBERED = 120.0
"""Seconds that links which are gone still count: within them a pod restarts and its agents are back."""
SMOOTHING = 30.0
"""Seconds over which growth is smoothed: three looks, so that one burst does not call for pods and a trend does."""
STARTS = 20
"""Starts of pods of which the 95th percentile is taken: the greatest but one of a rollout or two."""
COMMAND_COST = 50
"""A pod that runs a command is as dear as one with fifty more idle links."""


@dataclass(frozen=True, slots=True)
class NodeReport:
    """What a pod's node last told; `age` in seconds by the clock of Redis."""

    age: float
    connections: int
    capacity: int
    in_flight: int = 0
    refused: int = 0
    """Counts up from the node's start."""


@dataclass(frozen=True, slots=True)
class PodObservation:
    """A pod as it exists in the cluster, with its row if there is one."""

    name: str
    ready: bool = True
    ready_for: float = 3600.0
    leaving: bool = False
    row: NodeReport | None = None

    @property
    def fresh(self) -> bool:
        return self.row is not None and self.row.age <= FRESH

    @property
    def stale(self) -> bool:
        """Ready for long enough to have told, and silent."""
        return not self.fresh and self.ready and self.ready_for > FRESH

    @property
    def cost(self) -> int:
        """What its removal would disturb."""
        return self.row.connections + COMMAND_COST * self.row.in_flight if self.row is not None else 0


@dataclass(frozen=True, slots=True)
class FleetObservation:
    """One look at the fleet. `replicas` is what the Deployment asks for; unreadable: Redis gave no rows."""

    replicas: int
    pods: tuple[PodObservation, ...]
    readable: bool = True
    rollout: bool = False
    operation: str = ""
    """The LinkOperation that is under way."""


@dataclass(frozen=True, slots=True)
class History:
    """What must be remembered from one look to the next. `began` is the time of the first."""

    began: float | None = None
    seen_at: float = 0.0
    live: int = 0
    links: int = 0
    growth: float = 0.0
    rejects: float = 0.0
    rejecting_since: float | None = None
    removed_at: float = -math.inf
    peaks: tuple[tuple[float, int], ...] = ()
    needs: tuple[tuple[float, int], ...] = ()
    """Maxima of the links and of the need, each with its time: a falling sequence, so short whatever the window is."""
    sizes: tuple[tuple[float, int], ...] = ()
    known: tuple[tuple[str, float, int, int], ...] = ()
    """Pod, when it was last fresh, its links and its refused links then."""
    before: tuple[tuple[str, int], ...] | None = None
    """Links of each pod when the first of those now silent fell silent."""
    seen: tuple[tuple[str, float], ...] = ()
    """New pods that are not ready yet, and when each was first seen."""
    settled: frozenset[str] = frozenset()
    """Pods that have been ready, or were there at the first look."""
    starts: tuple[float, ...] = ()
    """Seconds from being seen to being ready, of the last pods that became it."""

    @property
    def lead(self) -> float | None:
        """The 95th percentile of the starts; None before the first."""
        return sorted(self.starts)[math.ceil(0.95 * len(self.starts)) - 1] if self.starts else None


def deletion_costs(load: FleetObservation, victim: str = "") -> dict[str, int]:
    """Deletion cost of each pod: the least goes first. Of equals it is `victim`, and only that one."""
    of = {pod.name: pod.cost for pod in load.pods}
    least = of.get(victim)
    return {
        name: cost + 1 if least is not None and name != victim and cost <= least else cost for name, cost in of.items()
    }


def remember(load: FleetObservation, state: History, now: float) -> tuple[History, int]:
    """The state after this look, and the links that are live or were a moment ago."""
    state = replace(_starts(load, state, now), began=now if state.began is None else state.began)
    if not load.readable:
        return state, state.live
    total, before = _links(load, state, now)
    peaks = maxima(state.peaks, now, total, REMEMBERED)
    links = peaks[0][1]
    growth, rejects, since = state.growth, state.rejects, state.rejecting_since
    seconds = now - state.seen_at
    if state.known and seconds > 0:
        then = {name: refused for name, _, _, refused in state.known}
        told = [(pod.name, pod.row.refused) for pod in load.pods if pod.row is not None and pod.fresh]
        refused = sum(max(0, count - then.get(name, count)) for name, count in told)
        weight = 1 - math.exp(-seconds / SMOOTHING)
        growth += weight * ((links - state.links) / seconds - growth)
        rejects += weight * (refused / seconds - rejects)
        since = (now if since is None else since) if refused else None
    here = {pod.name for pod in load.pods}
    fresh = [
        (pod.name, now, pod.row.connections, pod.row.refused) for pod in load.pods if pod.row is not None and pod.fresh
    ]
    told_now = {name for name, *_ in fresh}
    old = [one for one in state.known if one[0] in here and one[0] not in told_now and now - one[1] <= REMEMBERED]
    known = (*fresh, *old)
    return (
        replace(
            state, seen_at=now, live=total, links=links, growth=growth, rejects=rejects,
            rejecting_since=since, peaks=peaks, known=known, before=before,
        ),
        total,
    )  # fmt: skip


def _starts(load: FleetObservation, state: History, now: float) -> History:
    """How long new pods took to be ready. Those that were there at the first look say nothing about it."""
    here = frozenset(pod.name for pod in load.pods)
    if state.began is None:
        return replace(state, settled=here)
    first = dict(state.seen)
    new = [pod for pod in load.pods if pod.name not in state.settled]
    return replace(
        state,
        seen=tuple((pod.name, first.get(pod.name, now)) for pod in new if not pod.ready),
        settled=state.settled & here | {pod.name for pod in new if pod.ready},
        starts=(*state.starts, *(now - first.get(pod.name, now) for pod in new if pod.ready))[-STARTS:],
    )


def _links(load: FleetObservation, state: History, now: float) -> tuple[int, tuple[tuple[str, int], ...] | None]:
    """Links by fresh rows, and the last known ones of silent pods less those that have since come up elsewhere."""
    fresh = {pod.name: pod.row.connections for pod in load.pods if pod.row is not None and pod.fresh}
    last = {name: links for name, at, links, _ in state.known if now - at <= REMEMBERED}
    silent = {}
    for pod in load.pods:
        if pod.fresh:
            continue
        if pod.name in last:
            silent[pod.name] = last[pod.name]
        elif pod.row is not None and pod.row.age <= REMEMBERED:
            silent[pod.name] = pod.row.connections
    live = sum(fresh.values())
    if not silent:
        return live, None
    before = state.before if state.before is not None else tuple((name, last.get(name, n)) for name, n in fresh.items())
    base = sum(links for name, links in before if name in fresh)
    elsewhere = max(0, live - base)
    return live + max(0, sum(silent.values()) - elsewhere), before


def maxima(kept: Iterable[tuple[float, int]], now: float, value: int, seconds: float) -> tuple[tuple[float, int], ...]:
    """A window's maxima: the first is the greatest of the last `seconds`."""
    return (*((at, one) for at, one in kept if now - at < seconds and one > value), (now, value))
