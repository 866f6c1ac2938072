"""Runs: one method on many agents, through real nodes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from support.cli.processes import environment
from support.gateway.platform_api import PLATFORM
from support.plain_http import plain_get, plain_patch, plain_post
from support.waiting import wait_until

if TYPE_CHECKING:
    from runs.conftest import MakeRunFleet, RunFleet

    from fairlead.store.embedded_valkey.server import EmbeddedValkey

pytestmark = pytest.mark.timeout(240)


def label(fleet: RunFleet, agents: list[str], **labels: str) -> None:
    for agent in agents:
        answer = plain_patch(f"{fleet.nodes[0].api}/v1/agents/{agent}", json={"labels": labels}, headers=PLATFORM)
        assert answer.status_code == 200, answer.text


def command_line(fleet: RunFleet, *args: str) -> subprocess.CompletedProcess[bytes]:
    line = [sys.executable, "-P", "-m", "fairlead", *args]
    return subprocess.run(
        line, capture_output=True, stdin=subprocess.DEVNULL, timeout=60, check=False,
        env=environment(fleet.nodes[0].api),
    )  # fmt: skip


def test_a_run_over_a_list_ends_with_a_result_for_each_target(fleet: RunFleet) -> None:
    agents = [f"all-{n}" for n in range(50)]
    run = fleet.begin(agents=[*agents, "all-0"])
    ended = fleet.end(run, node=1)
    assert (ended["state"], ended["targets"], ended["counts"]) == ("done", 50, {"ok": 50})
    lines = fleet.results(run, node=1)
    assert sorted(line["agent"] for line in lines[:-1]) == sorted(agents)
    assert [line["offset"] for line in lines[:-1]] == list(range(50))
    assert lines[-1] == {"end": {"state": "done", "counts": {"ok": 50}}}
    assert fleet.results(run, start=30)[:-1] == lines[30:-1]
    assert {len(line["output"][0]["text"]) for line in lines[:-1]} == {64}
    (outcome,) = ended["outcomes"]
    assert (outcome["state"], outcome["count"], len(outcome["agents"])) == ("ok", 50, 3)
    assert outcome["digest"] == lines[0]["digest"]


def test_a_selector_chooses_what_it_matches_and_a_dry_run_says_who(fleet: RunFleet) -> None:
    chosen = [f"all-{n}" for n in range(60, 67)]
    label(fleet, chosen, tier="web")
    dry = fleet.post(selector="label.tier=web", dry_run=True)
    assert dry.status_code == 200
    assert (dry.json()["targets"], sorted(dry.json()["agents"])) == (7, sorted(chosen))
    ended = fleet.end(fleet.begin(selector="label.tier=web"))
    assert ended["counts"] == {"ok": 7}
    assert fleet.end(fleet.begin(selector="*"))["targets"] >= 200
    none = fleet.post(selector="label.tier=nothing")
    assert (none.status_code, none.json()["field"]) == (422, "selector")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "agents"),
        ({"agents": ["a"], "selector": "*"}, "agents"),
        ({"agents": []}, "agents"),
        ({"agents": ["a b"]}, "agents"),
        ({"agents": ["a"], "concurrency": 0}, "concurrency"),
        ({"agents": ["a"], "abort_above": {"share": 2}}, "abort_above.share"),
        ({"agents": ["a"], "unknown": 1}, "unknown"),
        ({"agents": ["a"], "batches": {}}, "batches"),
        ({"agents": ["a"], "batches": {"size": 1, "share": 0.5}}, "batches"),
        ({"agents": ["a"], "batches": {"by": "no key"}}, "batches.by"),
        ({"agents": ["a"], "batches": {"size": 0}}, "batches.size"),
        ({"selector": "a b c"}, "selector"),
    ],
)
def test_a_wrong_request_names_the_member_at_fault(fleet: RunFleet, body: dict[str, Any], field: str) -> None:
    answer = fleet.post(**body)
    assert (answer.status_code, answer.json()["field"]) == (422, field), answer.text


def test_the_same_key_is_one_run(fleet: RunFleet) -> None:
    body = {"method": "sys.info", "agents": ["all-1", "all-2"]}
    headers = {**PLATFORM, "idempotency-key": f"once-{time.monotonic_ns()}"}
    first, second = (plain_post(f"{node.api}/v1/runs", json=body, headers=headers) for node in fleet.nodes)
    assert first.status_code == second.status_code == 202
    assert second.json() == first.json() | {"replayed": True}
    assert second.headers["idempotency-replayed"] == "true"
    other = plain_post(f"{fleet.nodes[0].api}/v1/runs", json={**body, "agents": ["all-1"]}, headers=headers)
    assert (other.status_code, other.json()["code"]) == (422, "idempotency_conflict")


def test_a_run_goes_zone_by_zone(fleet: RunFleet) -> None:
    zones = {"east": [f"all-{n}" for n in range(100, 104)], "west": [f"all-{n}" for n in range(104, 107)]}
    for zone, agents in zones.items():
        label(fleet, agents, zone=zone, rolled="yes")
    label(fleet, ["all-107"], rolled="yes")
    run = fleet.begin(selector="label.rolled=yes", batches={"by": "label.zone", "size": 3})
    ended = fleet.end(run)
    assert ended["pace"]["batches"] == [3, 1, 3, 1]
    order = [line["agent"] for line in fleet.results(run)[:-1]]
    assert sorted(order[:4]) == zones["east"]
    assert (sorted(order[4:7]), order[7]) == (zones["west"], "all-107")
    listed = fleet.end(fleet.begin(agents=["all-104", "all-100", "all-105"], batches={"by": "zone"}))
    assert listed["pace"]["batches"] == [1, 2]


def test_a_batch_waits_for_the_one_before_it(fleet: RunFleet) -> None:
    swarm = fleet.agents(4, "early", 1)
    swarm.freeze()
    try:
        agents = [*(f"early-{n}" for n in range(4)), *(f"all-{n}" for n in range(4))]
        run = fleet.begin(agents=agents, batches={"share": 0.5}, deadline=120)
        wait_until(lambda: fleet.get(run)["counts"].get("started") == 4)
        assert fleet.get(run)["counts"] == {"started": 4, "waiting": 4}
        early = plain_post(f"{fleet.nodes[0].api}/v1/runs/{run}/retry", json={}, headers=PLATFORM)
        assert (early.status_code, early.json()["field"]) == (422, "run")
    finally:
        swarm.thaw()
    assert fleet.end(run)["counts"] == {"ok": 8}


def test_what_failed_is_tried_again(make_fleet: MakeRunFleet, own_valkey: EmbeddedValkey) -> None:
    fleet = make_fleet(own_valkey.url)
    fleet.node()
    fleet.node()
    fleet.agents(3, "there", 1)
    agents = [*(f"there-{n}" for n in range(3)), "late-0", "late-1"]
    first = fleet.begin(agents=agents, concurrency=2, batches={"size": 4}, payload={"bytes": 100})
    assert fleet.end(first)["counts"] == {"ok": 3, "failed": 2}
    fleet.agents(2, "late")
    headers = {**PLATFORM, "idempotency-key": "again"}
    answers = [plain_post(f"{node.api}/v1/runs/{first}/retry", json={}, headers=headers) for node in fleet.nodes]
    assert [answer.status_code for answer in answers] == [202, 202], answers[0].text
    assert answers[1].json() == answers[0].json() | {"replayed": True}
    second = answers[0].json()["id"]
    ended = fleet.end(second, node=1)
    assert (ended["counts"], ended["retry_of"], ended["targets"]) == ({"ok": 2}, first, 2)
    assert sorted(line["agent"] for line in fleet.results(second)[:-1]) == ["late-0", "late-1"]
    assert {len(line["output"][0]["text"]) for line in fleet.results(second)[:-1]} == {100}
    nothing = plain_post(f"{fleet.nodes[0].api}/v1/runs/{second}/retry", json={}, headers=PLATFORM)
    assert (nothing.status_code, nothing.json()["field"]) == (422, "states")
    wrong = plain_post(f"{fleet.nodes[0].api}/v1/runs/{second}/retry", json={"states": ["well"]}, headers=PLATFORM)
    assert (wrong.status_code, wrong.json()["field"]) == (422, "states")
    line = command_line(fleet, "runs", "retry", second, "--state", "ok", "-o", "json")
    assert line.returncode == 0, line.stderr
    assert sorted(json.loads(one).get("agent", "") for one in line.stdout.splitlines())[1:] == agents[3:]
    rows = plain_get(f"{fleet.nodes[1].api}/v1/runs?limit=2", headers=PLATFORM).json()
    more = plain_get(f"{fleet.nodes[0].api}/v1/runs?cursor={rows['cursor']}", headers=PLATFORM).json()
    found = [*rows["runs"], *more["runs"]]
    assert (len(rows["runs"]), more["cursor"]) == (2, None)
    assert {second, first} <= {one["id"] for one in found}
    assert [one["id"] for one in found] == sorted((one["id"] for one in found), reverse=True)
    assert plain_get(f"{fleet.nodes[0].api}/v1/runs?state=paused", headers=PLATFORM).json()["runs"] == []
    assert plain_get(f"{fleet.nodes[0].api}/v1/runs?state=wrong", headers=PLATFORM).json()["field"] == "state"
    shown = command_line(fleet, "runs", "ls", "--state", "done")
    assert shown.returncode == 0, shown.stderr
    assert second.encode() in shown.stdout


def test_unknown_agents_fail_and_abort_the_run_at_its_threshold(fleet: RunFleet) -> None:
    unknown = [f"nobody-{n}" for n in range(100)]
    ended = fleet.end(fleet.begin(agents=unknown, concurrency=5, abort_after={"failed": 10}))
    assert ended["state"] == "aborted"
    assert ended["reason"] == "10 targets have failed: the limit is 10"
    assert 10 <= ended["counts"]["failed"] <= 15
    assert ended["outcomes"][0]["code"] == "agent_unknown"
    canary = fleet.end(fleet.begin(agents=["nobody-1", *(f"all-{n}" for n in range(20))], canary=1))
    assert (canary["state"], canary["counts"]) == ("aborted", {"failed": 1, "not_started": 20})


def test_a_run_is_paused_resumed_and_cancelled_from_any_node(fleet: RunFleet) -> None:
    swarm = fleet.agents(30, "held", 1)
    agents = [f"held-{n}" for n in range(30)]
    swarm.freeze()
    try:
        run = fleet.begin(agents=agents, concurrency=10, deadline=120)
        wait_until(lambda: fleet.get(run)["counts"].get("started") == 10)
        fleet.ask(run, "pause", node=1)
        wait_until(lambda: fleet.get(run)["state"] == "paused")
    finally:
        swarm.thaw()
    wait_until(lambda: fleet.get(run)["counts"] == {"ok": 10, "waiting": 20})
    swarm.freeze()
    try:
        assert fleet.get(run)["state"] == "paused"
        fleet.ask(run, "resume", node=1)
        wait_until(lambda: fleet.get(run)["counts"].get("started") == 10)
        fleet.cancel(run, node=1)
        wait_until(lambda: fleet.get(run)["counts"].get("not_started") == 10)
        assert fleet.get(run)["state"] == "cancelled"
    finally:
        swarm.thaw()
    counts = fleet.end(run)["counts"]
    assert (counts["not_started"], counts.get("cancelled", 0) + counts["ok"]) == (10, 20)


def test_silent_agents_hold_their_places_no_longer_than_their_deadline(fleet: RunFleet) -> None:
    swarm = fleet.agents(15, "silent", 1)
    swarm.freeze()
    try:
        began = time.monotonic()
        run = fleet.begin(agents=[f"silent-{n}" for n in range(15)] + ["all-3"], concurrency=5, deadline=1)
        ended = fleet.end(run)
        assert ended["counts"] == {"timeout": 15, "ok": 1}
        assert time.monotonic() - began < 3 * (1 + 2) + 6  # three rounds
    finally:
        swarm.thaw()


def test_agents_that_are_offline_fail_or_are_skipped(make_fleet: MakeRunFleet, own_valkey: EmbeddedValkey) -> None:
    fleet = make_fleet(own_valkey.url)
    fleet.node()
    gone = fleet.agents(5, "gone")
    gone.process.send_signal(signal.SIGINT)
    gone.process.wait(30)
    fleet.agents(5, "here")
    agents = [f"{prefix}-{n}" for prefix in ("gone", "here") for n in range(5)]
    # They are away for 45 s: until then a run waits for them, as a command does.
    wait_until(lambda: "offline" in fleet.agent("gone-0")["state"], 90)
    assert fleet.end(fleet.begin(agents=agents))["counts"] == {"offline": 5, "ok": 5}
    skipped = fleet.end(fleet.begin(agents=agents, on_offline="skip", abort_after={"failed": 1}))
    assert (skipped["state"], skipped["counts"]) == ("done", {"skipped": 5, "ok": 5})


def test_agents_that_are_offline_are_waited_for_while_others_go_on(
    make_fleet: MakeRunFleet, own_valkey: EmbeddedValkey
) -> None:
    fleet = make_fleet(own_valkey.url)
    fleet.node()
    fleet.node()
    gone = fleet.agents(4, "gone")
    gone.process.send_signal(signal.SIGINT)
    gone.process.wait(30)
    fleet.agents(6, "here", 1)
    agents = [f"{prefix}-{n}" for prefix in ("gone", "here") for n in range(4)]
    wait_until(lambda: fleet.agent("gone-3")["state"] != "online")
    # More of them are gone than have a place, and all of the first batch.
    run = fleet.begin(agents=agents, on_offline={"queue": 300}, concurrency=2, batches={"size": 4}, run_deadline=600)
    wait_until(lambda: fleet.get(run)["counts"] == {"ok": 4, "queued": 4})
    assert fleet.get(run)["ended"] is None
    fleet.nodes[0].signal(signal.SIGKILL)  # its owner
    wait_until(lambda: fleet.get(run, 1)["node"] == "node-2", 30)
    back = fleet.agents(4, "gone", 1)
    ended = fleet.end(run, node=1)
    assert (ended["state"], ended["counts"]) == ("done", {"ok": 8})
    back.process.send_signal(signal.SIGINT)
    back.process.wait(30)
    wait_until(lambda: fleet.agent("gone-3", 1)["state"] != "online")
    short = fleet.begin(1, agents=["gone-0", "here-4"], on_offline={"queue": 2}, abort_after={"failed": 2})
    assert fleet.end(short, 1)["counts"] == {"ok": 1, "offline": 1}
    long = fleet.begin(1, agents=["gone-0", "here-5"], on_offline={"queue": 300})
    wait_until(lambda: fleet.get(long, 1)["counts"] == {"ok": 1, "queued": 1})
    fleet.cancel(long, 1)
    assert fleet.end(long, 1)["counts"] == {"ok": 1, "cancelled": 1}


def test_the_command_line_runs_and_groups_what_the_agents_returned(fleet: RunFleet) -> None:
    done = command_line(fleet, "run", "sys.info", "--agents", "all-1,all-2,all-3")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(b"== 3 agents ok: "), done.stdout
    assert b"done: 3 of 3: 3 ok" in done.stderr
    failed = command_line(fleet, "run", "sys.info", "--agents", "all-1,nobody-9", "-o", "json")
    assert failed.returncode == 1
    lines = [json.loads(line) for line in failed.stdout.splitlines()]
    assert sorted(line["state"] for line in lines[:-1]) == ["failed", "ok"]
    assert lines[-1]["end"]["state"] == "done"
    shown = command_line(fleet, "runs", "show", lines[-1]["id"])
    assert b"2 of 2: 1 ok, 1 failed" in shown.stdout
    dry = command_line(fleet, "run", "sys.info", "-l", "label.tier=web", "--dry-run")
    assert dry.returncode == 0
    wrong = command_line(fleet, "run", "sys.info")
    assert (wrong.returncode, b"-l SELECTOR" in wrong.stderr) == (2, True)
    detached = command_line(fleet, "run", "sys.info", "--agents", "all-1", "--detach", "--abort-after", "5%")
    again = command_line(fleet, "runs", "results", detached.stdout.decode().strip())
    assert again.stdout.startswith(b"== 1 agent ok: all-1"), again


def test_large_outputs_are_cut_in_the_stream_and_compared_as_a_whole(fleet: RunFleet) -> None:
    agents = [f"all-{n}" for n in range(80, 84)]
    run = fleet.begin(agents=agents, payload={"bytes": 200_000})
    ended = fleet.end(run)
    (outcome,) = ended["outcomes"]
    assert (outcome["count"], len(outcome["digest"])) == (4, 32)
    for line in fleet.results(run)[:-1]:
        assert line["truncated"]
        assert sum(len(part["text"]) for part in line["output"]) == 64 << 10
    huge = fleet.end(fleet.begin(agents=agents[:2], payload={"bytes": 1_500_000}))
    assert (huge["counts"], huge["outcomes"][0]["digest"]) == ({"ok": 2}, None)


def test_progress_is_told_while_a_run_is_followed(fleet: RunFleet) -> None:
    swarm = fleet.agents(5, "slow", 1)
    swarm.freeze()
    thaw = threading.Timer(3.0, swarm.thaw)
    thaw.start()
    try:
        run = fleet.begin(agents=[*(f"all-{n}" for n in range(20)), *(f"slow-{n}" for n in range(5))])
        lines = fleet.results(run, node=1, progress="true", output="false")
    finally:
        thaw.join()
    told = [line["progress"]["counts"] for line in lines if "progress" in line]
    assert {"ok": 20, "started": 5} in told
    assert all(sum(counts.values()) == 25 for counts in told)
    assert lines[-1] == {"end": {"state": "done", "counts": {"ok": 25}}}
    assert len([line for line in lines if "offset" in line]) == 25
