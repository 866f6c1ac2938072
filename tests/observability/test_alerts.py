"""The alerts: promtool accepts them, each fires when it must and not otherwise, and each has its runbook.

A case gives the series of a LinkGateway for which the alert must fire, and of similar ones for which it must not.
promtool runs all of them against the chart's own rules file.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from fairlead.cli.main import cli

from alerts import ALERTS, OBJECTIVES, WINDOWS, rules
from support.observability.prometheus_server import metrics_that_exist

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "charts" / "fairlead" / "files" / "rules" / "fairlead.yaml"
PAGES = ROOT / "docs" / "runbooks"
LINKS = "fairlead_links{ID}"
CAPACITY = "fairlead_link_capacity{ID}"
OPENED = 'fairlead_links_opened_total{ID,result="resumed"}'
LOST = 'fairlead_links_closed_total{ID,code="1006",then="reconnect",by="agent"}'
MEANT = 'fairlead_links_closed_total{ID,code="4000",then="reconnect",by="gateway"}'
DELIVERED = 'fairlead_command_stage_duration_seconds_count{ID,stage="deliver"}'
IN_TIME = 'fairlead_command_stage_duration_seconds_bucket{ID,stage="deliver",le="0.25"}'
LAG = 'fairlead_event_loop_lag_seconds_bucket{ID,pod="p",le="%s"}'
LEADER = 'fairlead_operator_leader{instance="a"}'
FOLLOWER = 'fairlead_operator_leader{instance="b"}'

Series = dict[str, str]


def operator(name: str, more: str = "") -> str:
    return f'fairlead_operator_{name}{{ID,instance="a"{more}}}'


@dataclass(frozen=True, slots=True)
class Case:
    """Values are promtool's, one a minute; ID stands for the labels that distinguish LinkGateways."""

    at: str
    fires: Series
    quiet: tuple[Series, ...]
    labels: dict[str, str] = field(default_factory=dict)
    shared: Series = field(default_factory=dict)
    by: str = "gateway"


CASES = {
    "FairleadLateDeliveriesFast": Case(
        "60m",
        {DELIVERED: "0+100x70", IN_TIME: "0+97x70"},
        (
            {DELIVERED: "0+100x70", IN_TIME: "0+99.5x70"},
            {DELIVERED: "0+1x70", IN_TIME: "0+0.9x70"},  # six late ones: too few
            {DELIVERED: "0+100x70", IN_TIME: "0+90x20 1900+100x50"},  # has been, and is over
        ),
    ),
    "FairleadLateDeliveriesSlow": Case(
        "180m",
        {DELIVERED: "0+100x200", IN_TIME: "0+99.5x200"},
        ({DELIVERED: "0+100x200", IN_TIME: "0+99.95x200"},),
    ),
    "FairleadLostLinksFast": Case(
        "40m",
        {LINKS: "1000x60", LOST: "0+5x60"},
        (
            {LINKS: "1000x60", LOST: "0+0.1x60"},
            {LINKS: "1000x60", MEANT: "0+50x60"},  # a drain
            {LINKS: "5x60", LOST: "0+0.1x60"},  # four of a small fleet
        ),
    ),
    "FairleadLostLinksSlow": Case(
        "180m",
        {LINKS: "1000x200", LOST: "0+5x200"},
        ({LINKS: "1000x200", LOST: "0+0.1x200"},),
    ),
    "FairleadRedisDown": Case(
        "5m",
        {'fairlead_redis_up{ID,pod="p"}': "1 0x10", 'fairlead_redis_up{ID,pod="q"}': "1x10"},
        ({'fairlead_redis_up{ID,pod="p"}': "1x4 0 1x5"},),
    ),
    "FairleadRedisFilling": Case(
        "9m",
        {"fairlead_redis_memory_bytes{ID}": "80x12", "fairlead_redis_memory_limit_bytes{ID}": "100x12"},
        (
            {"fairlead_redis_memory_bytes{ID}": "70x12", "fairlead_redis_memory_limit_bytes{ID}": "100x12"},
            {"fairlead_redis_memory_bytes{ID}": "80x12", "fairlead_redis_memory_limit_bytes{ID}": "0x12"},
        ),
    ),
    "FairleadRedisFull": Case(
        "5m",
        {"fairlead_redis_memory_bytes{ID}": "95x10", "fairlead_redis_memory_limit_bytes{ID}": "100x10"},
        ({"fairlead_redis_memory_bytes{ID}": "80x10", "fairlead_redis_memory_limit_bytes{ID}": "100x10"},),
    ),
    "FairleadRedisDiskFailing": Case(
        "3m", {"fairlead_redis_disk_failing{ID}": "0 1x5"}, ({"fairlead_redis_disk_failing{ID}": "0x10"},)
    ),
    "FairleadRedisUnconfirmed": Case(
        "3m", {"fairlead_redis_unconfirmed{ID}": "0 1x5"}, ({"fairlead_redis_unconfirmed{ID}": "0x10"},)
    ),
    "FairleadDataLost": Case(
        "6m", {"fairlead_data_lost_total{ID}": "0x4 1x6"}, ({"fairlead_data_lost_total{ID}": "1x10"},)
    ),
    "FairleadNodeSilent": Case(
        "5m",
        {'fairlead_heartbeat_age_seconds{ID,pod="p"}': "2 2 20 80 140 200 260"},
        ({'fairlead_heartbeat_age_seconds{ID,pod="p"}': "5x10"},),
        {"pod": "p"},
    ),
    "FairleadNodeFenced": Case(
        "10m", {"fairlead_node_fenced_total{ID}": "0 1 2 3 4x10"}, ({"fairlead_node_fenced_total{ID}": "0x3 1x10"},)
    ),
    "FairleadNoHeadroom": Case(
        "10m",
        {LINKS: "900x12", CAPACITY: "1000x12"},
        ({LINKS: "800x12", CAPACITY: "1000x12"}, {LINKS: "800x6 990x2 800x6", CAPACITY: "1000x12"}),
    ),
    "FairleadLinksRefused": Case(
        "12m",
        {'fairlead_handshakes_rejected_total{ID,reason="full"}': "0+3x15"},
        ({'fairlead_handshakes_rejected_total{ID,reason="rate"}': "0+300x15"},),
    ),
    "FairleadTokensRefused": Case(
        "20m",
        {'fairlead_credentials_refused_total{ID,port="api"}': "0+120x25"},
        ({'fairlead_credentials_refused_total{ID,port="link"}': "0+6x25"},),
    ),
    "FairleadAgentCloned": Case(
        "20m",
        {"fairlead_cloned_agents_total{ID}": "0x5 1x20"},
        ({"fairlead_cloned_agents_total{ID}": "3x25"}, {"fairlead_outdated_sessions_total{ID}": "0+1x25"}),
    ),
    "FairleadConnectionsEvicted": Case(
        "15m",
        {"fairlead_connections_evicted_total{ID}": "0+120x20"},
        ({"fairlead_connections_evicted_total{ID}": "0+6x20"},),
    ),
    "FairleadReconnectStorm": Case(
        "66m",
        {OPENED: "0+60x60 3600+3000x10"},
        ({OPENED: "0+60x70"}, {OPENED: "0x60 0+600x10"}, {OPENED: "0+3000x70"}),
    ),
    "FairleadNodeImbalance": Case(
        "40m",
        {'fairlead_links{ID,pod="p"}': "900x45", 'fairlead_links{ID,pod="q"}': "100x45"},
        (
            {'fairlead_links{ID,pod="p"}': "600x45", 'fairlead_links{ID,pod="q"}': "500x45"},
            {'fairlead_links{ID,pod="p"}': "9x45", 'fairlead_links{ID,pod="q"}': "1x45"},
        ),
    ),
    "FairleadEventLoopLag": Case(
        "15m",
        {LAG % "0.1": "0+200x20", LAG % "0.25": "0+240x20", LAG % "+Inf": "0+240x20"},
        ({LAG % "0.1": "0+240x20", LAG % "0.25": "0+240x20", LAG % "+Inf": "0+240x20"},),
        {"pod": "p"},
    ),
    "FairleadSlowReaders": Case(
        "15m", {"fairlead_slow_readers{ID}": "30x20"}, ({"fairlead_slow_readers{ID}": "2x12 30x2 2x9"},)
    ),
    "FairleadDrainOverrun": Case(
        "20m",
        {'fairlead_draining{ID,pod="p"}': "1x25", 'fairlead_drain_remaining{ID,pod="p"}': "500x25"},
        (
            {'fairlead_draining{ID,pod="p"}': "1x25", 'fairlead_drain_remaining{ID,pod="p"}': "500x8 0x20"},
            {'fairlead_draining{ID,pod="p"}': "0x25", 'fairlead_drain_remaining{ID,pod="p"}': "0x25"},
        ),
        {"pod": "p"},
    ),
    "FairleadEventGroupBehind": Case(
        "40m",
        {'fairlead_event_group_lag{ID,pod="p",group="ci"}': "0+1000x60"},
        (
            {'fairlead_event_group_lag{ID,pod="p",group="ci"}': "50000-500x60"},  # it catches up
            {'fairlead_event_group_lag{ID,pod="p",group="ci"}': "9000x60"},
            {'fairlead_event_group_lag{ID,pod="p",group="~siem"}': "0+1000x60"},  # a sink
            {'fairlead_event_group_lag{ID,pod="p",group="eu/~siem"}': "0+1000x60"},
        ),
        {"group": "ci"},
    ),
    "FairleadEventGroupFull": Case(
        "20m",
        {'fairlead_event_group_pending{ID,pod="p",group="ci"}': "1000x30"},
        (
            {'fairlead_event_group_pending{ID,pod="p",group="ci"}': "1000x8 20x30"},
            {'fairlead_event_group_pending{ID,pod="p",group="~siem"}': "1000x30"},
        ),
        {"group": "ci"},
    ),
    "FairleadEventsRedelivered": Case(
        "40m",
        {'fairlead_event_redeliveries_total{ID,pod="p"}': "0+120x60"},
        ({'fairlead_event_redeliveries_total{ID,pod="p"}': "0+30x60"},),
    ),
    "FairleadSinkBehind": Case(
        "40m",
        {'fairlead_event_group_lag{ID,pod="p",group="~siem"}': "0+1000x60"},
        (
            {'fairlead_event_group_lag{ID,pod="p",group="~siem"}': "50000-500x60"},
            {'fairlead_event_group_lag{ID,pod="p",group="ci"}': "0+1000x60"},
        ),
        {"group": "~siem"},
    ),
    "FairleadSinkFailing": Case(
        "40m",
        {
            'fairlead_event_sink_attempts_total{ID,pod="p",sink="siem",outcome="failed"}': "0+20x60",
            'fairlead_event_sink_attempts_total{ID,pod="p",sink="siem",outcome="delivered"}': "0+10x60",
        },
        (
            {
                'fairlead_event_sink_attempts_total{ID,pod="p",sink="siem",outcome="failed"}': "0+10x60",
                'fairlead_event_sink_attempts_total{ID,pod="p",sink="siem",outcome="delivered"}': "0+20x60",
            },
            {  # nothing happens
                'fairlead_event_sink_attempts_total{ID,pod="p",sink="siem",outcome="failed"}': "70x60",
                'fairlead_event_sink_attempts_total{ID,pod="p",sink="siem",outcome="delivered"}': "50x60",
            },
        ),
        {"sink": "siem"},
    ),
    "FairleadSinkEventsLost": Case(
        "20m",
        {'fairlead_event_sink_gaps_total{ID,pod="p",sink="siem"}': "0x5 1x30"},
        (
            {'fairlead_event_sink_dead_letters_total{ID,pod="p",sink="siem"}': "7x30"},
            {'fairlead_event_sink_attempts_total{ID,pod="p",sink="siem",outcome="failed"}': "0+9x30"},
        ),
        {"sink": "siem"},
    ),
    "FairleadSpansDropped": Case(
        "25m", {"fairlead_spans_dropped_total{ID}": "0+10x30"}, ({"fairlead_spans_dropped_total{ID}": "0 10x30"},)
    ),
    "FairleadAuditUnwritable": Case(
        "10m",
        {'fairlead_audit_failures_total{ID,pod="p"}': "0 0+6x30"},
        ({'fairlead_audit_failures_total{ID,pod="p"}': "7x30"},),
        {"pod": "p"},
    ),
    "FairleadAuditExportBehind": Case(
        "30m",
        {
            'fairlead_audit_export_waiting_lines{ID,pod="p"}': "0+10x40",
            'fairlead_audit_export_failures_total{ID,pod="p"}': "0+2x40",
            'fairlead_audit_export_missing_lines_total{ID,pod="p"}': "0x40",
        },
        (
            {  # lines come and go, as they do all the time
                'fairlead_audit_export_waiting_lines{ID,pod="p"}': "7x40",
                'fairlead_audit_export_failures_total{ID,pod="p"}': "3x40",
                'fairlead_audit_export_missing_lines_total{ID,pod="p"}': "0x40",
            },
            {  # the collector has restarted
                'fairlead_audit_export_waiting_lines{ID,pod="p"}': "0+10x10 0x30",
                'fairlead_audit_export_failures_total{ID,pod="p"}': "0+2x10 20x30",
                'fairlead_audit_export_missing_lines_total{ID,pod="p"}': "0x40",
            },
        ),
        {"pod": "p"},
    ),
    "FairleadScaleBlockedAtMax": Case(
        "15m",
        {
            operator("condition", ',condition="ScalingLimited"'): "1x20",
            operator("desired_replicas"): "10x20",
            operator("current_replicas"): "10x20",
        },
        (
            {  # limited on its way up: it doubles once a minute
                operator("condition", ',condition="ScalingLimited"'): "1x20",
                operator("desired_replicas"): "8x20",
                operator("current_replicas"): "4x20",
            },
            {
                operator("condition", ',condition="ScalingLimited"'): "0x20",
                operator("desired_replicas"): "10x20",
                operator("current_replicas"): "10x20",
            },
        ),
        shared={LEADER: "1x20", FOLLOWER: "0x20"},
    ),
    "FairleadDesiredNotMet": Case(
        "20m",
        {operator("desired_replicas"): "5x25", operator("ready_replicas"): "3x25"},
        (
            {operator("desired_replicas"): "5x25", operator("ready_replicas"): "3x5 5x20"},
            {  # what a replica saw that leads no more
                'fairlead_operator_desired_replicas{ID,instance="b"}': "5x25",
                'fairlead_operator_ready_replicas{ID,instance="b"}': "3x25",
            },
        ),
        shared={LEADER: "1x25", FOLLOWER: "0x25"},
    ),
    "FairleadReportsStale": Case(
        "10m",
        {operator("stale_reports"): "1x15"},
        ({operator("stale_reports"): "0x7 1x2 0x6"},),
        shared={LEADER: "1x15"},
    ),
    "FairleadWrongRemoval": Case(
        "6m", {operator("wrong_removals_total"): "0x4 1x6"}, ({operator("wrong_removals_total"): "1x10"},)
    ),
    "FairleadLoadBalancerPins": Case(
        "6m",
        {operator("rebalances_total", ',outcome="LoadBalancerPins"'): "0x4 1x6"},
        (
            {operator("rebalances_total", ',outcome="LoadBalancerPins"'): "1x10"},
            {operator("rebalances_total", ',outcome="Even"'): "0+1x10"},
        ),
    ),
    "FairleadSignalQueryFailing": Case(
        "12m",
        {operator("condition", ',condition="PrometheusQueried"'): "0x20"},
        (
            {operator("condition", ',condition="PrometheusQueried"'): "0x8 1x12"},
            {operator("condition", ',condition="Rebalanced"'): "0x20"},
        ),
    ),
    "FairleadCrdsOutdated": Case(
        "12m",
        {operator("condition", ',condition="CrdsUpToDate"'): "0x20"},
        (
            {operator("condition", ',condition="CrdsUpToDate"'): "0x8 1x12"},
            {operator("condition", ',condition="IngressClassFound"'): "0x20"},
        ),
    ),
    "FairleadCanaryFailed": Case(
        "6m",
        {operator("canaries_total", ',outcome="Failed"'): "0x4 1x6"},
        (
            {operator("canaries_total", ',outcome="Failed"'): "1x10"},
            {operator("canaries_total", ',outcome="Succeeded"'): "0+1x10"},
        ),
    ),
    "FairleadReconcileFailing": Case(
        "20m",
        {'fairlead_operator_reconcile_failures_total{ID,reason="timeout"}': "0+2x25"},
        ({'fairlead_operator_reconcile_failures_total{ID,reason="timeout"}': "0 2x25"},),
        {"reason": "timeout"},
        by="namespace",
    ),
    "FairleadOperatorNotLeading": Case(
        "10m",
        {'fairlead_operator_leader{ID,instance="a"}': "1 0x12", 'fairlead_operator_leader{ID,instance="b"}': "0x12"},
        ({'fairlead_operator_leader{ID,instance="a"}': "1x4 0 0x9",
          'fairlead_operator_leader{ID,instance="b"}': "0x6 1x9"},),
        by="namespace",
    ),
}  # fmt: skip


def identity(case: Case, who: str) -> dict[str, str]:
    return {"namespace": who} if case.by == "namespace" else {"namespace": "fleet", "gateway": who}


def played(name: str, case: Case) -> dict[str, Any]:
    """As promtool reads it."""
    series = [{"series": one, "values": values} for one, values in case.shared.items()]
    for who, given in [("ill", case.fires), *((f"well-{at}", one) for at, one in enumerate(case.quiet))]:
        labels = ",".join(f'{key}="{value}"' for key, value in identity(case, who).items())
        series += [{"series": one.replace("ID", labels), "values": values} for one, values in given.items()]
    (rule,) = [one for group in rules()["groups"] for one in group["rules"] if one.get("alert") == name]
    told = {**identity(case, "ill"), **case.labels}
    annotations = dict(rule["annotations"])
    for key, value in told.items():
        annotations["summary"] = annotations["summary"].replace(f"{{{{ $labels.{key} }}}}", value)
    expected = {"exp_labels": {**told, **rule["labels"]}, "exp_annotations": annotations}
    return {
        "interval": "1m",
        "name": name,
        "input_series": series,
        "alert_rule_test": [{"eval_time": case.at, "alertname": name, "exp_alerts": [expected]}],
    }


def judged(promtool: str, folder: Path, tests: list[dict[str, Any]]) -> subprocess.CompletedProcess[str]:
    file = folder / "cases.yaml"
    file.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": tests}))
    return subprocess.run(
        [promtool, "test", "rules", str(file)], capture_output=True, text=True, timeout=100, check=False
    )


def test_promtool_reads_the_file(promtool: str) -> None:
    done = subprocess.run([promtool, "check", "rules", RULES], capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    count = len(ALERTS) + 2 * len(WINDOWS) * len(OBJECTIVES)
    assert f"{count} rules found" in done.stdout


def test_each_alert_has_a_case() -> None:
    assert set(CASES) == {one.name for one in ALERTS}


@pytest.mark.timeout(120)
def test_each_alert_fires_for_a_faulty_fleet_and_not_for_a_healthy_one(promtool: str, tmp_path: Path) -> None:
    done = judged(promtool, tmp_path, [played(name, case) for name, case in CASES.items()])
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.timeout(120)
def test_a_case_detects_an_alert_that_does_not_fire(promtool: str, tmp_path: Path) -> None:
    """A check of the check: with healthy series in place of the faulty ones, each case must fail."""
    unseen = []
    for name, case in CASES.items():
        swapped = Case(case.at, case.quiet[0], (), case.labels, case.shared, case.by)
        if judged(promtool, tmp_path, [played(name, swapped)]).returncode == 0:
            unseen.append(name)
    assert unseen == []


def test_alerts_use_metrics_that_exist() -> None:
    there = metrics_that_exist()
    for group in rules()["groups"]:
        for one in group["rules"]:
            names = set(re.findall(r"\bfairlead_\w+", one["expr"]))
            assert names <= there, one
    for one in ALERTS:
        assert "fairlead" in one.expr


def commands(page: str) -> list[str]:
    (block,) = re.findall(r"^```sh\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    return [line for line in block.splitlines() if line.strip()]


def test_each_alert_has_a_runbook_and_each_runbook_an_alert() -> None:
    assert {path.stem for path in PAGES.glob("*.md")} - {"README"} == {one.name for one in ALERTS}
    index = (PAGES / "README.md").read_text()
    for one in ALERTS:
        page = (PAGES / f"{one.name}.md").read_text()
        assert page.startswith(f"# {one.name}\n")
        parts = [f"**{part}.**" for part in ("Symptom", "Meaning", "First", "Then")]
        places = [page.find(part) for part in parts]
        assert places == sorted(places), one.name
        assert places[0] > 0, one.name
        assert len(commands(page)) == 3, one.name
        assert f"| [{one.name}]({one.name}.md) | {one.severity} |" in index


def parsed(words: list[str]) -> None:
    """Resolve a command of `fairlead` with its arguments, and run nothing."""
    command: click.Command = cli
    context = click.Context(cli, info_name="fairlead")
    while isinstance(command, click.Group):
        found = command.get_command(context, words[0])
        assert found is not None, words
        command, words = found, words[1:]
    command.make_context(command.name, words, parent=context)


def test_commands_in_the_runbooks_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    values = {"$NAMESPACE": "fleet", "$GATEWAY": "edge", "$POD": "edge-1", "$AGENT": "agent-1", "$OPERATOR": "op"}
    kubectl = shutil.which("kubectl", path=str(ROOT / ".cache" / "cluster" / "bin")) or shutil.which("kubectl")
    monkeypatch.setenv("FAIRLEAD_TOKEN", "a-token-of-the-platform")
    nowhere = ["--server=http://127.0.0.1:1", "--request-timeout=1s", "--kubeconfig=/dev/null"]
    asked: set[str] = set()
    for path in sorted(PAGES.glob("Fairlead*.md")):
        for written in commands(path.read_text()):
            line = written
            for variable, value in values.items():
                line = line.replace(variable, value)
            assert "$" not in line, path.name
            program, *words = shlex.split(line)
            if program == "fairlead":
                parsed(words)
                continue
            assert program == "kubectl", line
            if kubectl is None or line in asked:
                continue
            asked.add(line)
            output = subprocess.run(
                [kubectl, *nowhere, *words], capture_output=True, text=True, timeout=30, check=False
            ).stderr
            # It was understood, and found no cluster.
            assert "refused" in output, f"{path.name}: {line}: {output}"
