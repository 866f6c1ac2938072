"""How many pods a fleet should have: `decide(fleet, history, spec, now)` returns the number and the reason. Pure.

The reconciler calls it in every pass. It reads neither a clock nor the cluster: `now` is the time in seconds of any
monotonic clock. What must be remembered until the next call is in `Decision.history`.

The fleet gets the greatest number that any of the `rules` requires, within `replicas.min` and `replicas.max`. Pods are
added at once, with a limit only to bound the cost of a wrong number. `removal_hold` says what prevents a removal, and
`scale_down` which pods are removed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from fairlead_operator.api.gateway_spec import LinkGatewaySpec, Mode
from fairlead_operator.api.gateway_status import ComparedAutoscaler, DecisionInputs, RuleStatus
from fairlead_operator.autoscaler.history.fleet_history import STEP_SECONDS, History
from fairlead_operator.autoscaler.history.link_history import LOST_SECONDS
from fairlead_operator.autoscaler.observation import FleetObservation
from fairlead_operator.autoscaler.other_autoscalers import compare
from fairlead_operator.autoscaler.removal_hold import Hold, RemovalHold, removal_hold
from fairlead_operator.autoscaler.rules import RULES
from fairlead_operator.autoscaler.scale_down import removal_step
from fairlead_operator.autoscaler.snapshot import Snapshot, take_snapshot
from fairlead_operator.kube.workload_status import pod_count

STEP_LEAST = 4
"""Within STEP_SECONDS the number of pods may double, or grow by this many if that is more, which bounds the cost of a
wrong number."""
PANIC_REJECTS = 30.0
"""Seconds of refused links after which the limit applies to each pass, and no longer to STEP_SECONDS."""
STALE_SHARE = 0.2
"""Share of the ready pods that may be silent before the numbers are not trusted."""


class Action(StrEnum):
    UP = "Up"
    DOWN = "Down"
    STAY = "Stay"
    HOLD = "Hold"
    """The numbers cannot be trusted, so no pod is removed."""


@dataclass(frozen=True, slots=True)
class Target:
    """The wanted number of pods, before the limit of a step is applied."""

    replicas: int
    winner: str
    """Name of the rule that requires the most, or what overrides it: min, max or external."""
    reason: str

    @property
    def ordered(self) -> bool:
        """Whether something outside the operator has set the number, as in the mode External."""
        return self.winner == "external"


@dataclass(frozen=True, slots=True)
class Decision:
    action: Action
    target: Target
    replicas: int
    reason: str
    limited: bool
    """Whether replicas.max or the limit of a step reduced the number."""
    rules: tuple[RuleStatus, ...]
    inputs: DecisionInputs
    history: History
    victims: tuple[str, ...] = ()
    """The pods that should be removed if `action` is DOWN."""
    hold: RemovalHold | None = None
    """What prevents a removal; None if `action` is DOWN."""
    comparison: tuple[ComparedAutoscaler, ...] = ()
    """What other autoscalers would do; only in the mode DryRun."""

    @property
    def required(self) -> int:
        """The greatest number of pods that a rule requires."""
        return required(self.rules)


def decide(fleet: FleetObservation, history: History, spec: LinkGatewaySpec, now: float) -> Decision:
    """How many pods there should be now, and why."""
    snapshot = take_snapshot(fleet, history.observe(fleet, now, week=spec.scaling.week_profile), spec, now)
    rules = tuple(rule.evaluate(snapshot) for rule in RULES)
    target = _target(rules, snapshot)
    history = snapshot.history.want(target.replicas, now, spec.scaling.window_seconds or LOST_SECONDS)
    comparison, compared = compare(snapshot)
    history = replace(history, compared=compared)
    snapshot = Snapshot(fleet, snapshot.inputs, history, spec, now)
    current = fleet.replicas
    needed = RemovalHold(target.winner, target.reason)

    def made(
        action: Action,
        replicas: int,
        reason: str,
        hold: RemovalHold | None,
        *,
        cut: bool = False,
        victims: tuple[str, ...] = (),
    ) -> Decision:
        kept = history.decided(current, now, removal=action is Action.DOWN, short_of_pods=short)
        limited = cut or target.winner == "max"
        return Decision(
            action, target, replicas, reason, limited, rules, snapshot.inputs, kept, victims, hold, comparison
        )

    short = required(rules) >= 2 * max(1, snapshot.inputs.ready)
    panic = short or _is_rejecting(snapshot)
    if target.replicas > current:
        most = target.replicas if target.ordered else max(_step_limit(snapshot, panic=panic), spec.replicas.min)
        if most <= current:
            reason = f"{target.reason}, but the fleet may at most double within {STEP_SECONDS:g} s"
            return made(Action.STAY, current, reason, needed, cut=True)
        return made(Action.UP, min(target.replicas, most), target.reason, needed, cut=most < target.replicas)
    if distrust := _why_hold(snapshot):
        return made(Action.HOLD, current, distrust, RemovalHold(Hold.NUMBERS_UNKNOWN, distrust))
    if target.replicas == current:
        return made(Action.STAY, current, target.reason, needed)
    ordered = target.ordered or current > spec.replicas.max
    if hold := removal_hold(snapshot, panic=panic, ordered=ordered):
        return made(Action.STAY, current, f"{pod_count(target.replicas)} would suffice, but {hold.reason}", hold)
    step = removal_step(snapshot, target.replicas, panic=panic, ordered=ordered)
    return made(Action.DOWN, current - len(step.victims), f"{target.reason}; {step}", None, victims=step.names)


def required(rules: tuple[RuleStatus, ...]) -> int:
    """The greatest number of pods that a rule requires."""
    return max(rule.replicas for rule in rules)


def _target(rules: tuple[RuleStatus, ...], snapshot: Snapshot) -> Target:
    low, high, scaling = snapshot.spec.replicas.min, snapshot.spec.replicas.max, snapshot.spec.scaling
    if scaling.mode is Mode.EXTERNAL:
        replicas = snapshot.fleet.replicas if scaling.replicas is None else min(max(scaling.replicas, low), high)
        return Target(replicas, "external", f"a scale of {pod_count(replicas)} was set from outside")
    strongest = max(rules, key=lambda rule: rule.replicas)
    if strongest.replicas < low:
        return Target(low, "min", f"replicas.min asks for {pod_count(low)}")
    if strongest.replicas > high:
        return Target(high, "max", f"more pods are needed, but replicas.max allows only {high}")
    return Target(strongest.replicas, strongest.name, strongest.reason)


def _is_rejecting(snapshot: Snapshot) -> bool:
    since = snapshot.history.links.rejecting_since
    return since is not None and snapshot.now - since >= PANIC_REJECTS


def _step_limit(snapshot: Snapshot, *, panic: bool) -> int:
    """The most pods that the fleet may have now, counted from its least size within STEP_SECONDS."""
    base = snapshot.fleet.replicas
    if not panic:
        recent = [size for at, size in snapshot.history.sizes if snapshot.now - at < STEP_SECONDS]
        base = min([base, *recent])
    return max(base + STEP_LEAST, base * 2)


def _why_hold(snapshot: Snapshot) -> str:
    """Why the numbers cannot be trusted, "" when they can."""
    inputs = snapshot.inputs
    if not snapshot.fleet.readable:
        return "Redis cannot be read, so the number of pods is held"
    if inputs.stale > STALE_SHARE * max(1, inputs.ready):
        return f"{inputs.stale} of {inputs.ready} ready pods are silent, so the number of pods is held"
    return ""
