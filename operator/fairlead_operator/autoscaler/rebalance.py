"""Which pods hold too many links, and how many each should keep: `plan_rebalance`. Pure.

The reconciler calls it in every pass, after the decision, and writes the targets to Redis, where the nodes read them. A
node with more links than its target asks the agents of its oldest idle links to move, at the pace of the fleet's budget
of moves. New pods are filled in this way, because links that are open never move by themselves. Nodes that have their
share become unready meanwhile, so that a link that moves goes to a pod with few links.

A rebalance starts when the fullest pod stays well above the mean, and ends when it is near the mean. It also ends after
rounds without progress, as behind a load balancer that sends each agent to the same pod again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from fairlead.fleet.directives.rebalance_target import RebalanceTarget
from fairlead_operator.api.gateway_spec import LinkGatewaySpec, Mode
from fairlead_operator.autoscaler.history import History
from fairlead_operator.autoscaler.history.rebalance_history import (
    PAUSE,
    EndedRebalance,
    PodCounters,
    RebalanceHistory,
    RebalanceOutcome,
    RebalanceRun,
)
from fairlead_operator.autoscaler.link_spread import LinkSpread, spread_of
from fairlead_operator.autoscaler.observation import FleetObservation
from fairlead_operator.kube.workload_status import pod_count

STEADY = 30.0
"""Seconds for which the links must have been uneven over the same pods: three passes, within which all pods that start
together become ready, so that links move only once."""
ROUND = 30.0
"""Seconds after which the effect of moves is judged: an agent connects elsewhere and leaves within 10 s of being told,
and both nodes report that within another 5 s."""
IDLE_ROUNDS = 3
"""Rounds without progress after which a rebalance ends."""
PROGRESS = 0.1
"""The share of the moved links that must have left the donors for a round to count as progress. With two pods behind a
load balancer that chooses at random, half of the links come back, and with many pods the mean may change as well."""
IN_VAIN = 20
"""The number of links that must have come back before the load balancer is to blame. If three of four pods shed links
behind a load balancer that chooses at random, one link in four leaves them; the probability that none of so many does
is 0.3 %."""
REFUSAL_MEMORY = 30.0
"""Seconds without a refused link after which pods leave new links to others again."""
AFTER_REMOVAL = 30.0
"""Seconds from a decision to remove a pod until that pod is seen to terminate."""


EVEN_REASON = "the links are spread evenly"
GIVEN_UP = (RebalanceOutcome.LOAD_BALANCER_PINS, RebalanceOutcome.NOTHING_TO_MOVE)


class RebalanceState(StrEnum):
    """What a pass found."""

    EVEN = "Even"
    WAITING = "Waiting"
    """The links are uneven, but not yet for long enough; or something prevents moves; or the links are unknown."""
    RUNNING = "Running"
    STOPPED = "Stopped"
    """The last rebalance could not make the links even."""


@dataclass(frozen=True, slots=True)
class RebalancePlan:
    """What one pass found, and what the nodes should do until the next one."""

    state: RebalanceState
    reason: str
    """Why links move, or why they do not, in words."""
    history: History
    """The history with the new state of the rebalance."""
    targets: Mapping[str, RebalanceTarget] = field(default_factory=dict)
    """What each pod's node should do. Empty unless a rebalance runs."""
    to_move: int = 0
    """Links that the donors have above their targets."""
    move_limit: float = math.inf
    """Moves per second that the receiving pods can take without getting more than their share."""
    started: bool = False
    ended: EndedRebalance | None = None
    """Set in the pass in which a rebalance ends."""

    @property
    def run(self) -> RebalanceRun | None:
        return self.history.rebalance.run

    @property
    def given_up(self) -> EndedRebalance | None:
        """Why the links stay uneven: how the last rebalance ended, unless a round has made progress since."""
        ended = self.history.rebalance.ended
        return ended if ended is not None and ended.outcome in GIVEN_UP else None


def plan_rebalance(fleet: FleetObservation, history: History, spec: LinkGatewaySpec, now: float) -> RebalancePlan:
    """What the nodes should do until the next pass. `history` is that of the decision of the same pass, and `now` its
    time."""
    spread = spread_of(fleet, spec)
    if obstacle := _obstacle(fleet, spread, history, spec, now):
        return _interrupt(spread, obstacle, history, now, readable=fleet.readable)
    before = history.rebalance
    pods = frozenset(pod.name for pod in spread.pods)
    same = pods == before.pods
    since = before.uneven_since if same and before.uneven_since is not None else now
    known = replace(
        before,
        pods=pods,
        uneven_since=since if spread.uneven else None,
        counters=tuple(PodCounters(pod.name, pod.moved, pod.refused) for pod in spread.pods),
        refusing_at=now if _refuse(spread, before) else before.refusing_at,
    )
    history = replace(history, rebalance=known)
    if before.run is not None:
        run = before.run if same else _new_round(before.run, spread, now)
        run = replace(run, operation=fleet.rebalance_operation)
        return _continue(spread, _count(run, before, spread), history, now)
    if fleet.rebalance_operation:
        return _start(spread, fleet.rebalance_operation, history, now)
    return _idle(spread, history, now)


def _obstacle(fleet: FleetObservation, spread: LinkSpread, history: History, spec: LinkGatewaySpec, now: float) -> str:
    """Why no links are moved now, "" when they may be."""
    run, mode = history.rebalance.run, spec.scaling.mode
    if run is not None and run.operation and run.operation != fleet.rebalance_operation:
        return "the LinkOperation that asked for it has ended"
    if not spec.rebalance.enabled and not fleet.rebalance_operation:
        return "rebalance.enabled is false"
    if mode in (Mode.PAUSED, Mode.DRY_RUN):
        return f"scaling.mode is {mode}"
    if not fleet.readable:
        return "Redis cannot be read"
    if fleet.rollout:
        return "a rollout is in progress"
    if fleet.operation and not fleet.rebalance_operation:
        return f"the LinkOperation {fleet.operation} is running"
    if leaving := sum(pod.leaving for pod in fleet.pods):
        return f"{pod_count(leaving)} must finish terminating first"
    if history.removed_at is not None and now - history.removed_at < AFTER_REMOVAL:
        return "a pod is about to be removed"
    if silent := sum(not pod.fresh for pod in spread.pods):
        return f"{silent} of {pod_count(len(spread.pods))} have not reported"
    if history.short_of_pods:
        return "the fleet needs at least twice its ready pods"
    if history.links.rejecting_since is not None and spread.is_full:
        return "links are being refused because all pods are full"
    return ""


def _interrupt(spread: LinkSpread, obstacle: str, history: History, now: float, *, readable: bool) -> RebalancePlan:
    before, ended = history.rebalance, None
    if (run := before.run) is not None:
        ended = EndedRebalance(RebalanceOutcome.INTERRUPTED, now, run.moved, obstacle, run.operation)
    kept = replace(before, run=None, uneven_since=None, pods=frozenset(), ended=ended or before.ended)
    history = replace(history, rebalance=kept)
    if readable and not spread.uneven:
        return RebalancePlan(RebalanceState.EVEN, EVEN_REASON, history, ended=ended)
    return RebalancePlan(RebalanceState.WAITING, f"no links are moved: {obstacle}", history, ended=ended)


def _idle(spread: LinkSpread, history: History, now: float) -> RebalancePlan:
    """No rebalance runs: starts one when the links are uneven for long enough."""
    known = history.rebalance
    if not spread.uneven or known.uneven_since is None:
        kept = replace(known, ended=None, paused_until=None)
        return RebalancePlan(RebalanceState.EVEN, EVEN_REASON, replace(history, rebalance=kept))
    if known.paused_until is not None and now < known.paused_until and known.ended is not None:
        return RebalancePlan(RebalanceState.STOPPED, known.ended.message, history)
    if now - known.uneven_since < STEADY:
        reason = f"{spread}: links are moved when this has lasted for {STEADY:g} s"
        return RebalancePlan(RebalanceState.WAITING, reason, history)
    return _start(spread, "", history, now)


def _start(spread: LinkSpread, operation: str, history: History, now: float) -> RebalancePlan:
    run = _new_round(RebalanceRun(began=now, operation=operation), spread, now)
    return replace(_continue(spread, run, history, now), started=True)


def _new_round(run: RebalanceRun, spread: LinkSpread, now: float) -> RebalanceRun:
    """`run` over other pods than before: its progress so far no longer counts."""
    donors = spread.donors(run.donors)
    least = spread.surplus(donors)
    return replace(run, donors=donors, least=least, round_began=now, moved_in_round=0, idle_rounds=0, moved_in_vain=0)


def _count(run: RebalanceRun, before: RebalanceHistory, spread: LinkSpread) -> RebalanceRun:
    """`run` with the links that nodes have moved since the last pass. A counter starts at 0 again when its process
    restarts.
    """
    then = {one.pod: one.moved for one in before.counters}
    moved = sum(max(0, pod.moved - then.get(pod.name, pod.moved)) for pod in spread.pods)
    return replace(run, moved=run.moved + moved, moved_in_round=run.moved_in_round + moved)


def _refuse(spread: LinkSpread, before: RebalanceHistory) -> bool:
    """Whether a pod that should take new links has refused one since the last pass. Donors do not count: they shed
    links because they are full.
    """
    then = {one.pod: one.refused for one in before.counters}
    donors = frozenset() if before.run is None else before.run.donors
    return any(pod.refused > then.get(pod.name, pod.refused) for pod in spread.pods if pod.name not in donors)


def _continue(spread: LinkSpread, run: RebalanceRun, history: History, now: float) -> RebalancePlan:
    run = replace(run, donors=spread.donors(run.donors))
    surplus = spread.surplus(run.donors)
    if spread.fullest <= spread.near_mean:
        if all(pod.age <= now - run.began for pod in spread.pods):
            return _end(spread, run, history, now)
        # Reports from before its start may lack the very agents for which it was requested, if they have just
        # connected.
        kept = replace(history, rebalance=replace(history.rebalance, run=run))
        return RebalancePlan(RebalanceState.RUNNING, f"the pods are yet to report again: {spread}", kept)
    if now - run.round_began >= ROUND:
        run = _judge(run, surplus, now)
        if run.idle_rounds == 0:
            history = replace(history, rebalance=replace(history.rebalance, ended=None))
        elif run.idle_rounds >= IDLE_ROUNDS:
            return (_give_up if spread.uneven else _end)(spread, run, history, now)
    refused_at = history.rebalance.refusing_at
    refusing = refused_at is not None and now - refused_at < REFUSAL_MEMORY
    takers = frozenset(pod.name for pod in spread.pods) if refusing else spread.takers
    return RebalancePlan(
        RebalanceState.RUNNING,
        f"{surplus} links are to be moved: {spread}",
        replace(history, rebalance=replace(history.rebalance, run=run)),
        spread.targets(run.donors, takers),
        surplus,
        spread.move_limit(takers),
    )


def _judge(run: RebalanceRun, surplus: int, now: float) -> RebalanceRun:
    """`run` at the end of a round."""
    fallen = run.least - surplus
    if fallen > 0 and fallen >= PROGRESS * run.moved_in_round:
        return replace(run, least=surplus, round_began=now, moved_in_round=0, idle_rounds=0, moved_in_vain=0)
    return replace(
        run,
        round_began=now,
        moved_in_round=0,
        idle_rounds=run.idle_rounds + 1,
        moved_in_vain=run.moved_in_vain + run.moved_in_round,
    )


def _end(spread: LinkSpread, run: RebalanceRun, history: History, now: float) -> RebalancePlan:
    message = f"{run.moved} links were moved in {now - run.began:.0f} s; {spread}"
    ended = EndedRebalance(RebalanceOutcome.EVEN, now, run.moved, message, run.operation)
    kept = replace(history.rebalance, run=None, uneven_since=None, ended=ended)
    return RebalancePlan(RebalanceState.EVEN, message, replace(history, rebalance=kept), ended=ended)


def _give_up(spread: LinkSpread, run: RebalanceRun, history: History, now: float) -> RebalancePlan:
    before = history.rebalance.ended
    if run.moved_in_vain >= IN_VAIN:
        outcome = RebalanceOutcome.LOAD_BALANCER_PINS
        message = (
            f"{run.moved_in_vain} links were moved in the last {run.idle_rounds * ROUND:g} s and came back to the pods "
            f"that they had left, as behind a load balancer with session affinity; {spread}"
        )
    elif before is not None and before.outcome in GIVEN_UP:
        outcome, message = before.outcome, before.message  # nothing could be moved, so what was found still holds
    else:
        outcome = RebalanceOutcome.NOTHING_TO_MOVE
        message = f"the links that are left run commands or have been moved within the last hour; {spread}"
    ended = EndedRebalance(outcome, now, run.moved, message, run.operation)
    kept = replace(history.rebalance, run=None, uneven_since=None, ended=ended, paused_until=now + PAUSE)
    return RebalancePlan(RebalanceState.STOPPED, message, replace(history, rebalance=kept), ended=ended)
