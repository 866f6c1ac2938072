"""What prevents the removal of a pod: the rule or the obstacle, the reason, and until when. Pure.

`decision` asks when fewer pods would suffice. Each obstacle has a name (`Hold`), which is a reason of the condition
RemovalHeld, a label of a metric and a row in docs/operator.md.

How long a pod stays after the links have fallen depends on why they fell. If agents left on purpose, the pod stays only
as long as a new one would take to start. Links that were lost may return, so they count for LOST_SECONDS, and for
HERD_SECONDS if many were lost together: that is an outage, after which all return at once. `scaling.windowSeconds`
replaces all three by one fixed time.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum

import msgspec

from fairlead_operator.autoscaler.history.link_history import AWAY_SECONDS, HERD_SECONDS, LOST_SECONDS
from fairlead_operator.autoscaler.rules import RULES
from fairlead_operator.autoscaler.snapshot import Snapshot
from fairlead_operator.kube.workload_status import pod_count

FILL_AFTER_REMOVAL = 6 / 7
"""The share of the target utilisation to which the remaining pods may be filled: with a target of 70 %, to 60 % at
most, so that the pod is not added again at once."""


class Hold(StrEnum):
    NUMBERS_UNKNOWN = "NumbersUnknown"
    QUERY_FAILED = "QueryFailed"
    ROLLOUT = "Rollout"
    OPERATION = "LinkOperation"
    MOVES_IN_FLIGHT = "MovesInFlight"
    PODS_TERMINATING = "PodsTerminating"
    PODS_STARTING = "PodsStarting"
    PODS_EXCLUDED = "PodsExcluded"
    PODS_SILENT = "PodsSilent"
    STEP_DOWN = "StepDownSeconds"
    LINKS_REFUSED = "LinksRefused"
    STABILIZATION_WINDOW = "StabilizationWindow"
    RECENT_DEMAND = "RecentDemand"
    LOST_LINKS = "LostLinks"
    EXPECTED_DEMAND = "ExpectedDemand"
    WATCHED_BRIEFLY = "WatchedBriefly"
    TOO_FULL = "TargetUtilisation"


@dataclass(frozen=True, slots=True)
class RemovalHold:
    by: str
    """A member of Hold, or the rule or bound that requires as many pods as there are."""
    reason: str
    seconds: float | None = None
    """How many more seconds it lasts; None if that is unknown."""

    @property
    def is_obstacle(self) -> bool:
        """Whether fewer pods would suffice."""
        return self.by in tuple(Hold)


def removal_hold(snapshot: Snapshot, *, panic: bool, ordered: bool) -> RemovalHold | None:
    """What prevents the removal of one pod now. `ordered`: the number was set from outside or by replicas.max, so that
    neither the past nor the links matter.
    """
    return _unsettled(snapshot) or (None if ordered else _still_needed(snapshot, panic=panic))


def hold_of_next(snapshot: Snapshot, gone: int, *, panic: bool, ordered: bool) -> RemovalHold | None:
    """What prevents the removal of one more pod in the same step as `gone` others. If the number of pods was set from
    outside, more than one may be removed only if the remaining ones are not too full.
    """
    fleet = replace(snapshot.fleet, replicas=snapshot.fleet.replicas - gone)
    smaller = replace(snapshot, fleet=fleet)
    return _too_full(smaller) if ordered else _still_needed(smaller, panic=panic)


def _unsettled(snapshot: Snapshot) -> RemovalHold | None:
    fleet, inputs, scaling = snapshot.fleet, snapshot.inputs, snapshot.spec.scaling
    if fleet.queried is not None and fleet.queried.value is None:
        return RemovalHold(Hold.QUERY_FAILED, "the query of scaling.signals.prometheus failed")
    if fleet.rollout:
        return RemovalHold(Hold.ROLLOUT, "a rollout is in progress")
    if fleet.operation:
        return RemovalHold(Hold.OPERATION, f"the LinkOperation {fleet.operation} is running")
    if snapshot.history.rebalance.run is not None:
        return RemovalHold(Hold.MOVES_IN_FLIGHT, "links are being moved from full pods to others")
    if inputs.leaving:
        return RemovalHold(Hold.PODS_TERMINATING, f"{pod_count(inputs.leaving)} must finish terminating first")
    if inputs.pending:
        reason = f"{pod_count(inputs.pending)} must become ready first: Kubernetes would remove unready ones"
        return RemovalHold(Hold.PODS_STARTING, reason)
    if inputs.excluded:
        pods = pod_count(inputs.excluded)
        reason = f"{pods} must take new links again first: Kubernetes would remove unready ones"
        return RemovalHold(Hold.PODS_EXCLUDED, reason)
    if inputs.fresh < inputs.ready or inputs.ready < fleet.replicas:
        return RemovalHold(Hold.PODS_SILENT, f"only {inputs.fresh} of {fleet.replicas} pods have reported")
    removed_at = snapshot.history.removed_at
    if removed_at is not None and (since := snapshot.now - removed_at) < scaling.step_down_seconds:
        reason = f"the last removal was {since:.0f} s ago (stepDownSeconds is {scaling.step_down_seconds})"
        return RemovalHold(Hold.STEP_DOWN, reason, scaling.step_down_seconds - since)
    return None


def _still_needed(snapshot: Snapshot, *, panic: bool) -> RemovalHold | None:
    spec, began = snapshot.spec, snapshot.history.began or 0.0
    if panic:
        return RemovalHold(Hold.LINKS_REFUSED, "links are being refused")
    window = spec.scaling.window_seconds
    if hold := _by_demand(snapshot) if window is None else _by_window(snapshot, window):
        return hold
    if hold := _by_week(snapshot):
        return hold
    watch = LOST_SECONDS if window is None else window
    if (watched := snapshot.now - began) < watch:
        setting = "" if window is None else f" (windowSeconds is {window})"
        reason = f"the fleet has been watched for only {watched:.0f} s of {watch:g}{setting}"
        return RemovalHold(Hold.WATCHED_BRIEFLY, reason, watch - watched)
    return _too_full(snapshot)


def _too_full(snapshot: Snapshot) -> RemovalHold | None:
    fleet, spec = snapshot.fleet, snapshot.spec
    limit = spec.target_utilisation / 100 * FILL_AFTER_REMOVAL
    filled = snapshot.inputs.links / ((fleet.replicas - 1) * snapshot.inputs.capacity)
    if filled > limit:
        reason = f"the remaining pods would be filled to {filled:.0%} (at most {limit:.0%} is allowed)"
        return RemovalHold(Hold.TOO_FULL, reason)
    return None


def _by_window(snapshot: Snapshot, window: float) -> RemovalHold | None:
    found = _last_need(snapshot, snapshot.history.wanted, window, lambda wanted: wanted)
    if found is None:
        return None
    most, seconds = found
    return RemovalHold(Hold.STABILIZATION_WINDOW, f"{most} were wanted within the last {window:g} s", seconds)


def _by_demand(snapshot: Snapshot) -> RemovalHold | None:
    # An agent that restarts says goodbye and connects again within AWAY_SECONDS, so its pod stays for as long.
    recent = math.ceil(max(snapshot.inputs.lead_seconds, AWAY_SECONDS))
    if found := _last_need(snapshot, snapshot.history.wanted, recent, lambda wanted: wanted):
        reason = (
            f"{found[0]} were wanted, growth included, within the last {recent} s, in which a new pod starts and an "
            "agent that restarts is back"
        )
        return RemovalHold(Hold.RECENT_DEMAND, reason, found[1])
    outage = snapshot.history.links.outage
    if outage is not None and (pods := _pods(snapshot, outage.links)) >= snapshot.fleet.replicas:
        since = snapshot.now - outage.at
        reason = f"{pod_count(pods)} would be needed if the links return that were lost together {since:.0f} s ago"
        return RemovalHold(Hold.LOST_LINKS, reason, HERD_SECONDS - since)
    if found := _last_need(snapshot, snapshot.history.links.peaks, LOST_SECONDS, lambda links: _pods(snapshot, links)):
        reason = (
            f"{pod_count(found[0])} would be needed if the links return that were lost within the last "
            f"{LOST_SECONDS:g} s"
        )
        return RemovalHold(Hold.LOST_LINKS, reason, found[1])
    return None


def _by_week(snapshot: Snapshot) -> RemovalHold | None:
    """Keeps the pods that will be needed within ten minutes if this week is like the previous ones: a pod that is
    removed and created again makes links move twice.
    """
    at = snapshot.fleet.at
    expected = 0 if at is None else snapshot.history.week.expected(at, LOST_SECONDS)
    if expected == 0 or (pods := _pods(snapshot, expected)) < snapshot.fleet.replicas:
        return None
    reason = f"{pod_count(pods)} will be needed within {LOST_SECONDS:g} s: the last weeks had {expected} links then"
    return RemovalHold(Hold.EXPECTED_DEMAND, reason)


def _last_need(
    snapshot: Snapshot, maxima: tuple[tuple[float, int], ...], window: float, pods: Callable[[int], int]
) -> tuple[int, float] | None:
    """The most pods that were needed within the window, and for how many more seconds they prevent a removal; None if
    fewer pods than there are have sufficed. `maxima` fall with time.
    """
    needed = [(at, need) for at, one in maxima if snapshot.now - at < window and (need := pods(one)) > 0]
    holding = [at for at, need in needed if need >= snapshot.fleet.replicas]
    return (needed[0][1], holding[-1] + window - snapshot.now) if holding else None


def _pods(snapshot: Snapshot, links: int) -> int:
    """Pods that the rules require for `links` that neither grow nor are refused, within the bounds of the spec."""
    inputs = msgspec.structs.replace(snapshot.inputs, links=links, growth=0.0, rejects=0.0)
    still = Snapshot(snapshot.fleet, inputs, snapshot.history, snapshot.spec, snapshot.now)
    return min(snapshot.spec.replicas.max, max(rule.required_pods(still) for rule in RULES))
