"""The next step of an operation: a table of cases, and a property for any fleet and any history."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Unpack

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.errors import ConfigError
from fairlead.fleet.directives.disconnect_report import DisconnectReport
from fairlead.fleet.node_table import NodeRow
from fairlead_operator.api.gateway_spec import LinkGatewaySpec, Redis, Tokens, TokenSecret
from fairlead_operator.api.link_operation import ENDED, Operation, Phase, Type, read_operation
from fairlead_operator.autoscaler.history import History
from fairlead_operator.autoscaler.history.rebalance_history import EndedRebalance, RebalanceHistory, RebalanceOutcome
from fairlead_operator.autoscaler.observation import FleetObservation, NodeMetrics, PodObservation
from fairlead_operator.autoscaler.rebalance import RebalancePlan, RebalanceState, plan_rebalance
from fairlead_operator.operations.disconnect_progress import DisconnectProgress, disconnect_progress
from fairlead_operator.operations.operation_queue import is_expired
from fairlead_operator.operations.step import Step, StepAction, StepContext, next_step

from support.decisions import PodFields

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
UID = "uid-of-the-operation"
SPEC = LinkGatewaySpec(
    image="gateway", redis=Redis(url="redis://r"), tokens=Tokens(secret_ref=TokenSecret(name="tokens"))
)


def new_operation(kind: Type, pod: str | None = None, **more: object) -> Operation:
    spec = {"gateway": {"name": "edge"}, "type": kind, "pod": pod, **more}
    return read_operation({"metadata": {"name": "op", "uid": UID}, "spec": spec})


def seen(*pods: PodObservation, replicas: int | None = None, readable: bool = True, **more: Any) -> StepContext:
    """The context with these pods; the Deployment asks for as many unless `replicas` is given."""
    return StepContext("edge", FleetObservation(len(pods) if replicas is None else replicas, pods, readable), **more)


def pod(name: str, links: int = 0, **more: Unpack[PodFields]) -> PodObservation:
    return PodObservation(name, f"uid-of-{name}", links=links, **more)


def then(operation: Operation, step: Step) -> Operation:
    """The operation as the next pass reads it."""
    return replace(operation, status=msgspec.convert(msgspec.to_builtins(step.status), type(step.status)))


A, B, C = pod("a", links=30), pod("b", links=20), pod("c", links=10)
DRAIN = new_operation(Type.DRAIN, "a")
RESTART = new_operation(Type.RESTART)


def test_drain_begins_with_the_eviction_of_its_pod() -> None:
    step = next_step(DRAIN, seen(A, B), "", NOW)
    assert (step.action, step.reason, step.status.phase) == (StepAction.EVICT, "Draining", Phase.RUNNING)
    assert (step.status.pod_uid, step.status.links_at_start, step.status.ready_wanted) == ("uid-of-a", 30, 2)
    assert step.status.started_at == "2026-11-21T12:00:00Z"


RUNNING = then(DRAIN, next_step(DRAIN, seen(A, B), "", NOW))


@pytest.mark.parametrize(
    ("context", "action", "reason", "phase"),
    [
        # Not evicted yet: a new leader may find it so, or a disruption budget did not allow it.
        (seen(A, B), StepAction.EVICT, "Draining", Phase.RUNNING),
        (seen(replace(A, leaving=True), B, C, replicas=2), StepAction.NOTHING, "Draining", Phase.RUNNING),
        (seen(B, replicas=2), StepAction.NOTHING, "Replacing", Phase.RUNNING),
        (seen(B, replace(C, ready=False)), StepAction.NOTHING, "Replacing", Phase.RUNNING),
        (seen(B, replace(C, leaving=True), replicas=2), StepAction.NOTHING, "Replacing", Phase.RUNNING),
        (seen(B, C), StepAction.NOTHING, "Completed", Phase.SUCCEEDED),
        # Fewer pods are asked for meanwhile: the drain does not wait for one that will not come.
        (seen(B), StepAction.NOTHING, "Completed", Phase.SUCCEEDED),
        # Another pod of the same name is not the one to drain.
        (seen(replace(A, uid="another"), B), StepAction.NOTHING, "Completed", Phase.SUCCEEDED),
        # Paused: an eviction that has begun completes, and one that has not does not begin.
        (seen(replace(A, leaving=True), B, paused=True), StepAction.NOTHING, "Draining", Phase.RUNNING),
        (seen(A, B, paused=True), StepAction.NOTHING, "GatewayPaused", Phase.FAILED),
    ],
)
def test_running_drain_waits_for_its_pod(context: StepContext, action: StepAction, reason: str, phase: Phase) -> None:
    step = next_step(RUNNING, context, "", NOW + timedelta(seconds=10))
    assert (step.action, step.reason, step.status.phase) == (action, reason, phase)


def test_drain_of_an_unready_pod_waits_for_a_ready_one() -> None:
    ill = replace(A, ready=False)
    step = next_step(DRAIN, seen(ill, B), "", NOW)
    assert (step.action, step.status.ready_wanted) == (StepAction.EVICT, 2)
    assert next_step(then(DRAIN, step), seen(B, replicas=2), "", NOW).status.phase is Phase.RUNNING


def test_drain_does_not_wait_for_other_unready_pods() -> None:
    step = next_step(DRAIN, seen(A, B, replace(C, ready=False)), "", NOW)
    after = seen(B, replace(C, ready=False), pod("new"))
    assert next_step(then(DRAIN, step), after, "", NOW).status.phase is Phase.SUCCEEDED


def test_drain_does_not_replace_pods_that_terminate_anyway() -> None:
    step = next_step(DRAIN, seen(A, B, replace(C, leaving=True)), "", NOW)
    assert step.status.ready_wanted == 2


def test_restart_of_an_unready_fleet_waits_for_one_ready_pod() -> None:
    ill = [replace(one, ready=False) for one in (A, B)]
    going = then(RESTART, next_step(RESTART, seen(*ill), "", NOW))
    new = [pod(name, restarted_by=UID, ready=False) for name in ("x", "y")]
    step = next_step(going, seen(*new, template_restart=UID), "", NOW)
    assert (step.status.phase, step.status.message) == (Phase.RUNNING, "0 of 1 pods are ready")


def test_restart_replaces_the_pods_of_an_earlier_restart() -> None:
    before = [replace(one, restarted_by="an-earlier-operation") for one in (A, B)]
    step = next_step(RESTART, seen(*before, template_restart="an-earlier-operation"), "", NOW)
    assert (step.action, step.status.message) == (StepAction.RESTART, "2 old pods have 50 links left")


def test_links_left_are_counted_down_and_kept_while_unknown() -> None:
    step = next_step(RUNNING, seen(replace(A, leaving=True, links=12), B), "", NOW)
    assert (step.status.links_left, step.status.message) == (12, "a has 12 links left")
    unknown = seen(replace(A, leaving=True), B, readable=False)
    step = next_step(then(RUNNING, step), unknown, "", NOW)
    assert (step.status.links_left, step.status.message) == (12, "a has an unknown number of links left")
    assert next_step(DRAIN, seen(A, readable=False), "", NOW).status.links_at_start is None


def test_restart_annotates_the_template_once_and_waits_for_the_last_old_pod() -> None:
    step = next_step(RESTART, seen(A, B), "", NOW)
    assert (step.action, step.status.links_at_start, step.status.ready_wanted) == (StepAction.RESTART, 50, 2)
    going = then(RESTART, step)
    new = [pod(name, restarted_by=UID, links=5) for name in ("x", "y")]
    step = next_step(going, seen(replace(A, leaving=True), *new, replicas=2, template_restart=UID), "", NOW)
    assert (step.action, step.status.phase, step.status.links_left) == (StepAction.NOTHING, Phase.RUNNING, 30)
    step = next_step(going, seen(*new, template_restart=UID), "", NOW)
    assert (step.status.phase, step.status.message) == (Phase.SUCCEEDED, "all pods are new; 2 pods are ready")
    # Somebody has undone the rollout: its pods are old ones.
    assert next_step(going, seen(new[0], B), "", NOW).action is StepAction.RESTART


@pytest.mark.parametrize(
    ("operation", "context", "ahead", "phase", "reason", "words"),
    [
        (DRAIN, seen(A, B), "other", Phase.PENDING, "Queued", "waiting for the operation other"),
        (DRAIN, seen(A, paused=True), "", Phase.FAILED, "GatewayPaused", "edge is Paused"),
        (RESTART, seen(A, paused=True), "", Phase.FAILED, "GatewayPaused", "edge is Paused"),
        (DRAIN, seen(B), "", Phase.FAILED, "PodNotFound", "edge has no running pod a"),
        (DRAIN, seen(B, pod_is_foreign=True), "", Phase.FAILED, "PodNotOwned", "a does not belong to"),
    ],
)
def test_operation_that_may_not_begin_waits_or_fails(
    operation: Operation, context: StepContext, ahead: str, phase: Phase, reason: str, words: str
) -> None:
    step = next_step(operation, context, ahead, NOW)
    assert (step.action, step.status.phase, step.reason) == (StepAction.NOTHING, phase, reason)
    assert words in step.status.message
    assert (step.status.finished_at is not None) is (phase is Phase.FAILED)
    assert step.status.started_at is None


def test_deadline_counts_from_the_start_and_the_message_says_what_was_missing() -> None:
    operation = new_operation(Type.DRAIN, "a", activeDeadlineSeconds=60)
    step = next_step(operation, seen(A, B), "", NOW)
    blocked = replace(
        operation, status=msgspec.structs.replace(step.status, message="a cannot be replaced yet: a budget")
    )
    late = next_step(blocked, seen(A, B), "", NOW + timedelta(seconds=61))
    assert (late.action, late.reason, late.status.phase) == (StepAction.NOTHING, "DeadlineExceeded", Phase.FAILED)
    assert late.status.message.startswith("not complete 60 s after its start: a cannot be replaced yet: a budget")
    assert next_step(blocked, seen(A, B), "", NOW + timedelta(seconds=60)).action is StepAction.EVICT
    # A complete operation succeeds, however late that is observed.
    assert next_step(blocked, seen(B, C), "", NOW + timedelta(seconds=900)).status.phase is Phase.SUCCEEDED


@pytest.mark.parametrize(
    "spec",
    [
        {"gateway": {"name": "edge"}, "type": "Drain"},
        {"gateway": {"name": "edge"}, "type": "Restart", "pod": "a"},
        {"gateway": {"name": "edge"}, "type": "Sometimes"},
        {"gateway": {"name": "edge"}, "type": "Rebalance", "pod": "a"},
        {"type": "Restart"},
        {"gateway": {"name": "edge"}, "type": "Disconnect"},
        {"gateway": {"name": "edge"}, "type": "Disconnect", "disconnect": {}},
        {"gateway": {"name": "edge"}, "type": "Disconnect", "disconnect": {"selector": "a=b", "agents": ["x"]}},
        {"gateway": {"name": "edge"}, "type": "Disconnect", "disconnect": {"selector": "a in (b"}},
        {"gateway": {"name": "edge"}, "type": "Disconnect", "disconnect": {"selector": " "}},
        {"gateway": {"name": "edge"}, "type": "Rebalance", "disconnect": {"selector": "a=b"}},
    ],
)
def test_values_that_an_old_crd_accepted_are_refused(spec: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        read_operation({"metadata": {"name": "op", "uid": UID}, "spec": spec})


# -- for any fleet ------------------------------------------------------------------------------------

names = st.sampled_from("abcd")
pods = st.builds(
    PodObservation,
    name=names,
    uid=st.sampled_from(["uid-of-a", "uid-of-b", "another"]),
    ready=st.booleans(),
    leaving=st.booleans(),
    links=st.integers(0, 1000),
    restarted_by=st.sampled_from(["", UID]),
)
fleets = st.builds(
    FleetObservation,
    replicas=st.integers(0, 5),
    pods=st.lists(pods, max_size=4, unique_by=lambda one: one.name).map(tuple),
    readable=st.booleans(),
)
contexts = st.builds(
    StepContext,
    gateway=st.just("edge"),
    fleet=fleets,
    template_restart=st.sampled_from(["", UID]),
    paused=st.booleans(),
    pod_is_foreign=st.booleans(),
)


@settings(max_examples=300, deadline=None)
@given(
    operation=st.sampled_from([DRAIN, RESTART]),
    history=st.lists(st.tuples(contexts, st.sampled_from(["", "other"]), st.integers(0, 3000)), max_size=6),
)
def test_step_for_any_history_keeps_its_invariants(
    operation: Operation, history: list[tuple[StepContext, str, int]]
) -> None:
    now = NOW
    for context, ahead, seconds in history:
        now += timedelta(seconds=seconds)
        before = operation.status
        step = next_step(operation, context, ahead, now)
        after = step.status
        assert next_step(operation, context, ahead, now) == step  # a new leader that sees the same does the same
        if step.action is not StepAction.NOTHING:
            assert after.phase is Phase.RUNNING
            assert not context.paused
            assert before.phase is Phase.RUNNING or not ahead
        if step.action is StepAction.EVICT:
            # Only the pod that had the name when the operation began.
            assert any(one.uid == after.pod_uid and not one.leaving for one in context.fleet.pods)
            assert operation.spec.type is Type.DRAIN
        if before.phase in ENDED:
            assert after == before
        if before.phase is Phase.RUNNING:
            assert after.phase is not Phase.PENDING
            assert (after.started_at, after.pod_uid) == (before.started_at, before.pod_uid)
        assert (after.finished_at is not None) is (after.phase in ENDED)
        assert after.message
        operation = then(operation, step)


# -- a Rebalance -------------------------------------------------------------------------------------------

REBALANCE = new_operation(Type.REBALANCE)


def planned(*links: int, operation: str = UID) -> RebalancePlan:
    """The first pass of a rebalance that the operation asked for, on reports of that moment."""
    pods = tuple(PodObservation(f"p{i}", age=0.0, links=n, capacity=1000) for i, n in enumerate(links))
    return plan_rebalance(FleetObservation(len(pods), pods, rebalance_operation=operation), History(), SPEC, 0.0)


def test_rebalance_begins_and_follows_the_passes() -> None:
    step = next_step(REBALANCE, seen(A, B), "", NOW)
    assert (step.action, step.status.phase) == (StepAction.NOTHING, Phase.RUNNING)
    begun = then(REBALANCE, step)
    assert next_step(begun, seen(A, B), "", NOW).reason == "Waiting"  # a leader's first pass has no plan
    step = next_step(begun, seen(A, B, rebalance=planned(300, 100)), "", NOW)
    assert (step.reason, step.status.links_at_start, step.status.links_left) == ("Rebalancing", 100, 100)
    assert next_step(begun, seen(A, B, rebalance=planned(300, 100, operation="")), "", NOW).reason == "Waiting"
    step = next_step(then(begun, step), seen(A, B, rebalance=planned(200, 200)), "", NOW)
    assert (step.reason, step.status.phase, step.status.links_left) == ("Completed", Phase.SUCCEEDED, 0)
    assert step.status.message == "0 links were moved in 0 s; the fullest of 2 pods has 200 links, and the mean is 200"


def test_rebalance_fails_when_links_come_back() -> None:
    ended = EndedRebalance(RebalanceOutcome.LOAD_BALANCER_PINS, 90.0, 40, "they came back", UID)
    given_up = RebalancePlan(RebalanceState.STOPPED, "", History(rebalance=RebalanceHistory(ended=ended)))
    begun = then(REBALANCE, next_step(REBALANCE, seen(A, B), "", NOW))
    step = next_step(begun, seen(A, B, rebalance=given_up), "", NOW)
    assert (step.status.phase, step.reason, step.status.message) == (Phase.FAILED, "LoadBalancerPins", "they came back")


# -- a Disconnect ------------------------------------------------------------------------------------------

DISCONNECT = new_operation(Type.DISCONNECT, disconnect={"selector": "env=prod"}, activeDeadlineSeconds=60)
NOBODY = DisconnectReport(0, 0, 0, 0)


def progress(reported: dict[str, DisconnectReport], *pods: PodObservation) -> DisconnectProgress:
    """Of a fleet in which each pod has a node, whose process is the first of its name."""
    fields = {b"epoch": b"1", b"state": b"serving"}
    nodes = NodeMetrics({pod.name: NodeRow.parse(pod.name, fields) for pod in pods}, 0)
    return disconnect_progress(UID, reported, nodes, FleetObservation(len(pods), pods))


def test_disconnect_completes_when_all_nodes_are_through() -> None:
    step = next_step(DISCONNECT, seen(A, B), "", NOW)
    assert (step.reason, step.status.phase, step.action) == ("Disconnecting", Phase.RUNNING, StepAction.NOTHING)
    begun = then(DISCONNECT, step)
    assert next_step(begun, seen(A, B), "", NOW).status.phase is Phase.RUNNING  # nothing is known yet
    one_of_two = progress({"a#1": DisconnectReport(30, 0, 7, 2)}, A, B)
    step = next_step(begun, seen(A, B, disconnect=one_of_two), "", NOW)
    assert step.status.phase is Phase.RUNNING
    assert step.status.message.endswith("; waiting for b")
    both = progress({"a#1": DisconnectReport(30, 0, 7, 2), "b#1": DisconnectReport(20, 0, 3, 0)}, A, B)
    status = next_step(then(begun, step), seen(A, B, disconnect=both), "", NOW).status
    assert (status.phase, status.links_at_start, status.links_left, status.disconnected) == (
        Phase.SUCCEEDED, 50, 0, 10,
    )  # fmt: skip
    assert status.message == (
        "10 links closed, 0 of 50 left to look at; 2 stay because Redis has lost the labels of their agents"
    )


@pytest.mark.parametrize(
    ("reported", "pods", "waiting"),
    [
        ({}, (A, B), ("a", "b")),
        ({"a#1": NOBODY}, (A, replace(B, leaving=True)), ()),  # a pod that terminates closes its links itself
        ({"a#1": NOBODY, "b#0": NOBODY}, (A, B), ("b",)),  # an earlier process of the node b
        ({"a#1": NOBODY, "gone#1": DisconnectReport(9, 4, 5, 0)}, (A,), ()),
        ({"a#1": DisconnectReport(9, 1, 5, 0)}, (A,), ("a",)),
    ],
)
def test_disconnect_waits_for_the_nodes_that_stay(
    reported: dict[str, DisconnectReport], pods: tuple[PodObservation, ...], waiting: tuple[str, ...]
) -> None:
    assert progress(reported, *pods).waiting == waiting


def test_disconnect_that_takes_too_long_says_how_far_it_came() -> None:
    begun = then(DISCONNECT, next_step(DISCONNECT, seen(A), "", NOW))
    slow = progress({"a#1": DisconnectReport(100, 40, 60, 0)}, A)
    step = next_step(begun, seen(A, disconnect=slow), "", NOW + timedelta(seconds=61))
    assert (step.reason, step.status.disconnected, step.status.links_left) == ("DeadlineExceeded", 60, 40)
    assert "60 links closed, 40 of 100 left to look at; waiting for a" in step.status.message


def test_disconnect_of_another_operation_is_not_taken_for_this_one() -> None:
    begun = then(DISCONNECT, next_step(DISCONNECT, seen(A), "", NOW))
    others = replace(progress({"a#1": NOBODY}, A), operation="another")
    assert next_step(begun, seen(A, disconnect=others), "", NOW).status.phase is Phase.RUNNING


# -- what may happen to any of them ------------------------------------------------------------------------


@pytest.mark.parametrize("kind", Type)
@pytest.mark.parametrize("running", [False, True])
def test_cancelled_operation_ends_and_does_nothing_more(kind: Type, running: bool) -> None:
    more = {"disconnect": {"agents": ["web-1"]}} if kind is Type.DISCONNECT else {}
    plain = new_operation(kind, "a" if kind is Type.DRAIN else None, **more)
    if running:
        plain = then(plain, next_step(plain, seen(A, B), "", NOW))
    cancelled = replace(plain, spec=msgspec.structs.replace(plain.spec, cancel=True))
    step = next_step(cancelled, seen(A, B), "", NOW)
    assert (step.action, step.reason, step.status.phase) == (StepAction.NOTHING, "Cancelled", Phase.FAILED)
    assert step.status.finished_at is not None
    goes_on = running and kind in (Type.DRAIN, Type.RESTART)
    assert step.status.message == ("cancelled; what has begun goes on" if goes_on else "cancelled")


@pytest.mark.parametrize(
    ("ttl", "phase", "seconds_ago", "expired"),
    [(60, "Succeeded", 59, False), (60, "Failed", 60, True), (0, "Succeeded", 0, True), (None, "Failed", 9e6, False)],
)
def test_ended_operation_expires_after_the_time_that_it_asks_for(
    ttl: int | None, phase: str, seconds_ago: float, expired: bool
) -> None:
    finished = (NOW - timedelta(seconds=seconds_ago)).isoformat()
    spec = {} if ttl is None else {"ttlSecondsAfterFinished": ttl}
    assert is_expired({"spec": spec, "status": {"phase": phase, "finishedAt": finished}}, NOW) is expired
    assert not is_expired({"spec": spec, "status": {"phase": "Running", "startedAt": finished}}, NOW)
