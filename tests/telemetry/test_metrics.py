"""The metrics of real nodes: the page lists exactly these, labels have few values, and the counts are true."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterable
from pathlib import Path

import pytest
from prometheus_client import Metric
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families as plain

from fairlead.identity.agent_key import pem_of_seed
from fairlead.wire.messages import Cmd, End

from support.carrier.tls_site import make_certificate
from support.otlp_collector import Collector
from support.plain_http import plain_client, plain_get
from support.telemetry.node import MakeNode
from support.telemetry.platform_api import PlatformOf
from support.telemetry.scripted_agent import DialLink
from support.waiting import until

pytestmark = pytest.mark.timeout(240)  # of processes that start and stop, on a machine that may do much else

PAGE = Path(__file__).resolve().parents[2] / "docs" / "telemetry.md"
ROW = re.compile(r"\| `(fairlead_\w+?)(?:\{(.*?)\})?` \| (gauge|counter|histogram) \|")
OPENMETRICS = {"accept": "application/openmetrics-text; version=1.0.0"}


def documented() -> dict[str, tuple[str, frozenset[str]]]:
    return {
        name: (kind, frozenset((labels or "").split(",")) - {""})
        for name, labels, kind in ROW.findall(PAGE.read_text())
    }


def read_openmetrics(text: str) -> list[Metric]:
    return list(openmetrics.text_string_to_metric_families(text))  # type: ignore[no-untyped-call]


def exported(families: Iterable[Metric]) -> dict[str, tuple[str, frozenset[str]]]:
    found = {}
    for family in families:
        if not family.samples:
            continue  # another node of the fleet has them
        labels = {label for sample in family.samples for label in sample.labels} - {"le"}
        if not family.name.startswith("fairlead_worker"):
            labels -= {"worker"}
        name = f"{family.name}_total" if family.type == "counter" else family.name
        found[name] = (family.type, frozenset(labels))
    return found


def exported_by_choice(families: Iterable[Metric]) -> dict[str, tuple[str, frozenset[str]]]:
    """Those that only a node with a certificate, an audit log or an issuer's key has, or one of the fleet."""
    chosen = (
        "fairlead_tls_",
        "fairlead_audit_",
        "fairlead_revoked_",
        "fairlead_issuer_key_reload",
        "fairlead_event_group_",
    )
    return {name: found for name, found in exported(families).items() if name.startswith(chosen)}


async def test_the_page_lists_all_metrics_and_no_others(
    make_node: MakeNode, platform_of: PlatformOf, dial: DialLink, collector: Collector, tmp_path: Path
) -> None:
    certificate, key = make_certificate(tmp_path, "localhost")
    issuer = tmp_path / "issuer.pem"
    issuer.write_bytes(pem_of_seed(bytes(32)))
    secure = make_node(
        "secure", f"--link-tls-cert={certificate}", f"--link-tls-key={key}", f"--audit-log={tmp_path / 'audit'}",
        f"--issuer-key={issuer}", f"--audit-endpoint={collector.url}",
    )  # fmt: skip
    sinks = tmp_path / "sinks.toml"
    sinks.write_text(f'[sinks.siem]\nurl = "https://127.0.0.1:1/"\nsecrets = ["whsec_{"A" * 32}"]\n')
    node = make_node(
        "all", "--workers", "2", "--trace-endpoint", collector.url, "--trace-ratio", "1", f"--event-sinks={sinks}"
    )
    agent = await dial(node, "counted-1")
    platform = platform_of(node)
    await platform.online("counted-1")
    await platform.post("counted-1", "work")
    await agent.send(End(id=(await agent.expect(Cmd)).id, total=0))
    # Before the link is closed: what arrives after the close frame that ends a link is not read any more.
    await until(lambda: "fairlead_command_duration_seconds_count" in node.metrics())
    assert (await platform.http.delete("/v1/agents/counted-1/link")).status_code == 202
    async with plain_client() as http:  # an upgrade without a credential
        upgrade = {
            "connection": "upgrade",
            "upgrade": "websocket",
            "sec-websocket-version": "13",
            "sec-websocket-key": "a" * 22 + "==",
        }
        assert (await http.get(f"{node.link.replace('ws', 'http')}/v1/link", headers=upgrade)).status_code == 401
    await until(lambda: "fairlead_links_closed_total{" in node.metrics())
    assert (await platform.http.get("/v1/events?group=readers")).status_code == 200
    lag = 'group="readers"} 0'
    await until(lambda: lag in node.metrics() or lag in secure.metrics())
    assert exported(plain(node.metrics())) | exported_by_choice(plain(secure.metrics())) == documented()
    richer = plain_get(f"{node.admin}/metrics", headers=OPENMETRICS)
    assert richer.headers["content-type"].startswith("application/openmetrics-text")
    with_tls = exported_by_choice(read_openmetrics(secure.metrics(OPENMETRICS["accept"])))
    assert exported(read_openmetrics(richer.text)) | with_tls == documented()


async def test_exemplars_lead_to_the_trace(
    make_node: MakeNode, platform_of: PlatformOf, dial: DialLink, collector: Collector
) -> None:
    node = make_node("exemplary", "--trace-endpoint", collector.url, "--trace-ratio", "1")
    agent = await dial(node, "exemplary-1")
    platform = platform_of(node)
    await platform.online("exemplary-1")
    command = await platform.post("exemplary-1", "work")
    await agent.send(End(id=(await agent.expect(Cmd)).id, total=0))
    await until(lambda: node.metric('fairlead_command_duration_seconds_count{method="work"}') == 1)
    families = read_openmetrics(node.metrics(OPENMETRICS["accept"]))
    samples = [
        sample for family in families if family.name == "fairlead_command_duration_seconds" for sample in family.samples
    ]
    assert {s.exemplar.labels["trace_id"] for s in samples if s.exemplar} == {command.replace("-", "")}
    collector.wait(lambda: bool(collector.trace(command.replace("-", ""))), "the trace")


async def test_names_chosen_by_platforms_and_agents_add_few_series(
    make_node: MakeNode, platform_of: PlatformOf, dial: DialLink
) -> None:
    node = make_node("few")
    agent = await dial(node, "few-1")
    platform = platform_of(node)
    await platform.online("few-1")
    for n in range(30):
        await platform.post("few-1", f"method-{n}")
        await agent.send(End(id=(await agent.expect(Cmd)).id, total=0))
    await until(lambda: node.metric('fairlead_command_duration_seconds_count{method="other"}') == 10)
    for code in (3001, 4999):
        await (await dial(node, f"few-{code}")).socket.close(code)
    closed = 'fairlead_links_closed_total{by="agent",code="other",then="%s"}'
    await until(lambda: node.metric(closed % "reconnect") == 1 and node.metric(closed % "stay_away") == 1)
    series = [line for line in node.metrics().splitlines() if not line.startswith("#")]
    assert not [line for line in series if "few-" in line], "an agent's name is in a label"
    assert len(series) < 1_000


async def test_counters_agree_with_what_happened(make_node: MakeNode, platform_of: PlatformOf, dial: DialLink) -> None:
    node = make_node("counts")
    agent = await dial(node, "counts-1")
    await agent.trips(0.01, 0.01, 0.01)
    platform = platform_of(node)
    await platform.online("counts-1")
    for _ in range(3):
        await platform.post("counts-1", "work")
        await agent.send(End(id=(await agent.expect(Cmd)).id, total=0))
    await until(lambda: node.metric('fairlead_commands_total{state="ok"}') == 3)
    for line, value in {
        'fairlead_links_opened_total{result="new"}': 1,
        'fairlead_messages_total{direction="in",type="hb"}': 3,
        'fairlead_messages_total{direction="out",type="cmd"}': 3,
        'fairlead_messages_total{direction="in",type="end"}': 3,
        'fairlead_command_stage_duration_seconds_count{stage="run"}': 3,
        'fairlead_command_stage_duration_seconds_count{stage="ack"}': 0,
        'fairlead_handshake_duration_seconds_count{phase="claim"}': 1,
        "fairlead_heartbeat_rtt_seconds_count": 3,
        "fairlead_agents": 1,
    }.items():
        assert node.metric(line) == value, line
    await until(lambda: node.metric("fairlead_event_loop_lag_seconds_count") > 4)
    await dial(node, "counts-1", conn=2)
    await until(lambda: node.metric('fairlead_links_opened_total{result="resumed"}') == 1)
    superseded = 'fairlead_links_closed_total{by="gateway",code="4007",then="reconnect"}'
    await until(lambda: node.metric(superseded) == 1)


async def test_an_agent_that_does_not_read_is_visible(
    make_node: MakeNode, platform_of: PlatformOf, dial: DialLink
) -> None:
    node = make_node("patient")
    await dial(node, "unread-1", max_queue=1)
    platform = platform_of(node)
    await platform.online("unread-1")
    assert node.metric("fairlead_slow_readers") == 0
    for _ in range(40):  # 20 MB: more than any socket buffer takes
        await platform.post("unread-1", "work", "x" * 500_000)
    await until(lambda: node.metric("fairlead_slow_readers") == 1)
    assert node.metric("fairlead_send_queue_bytes") > 65_536


async def test_a_drain_reports_its_progress(make_node: MakeNode, dial: DialLink) -> None:
    node = make_node("leaving", "--drain-rate", "1")
    for n in range(6):
        await dial(node, f"leaving-{n}")
    assert node.metric("fairlead_drain_remaining") == 0
    os.kill(node.pid, signal.SIGTERM)
    seen: list[float] = []

    def reported() -> bool:
        if node.metric("fairlead_draining"):
            seen.append(node.metric("fairlead_drain_remaining"))
        return bool(seen) and seen[-1] <= 3

    await until(reported)
    assert max(seen) >= 5
    assert seen == sorted(seen, reverse=True)


async def test_pauses_of_the_garbage_collector_are_measured() -> None:
    import gc

    from fairlead.telemetry.loop_lag import LoopLag
    from fairlead.telemetry.metrics import Metrics

    metrics = Metrics()
    pulse = LoopLag(metrics)
    before = len(gc.callbacks)
    pulse.start()
    gc.collect()
    pulse.stop()
    assert len(gc.callbacks) == before
    assert b'fairlead_gc_pause_seconds_count{generation="2"} 1.0' in metrics.exposition()
    assert pytest.approx(0.0, abs=1.0) == pulse.last
