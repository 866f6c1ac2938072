"""How many pods: `decide(load, state, spec, now)`, pure, and with every number that it was made of.

Called by the loop every ten seconds with what it saw, and by tests with anything. It reads no clock and no cluster:
`now` is any clock that only goes forward, ages of rows come in as numbers. What it must remember between two calls
comes back in `Decision.state`, which the caller hands in again; a new operator begins with an empty one and removes
nothing before it has watched for a whole window.

Up is cheap and at once; down moves people's links, so it is slow, one pod at a time, and only on fresh numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum

from fairlead_operator.api.gateway_spec import LinkGatewaySpec, Mode
from fairlead_operator.autoscaler.history import FleetObservation, History, maxima, remember

STEP_SECONDS = 60.0
STEP_LEAST = 4
"""In STEP_SECONDS the pods may double, and by four at least: what a wrong number can cost is bounded."""
PANIC_REJECTS = 30.0
"""Seconds of refused links after which the step limit counts from look to look, no longer over STEP_SECONDS."""
STALE_SHARE = 0.2
SURVIVE_FILL = 0.95
LEAD_MARGIN = 10.0
"""Seconds on top of the measured start of a pod: the look that notices it, and that it is noticed a look late."""
LEAD_MOST = 300.0
"""Seconds: a pod that waited an hour for a place says nothing about how far growth must be looked ahead."""
ROOM_AFTER = 6 / 7
"""Of the target utilisation, after a removal: at 70 % the rest may be filled to 60 %, so that it is not taken back."""


class Action(StrEnum):
    UP = "Up"
    DOWN = "Down"
    STAY = "Stay"
    HOLD = "Hold"
    """The numbers are not to be trusted: never fewer pods."""


@dataclass(frozen=True, slots=True)
class Need:
    """What each rule asks for."""

    load: int
    survive: int
    herd: int

    @property
    def most(self) -> int:
        return max(self.load, self.survive, self.herd)

    @property
    def winner(self) -> str:
        return max(("load", "survive", "herd"), key=lambda name: int(getattr(self, name)))


@dataclass(frozen=True, slots=True)
class Inputs:
    links: int
    live: int
    growth: float
    rejects: float
    capacity: int
    pods: int
    ready: int
    fresh: int
    stale: int
    pending: int
    leaving: int
    lead: float


@dataclass(frozen=True, slots=True)
class Decision:
    action: Action
    replicas: int
    winner: str
    reason: str
    limited: bool
    need: Need
    inputs: Inputs
    state: History
    victim: str = ""
    """Going down: the pod that should go."""


def decide(load: FleetObservation, state: History, spec: LinkGatewaySpec, now: float) -> Decision:
    """How many pods there should be now, and why."""
    state, live = remember(load, state, now)
    inputs = _inputs(load, state, live, spec)
    need = _need(inputs, spec)
    low, high, current = spec.replicas.min, spec.replicas.max, load.replicas
    wanted, winner = min(max(need.most, low), high), need.winner
    if need.most < low:
        winner = "min"
    elif need.most > high:
        winner = "max"
    if spec.scaling.mode is Mode.EXTERNAL:
        asked = spec.scaling.replicas
        wanted, winner = (current if asked is None else min(max(asked, low), high)), "external"
    needs = maxima(state.needs, now, wanted, spec.scaling.window_seconds)
    state = replace(state, needs=needs)
    panic = _panic(state, need, inputs, now)

    def made(action: Action, replicas: int, reason: str, *, limited: bool = False, victim: str = "") -> Decision:
        sizes = (*(one for one in state.sizes if now - one[0] < STEP_SECONDS), (now, current))
        kept = replace(state, sizes=sizes)
        if action is Action.DOWN:
            kept = replace(kept, removed_at=now)
        cut = limited or winner == "max"
        return Decision(action, replicas, winner, reason, cut, need, inputs, kept, victim)

    if wanted > current:
        allowed = wanted if winner == "external" else max(_step(state, current, now, panic=panic), low)
        if allowed <= current:
            return made(Action.STAY, current, f"{wanted} wanted; at most doubled within 60 s", limited=True)
        return made(Action.UP, min(wanted, allowed), _why(winner, wanted), limited=allowed < wanted)
    distrust = _distrust(load, inputs)
    if distrust:
        return made(Action.HOLD, current, distrust)
    if wanted == current:
        return made(Action.STAY, current, _why(winner, wanted))
    against = _against(load, state, spec, inputs, now, panic=panic, asked=winner == "external" or current > high)
    if against:
        return made(Action.STAY, current, f"{wanted} would do, but {against}")
    victim = min((pod for pod in load.pods if pod.ready and not pod.leaving), key=lambda pod: (pod.cost, pod.name))
    return made(Action.DOWN, current - 1, _why(winner, wanted), victim=victim.name)


def _inputs(load: FleetObservation, state: History, live: int, spec: LinkGatewaySpec) -> Inputs:
    told = [pod.row.capacity for pod in load.pods if pod.row is not None and pod.fresh and pod.row.capacity > 0]
    staying = [pod for pod in load.pods if not pod.leaving]
    return Inputs(
        links=state.links,
        live=live,
        growth=state.growth,
        rejects=state.rejects,
        capacity=min([spec.capacity, *told]),
        pods=len(load.pods),
        ready=sum(pod.ready for pod in staying),
        fresh=sum(pod.fresh for pod in staying),
        stale=sum(pod.stale for pod in staying),
        pending=sum(not pod.ready for pod in staying),
        leaving=len(load.pods) - len(staying),
        lead=spec.scaling.lead_seconds if state.lead is None else min(LEAD_MOST, state.lead + LEAD_MARGIN),
    )


def _need(inputs: Inputs, spec: LinkGatewaySpec) -> Need:
    ahead = max(0.0, inputs.growth + inputs.rejects) * inputs.lead
    links = inputs.links
    return Need(
        load=math.ceil((links + ahead) * 100 / (spec.target_utilisation * inputs.capacity)),
        survive=math.ceil(links / (SURVIVE_FILL * inputs.capacity)) + spec.scaling.survive,
        herd=math.ceil(links / (spec.accept_rate * spec.scaling.herd_seconds)),
    )


def _panic(state: History, need: Need, inputs: Inputs, now: float) -> bool:
    rejecting = state.rejecting_since is not None and now - state.rejecting_since >= PANIC_REJECTS
    return rejecting or need.most >= 2 * max(1, inputs.ready)


def _step(state: History, current: int, now: float, *, panic: bool) -> int:
    """The most that the step limit allows now."""
    base = current
    if not panic:
        base = min([current, *(size for at, size in state.sizes if now - at < STEP_SECONDS)])
    return max(base + STEP_LEAST, base * 2)


def _distrust(load: FleetObservation, inputs: Inputs) -> str:
    if not load.readable:
        return "Redis cannot be read: holding"
    if inputs.stale > STALE_SHARE * max(1, inputs.ready):
        return f"{inputs.stale} of {inputs.ready} ready pods are silent: holding"
    return ""


def _against(
    load: FleetObservation,
    state: History,
    spec: LinkGatewaySpec,
    inputs: Inputs,
    now: float,
    *,
    panic: bool,
    asked: bool,
) -> str:
    """What speaks against removing one pod now, "" for nothing. `asked`: somebody said the number."""
    current = load.replicas
    if load.rollout:
        return "a rollout is under way"
    if load.operation:
        return f"the operation {load.operation} is under way"
    if inputs.leaving:
        return f"{inputs.leaving} pods are leaving"
    if inputs.pending:
        return f"{inputs.pending} pods are not ready, and would be removed first"
    if inputs.fresh < inputs.ready or inputs.ready < current:
        return f"only {inputs.fresh} of {current} pods have told of themselves"
    if (since := now - state.removed_at) < spec.scaling.step_down_seconds:
        return f"the last removal was {since:.0f} s ago ({spec.scaling.step_down_seconds} s are kept)"
    if asked:
        return ""
    if panic:
        return "links are being refused"
    recent = state.needs[0][1]
    if recent >= current:
        return f"{recent} were wanted within the last {spec.scaling.window_seconds} s"
    if (watched := now - (state.began or 0.0)) < spec.scaling.window_seconds:
        return f"the need has been watched for {watched:.0f} s only ({spec.scaling.window_seconds} s are asked for)"
    room = spec.target_utilisation / 100 * ROOM_AFTER
    if (filled := inputs.links / ((current - 1) * inputs.capacity)) > room:
        return f"the others would be filled to {filled:.0%} ({room:.0%} is allowed)"
    return ""


def _why(winner: str, wanted: int) -> str:
    return {
        "load": f"{wanted} pods hold the links and their growth at the target utilisation",
        "survive": f"{wanted} pods hold all links when as many die as must be survived",
        "herd": f"{wanted} pods take the whole fleet back in time",
        "min": f"replicas.min asks for {wanted}",
        "max": f"more are needed, replicas.max allows {wanted}",
        "external": f"{wanted} were asked for from outside",
    }[winner]
