"""Runs that agents join while they go on: whoever matches and connects is a target once, whatever happens to nodes."""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from support.cli.processes import environment
from support.waiting import wait_until

if TYPE_CHECKING:
    from runs.conftest import MakeRunFleet, RunFleet

    from fairlead.store.embedded_valkey.server import EmbeddedValkey

pytestmark = pytest.mark.timeout(300)


def ok(fleet: RunFleet, run: str, node: int, count: int) -> dict[str, Any]:
    """Wait until so many targets have ended well, and no other is there."""
    wait_until(lambda: fleet.get(run, node)["counts"] == {"ok": count}, 60)
    return fleet.get(run, node)


def test_agents_that_connect_later_join_once_even_if_the_owner_dies(
    make_fleet: MakeRunFleet, own_valkey: EmbeddedValkey
) -> None:
    fleet = make_fleet(own_valkey.url)
    owner, _ = fleet.node(), fleet.node()
    swarms = [fleet.agents(995, "early", 1)]
    run = fleet.begin(selector="*", late=True, run_deadline=600)
    assert ok(fleet, run, 0, 995)["ended"] is None
    swarms.append(fleet.agents(12, "later", 1))  # beyond the first thousand
    found = ok(fleet, run, 1, 1_007)
    assert (found["state"], found["targets"], found["late"]) == ("running", 1_007, True)
    owner.signal(signal.SIGKILL)
    swarms.append(fleet.agents(3, "last", 1))
    assert ok(fleet, run, 1, 1_010)["node"] == "node-2"
    fleet.cancel(run, 1)
    ended = fleet.end(run, 1)
    assert (ended["state"], ended["counts"]) == ("cancelled", {"ok": 1_010})
    lines = fleet.results(run, 1, output="false")
    named = {f"{prefix}-{n}" for prefix, count in (("early", 995), ("later", 12), ("last", 3)) for n in range(count)}
    assert (len(lines) - 1, {line["agent"] for line in lines[:-1]}) == (1_010, named)
    received = 0
    for swarm in swarms:
        swarm.process.send_signal(signal.SIGINT)
        received += swarm.result()["commands"]["received"]
    assert received == 1_010


def test_agents_that_are_not_linked_are_no_targets_until_they_come(
    make_fleet: MakeRunFleet, own_valkey: EmbeddedValkey
) -> None:
    fleet = make_fleet(own_valkey.url)
    fleet.node()
    fleet.agents(2, "here")
    gone = fleet.agents(3, "gone")
    gone.process.send_signal(signal.SIGINT)
    gone.process.wait(30)
    wait_until(lambda: fleet.agent("gone-2")["state"] != "online")
    dry = fleet.post(selector="*", late=True, dry_run=True).json()
    assert sorted(dry["agents"]) == ["here-0", "here-1"]
    run = fleet.begin(selector="*", late=True, run_deadline=600)
    ok(fleet, run, 0, 2)
    fleet.agents(3, "gone")
    ok(fleet, run, 0, 5)


def test_a_run_without_agents_waits_for_them_and_is_done_when_it_expires(
    make_fleet: MakeRunFleet, own_valkey: EmbeddedValkey
) -> None:
    fleet = make_fleet(own_valkey.url)
    fleet.node()
    posted = fleet.post(selector="label.none=here", late=True, run_deadline=3)
    assert (posted.status_code, posted.json()["targets"]) == (202, 0)
    ended = fleet.end(posted.json()["id"])
    assert (ended["state"], ended["targets"], ended["counts"], ended["outcomes"]) == ("done", 0, {}, [])
    assert fleet.results(posted.json()["id"]) == [{"end": {"state": "done", "counts": {}}}]


def test_the_canary_and_the_pause_hold_for_agents_that_join(
    make_fleet: MakeRunFleet, own_valkey: EmbeddedValkey
) -> None:
    fleet = make_fleet(own_valkey.url)
    fleet.node()
    run = fleet.begin(selector="*", late=True, run_deadline=600)
    fleet.ask(run, "pause")
    wait_until(lambda: fleet.get(run)["state"] == "paused")
    fleet.agents(4, "paused")
    wait_until(lambda: fleet.get(run)["counts"] == {"waiting": 4})
    fleet.ask(run, "resume")
    ok(fleet, run, 0, 4)


@pytest.mark.parametrize(
    ("body", "field"), [({"agents": ["all-0"]}, "late"), ({"selector": "*", "batches": {"size": 3}}, "batches")]
)
def test_agents_join_by_a_selector_and_outside_batches(fleet: RunFleet, body: dict[str, Any], field: str) -> None:
    answer = fleet.post(**body, late=True)
    assert (answer.status_code, answer.json()["field"]) == (422, field)


def test_the_command_line_follows_such_a_run_until_it_expires(fleet: RunFleet) -> None:
    chosen = ("--late", "--run-deadline", "2", "-l", "fact.none=here")
    done = subprocess.run(
        [sys.executable, "-P", "-m", "fairlead", "run", "sys.info", *chosen],
        capture_output=True, stdin=subprocess.DEVNULL, timeout=60, check=False, env=environment(fleet.nodes[0].api),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert b"on 0 agents" in done.stderr
    assert b"done: 0 of 0" in done.stderr
