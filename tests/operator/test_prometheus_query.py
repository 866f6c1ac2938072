"""The Prometheus signal against a real HTTP server: what counts as a number, and that a failed query scales nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace

import msgspec
import pytest
from aiohttp import web
from yarl import URL

from fairlead_operator.api.conditions import Conditions
from fairlead_operator.api.gateway_spec import LinkGatewaySpec, Redis, Replicas, Scaling, Tokens, TokenSecret
from fairlead_operator.api.policy import Policy, violations
from fairlead_operator.api.scaling_signals import PrometheusSignal, ScalingSignals
from fairlead_operator.autoscaler.decision import Action, decide
from fairlead_operator.autoscaler.history import History
from fairlead_operator.autoscaler.observation import FleetObservation, PodObservation, QueriedValue
from fairlead_operator.autoscaler.removal_hold import Hold
from fairlead_operator.inputs.prometheus_query import ANSWER_BYTES, PrometheusQuery, QueryFailed, read_value

from support.operator_namespace import OperatorNamespace, condition

VECTOR = '{"status":"success","data":{"resultType":"vector","result":[%s]}}'
SAMPLE = '{"metric":{"job":"a"},"value":[1763800000.1,"%s"]}'
SPEC = LinkGatewaySpec(
    image="gateway",
    capacity=1000,
    replicas=Replicas(min=1, max=20),
    redis=Redis(url="redis://r"),
    tokens=Tokens(secret_ref=TokenSecret(name="t")),
)


@dataclass
class StandIn:
    """A server that answers as Prometheus' HTTP API does, with what a test says."""

    url: str = ""
    text: str = VECTOR % (SAMPLE % "42")
    status: int = 200
    hangs: bool = False
    asked: list[dict[str, str]] = field(default_factory=list)

    async def answer(self, request: web.Request) -> web.Response:
        self.asked.append(dict(request.query))
        if self.hangs:
            await asyncio.sleep(60)
        return web.Response(text=self.text, status=self.status, headers={"Location": "/elsewhere"})


@pytest.fixture
async def server() -> AsyncIterator[StandIn]:
    made = StandIn()
    app = web.Application()
    app.router.add_get("/api/v1/query", made.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    made.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield made
    await runner.cleanup()


@pytest.mark.parametrize(
    ("body", "value"),
    [
        (VECTOR % (SAMPLE % "42"), 42.0),
        (VECTOR % (SAMPLE % "1.5e3"), 1500.0),
        ('{"status":"success","data":{"resultType":"scalar","result":[1763800000,"7"]}}', 7.0),
    ],
)
def test_one_number_is_read(body: str, value: float) -> None:
    assert read_value(body.encode()) == value


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (VECTOR % "", "0 samples: expected one"),
        (VECTOR % ",".join([SAMPLE % "1"] * 2), "2 samples: expected one"),
        (VECTOR % (SAMPLE % "NaN"), "nan: expected a finite number"),
        (VECTOR % (SAMPLE % "+Inf"), "inf: expected a finite number"),
        (VECTOR % (SAMPLE % "-1"), "-1: expected a finite number"),
        (VECTOR % (SAMPLE % "many"), "not a number"),
        ('{"status":"error","errorType":"bad_data","error":"secret"}', "did not answer with a vector"),
        ('{"status":"success","data":{"resultType":"matrix","result":[]}}', "did not answer with a vector"),
        ("<html>secret</html>", "did not answer with a vector"),
    ],
)
def test_anything_else_is_refused_and_not_shown(body: str, why: str) -> None:
    with pytest.raises(QueryFailed, match=why) as failed:
        read_value(body.encode())
    assert "secret" not in str(failed.value)


def _hangs(server: StandIn) -> None:
    server.hangs = True


def _redirects(server: StandIn) -> None:
    server.status = 302


def _floods(server: StandIn) -> None:
    server.text = " " * (ANSWER_BYTES + 1)


@pytest.mark.parametrize(
    ("breaks", "reason", "why"),
    [
        (_hangs, "Unreachable", "did not answer within 1 s"),
        (_redirects, "Unusable", "answered 302: expected 200"),
        (_floods, "Unusable", "answered with more than 65536 bytes"),
    ],
)
async def test_server_that_misbehaves_costs_a_condition_and_no_more(
    server: StandIn, breaks: Callable[[StandIn], None], reason: str, why: str
) -> None:
    query, conditions = PrometheusQuery(), Conditions([], 1, "now")
    signal = PrometheusSignal(url=server.url, query="sum(up)", target_per_pod=10, timeout_seconds=8)
    try:
        assert await query.read(signal, conditions) == QueriedValue(42.0)
        breaks(server)
        hurried = msgspec.structs.replace(signal, timeout_seconds=1) if server.hangs else signal
        assert await query.read(hurried, conditions) == QueriedValue(None)
    finally:
        await query.aclose()
    (found,) = conditions.all()
    assert (found.type, found.status, found.reason) == ("PrometheusQueried", "False", reason)
    assert why in found.message
    assert server.asked[0] == {"query": "sum(up)", "timeout": "8s"}
    assert len(server.asked) == 2, "a redirect is not followed"


def test_failed_query_holds_removals_and_requires_nothing() -> None:
    signal = PrometheusSignal(url="http://p", query="up", target_per_pod=10)
    scaling = Scaling(window_seconds=60, failure_tolerance=0, signals=ScalingSignals(prometheus=signal))
    spec = msgspec.structs.replace(SPEC, scaling=scaling)
    pods = tuple(PodObservation(f"p{i}", age=1.0, links=1, capacity=1000) for i in range(4))
    high = FleetObservation(4, pods, queried=QueriedValue(75.0))
    decision = decide(high, History(), spec, 0.0)
    assert (decision.replicas, decision.target.winner) == (8, "prometheus")
    history = decision.history
    for i in range(1, 30):
        decision = decide(replace(high, queried=QueriedValue(None)), history, spec, i * 10.0)
        history = decision.history
        assert (decision.action, decision.replicas) == (Action.STAY, 4)
        assert decision.hold is not None
        assert decision.hold.by == Hold.QUERY_FAILED
    low = decide(replace(high, queried=QueriedValue(1.0)), history, spec, 300.0)
    assert low.action is Action.DOWN


def test_only_servers_that_the_policy_allows_are_asked() -> None:
    signal = PrometheusSignal(url="http://prometheus.monitoring:9090", query="up", target_per_pod=10)
    spec = msgspec.structs.replace(SPEC, scaling=Scaling(signals=ScalingSignals(prometheus=signal)))
    allowed = Policy(images=("*",), secrets=("*",), prometheus_urls=("http://prometheus.monitoring:*",))
    assert violations(spec, allowed, {}) == []
    (refused,) = violations(spec, Policy(images=("*",), secrets=("*",), prometheus_urls=("https://*",)), {})
    assert refused.startswith("scaling.signals.prometheus.url http://prometheus.monitoring:9090 is not allowed")


@pytest.mark.parametrize(
    ("path", "good"),
    [
        ("", True),
        ("/", True),
        ("/tenants/team-a/prometheus", True),
        ("/team-a/../team-b", False),
        ("/team-a/%2e%2e/team-b", False),
        ("/team-a/..", False),
        ("/-/quit?x=", False),
        ("/federate#", False),
    ],
)
def test_url_asks_the_path_that_the_policy_has_allowed(path: str, good: bool) -> None:
    signal = {"url": f"http://p:9090{path}", "query": "up", "targetPerPod": 1}
    if not good:
        with pytest.raises(msgspec.ValidationError, match="url"):
            msgspec.convert(signal, PrometheusSignal)
        return
    url = msgspec.convert(signal, PrometheusSignal).url
    assert URL(f"{url.rstrip('/')}/api/v1/query").raw_path_qs == f"{path.rstrip('/')}/api/v1/query"


@pytest.mark.parametrize("value", [1e300, 1.7e308])
def test_greatest_value_and_least_target_ask_for_the_most_pods(value: float) -> None:
    signal = PrometheusSignal(url="http://p", query="up", target_per_pod=0.001)
    spec = msgspec.structs.replace(SPEC, scaling=Scaling(signals=ScalingSignals(prometheus=signal)))
    pods = (PodObservation("p0", age=1.0, links=1, capacity=1000),)
    decision = decide(FleetObservation(1, pods, queried=QueriedValue(value)), History(), spec, 0.0)
    assert decision.target.winner == "max"
    assert decision.required <= 1_000_000


async def test_query_scales_a_fleet_and_its_failure_is_a_condition(
    namespace: OperatorNamespace, server: StandIn
) -> None:
    signal = {"url": server.url, "query": "sum(jobs)", "targetPerPod": 10, "timeoutSeconds": 8}
    reconciler = namespace.reconciler(await namespace.gateway(scaling={"signals": {"prometheus": signal}}))
    status = await namespace.reconcile(reconciler)
    assert condition(status, "PrometheusQueried") == ("True", "Queried", "the value is 42")
    assert (status["decision"]["replicas"], status["decision"]["winner"]) == (5, "prometheus")
    server.status = 500
    status = await namespace.reconcile(reconciler)
    assert condition(status, "PrometheusQueried")[:2] == ("False", "Unusable")
    assert (await namespace.deployment())["spec"]["replicas"] == 5
