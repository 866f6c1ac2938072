"""Schedules: runs that begin again and again, once each, whatever happens to nodes."""

from __future__ import annotations

import asyncio
import itertools
import json
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

from fairlead.fleet.schema import SCHEDULES_DUE

from support.cli.processes import environment
from support.gateway.platform_api import PLATFORM
from support.plain_http import plain_delete, plain_get, plain_post
from support.waiting import until, wait_until

if TYPE_CHECKING:
    from runs.conftest import MakeRunFleet, RunFleet

    from fairlead.store.embedded_valkey.server import EmbeddedValkey

    from support.fixtures import RedisOf

pytestmark = pytest.mark.timeout(240)

NUMBERS = itertools.count()
RUN = {"method": "sys.info", "selector": "*"}


def create(fleet: RunFleet, node: int = 0, **more: object) -> Any:
    body = {"name": f"nightly-{next(NUMBERS)}", "cron": "30 2 * * *", "run": RUN, **more}
    return plain_post(f"{fleet.nodes[node].api}/v1/schedules", json=body, headers=PLATFORM, timeout=30)


def listed(fleet: RunFleet, id: str, node: int = 0) -> dict[str, Any]:
    found = plain_get(f"{fleet.nodes[node].api}/v1/schedules", headers=PLATFORM, timeout=30).json()["schedules"]
    return next(dict(one) for one in found if one["id"] == id)


def runs(fleet: RunFleet, node: int = 0) -> list[str]:
    found = plain_get(f"{fleet.nodes[node].api}/v1/runs", headers=PLATFORM, timeout=30).json()["runs"]
    return [one["id"] for one in found]


async def make_due(redis_of: RedisOf, server: EmbeddedValkey, id: str, ago: float = 1.0) -> None:
    """Have the schedule be due since so many seconds, as if the clock had gone there."""
    due = int((time.time() - ago) * 1000)
    await (await redis_of(server)).submit("ZADD", SCHEDULES_DUE, due, id)


async def begun(fleet: RunFleet, id: str, node: int = 0) -> dict[str, Any]:
    """How its last start went, once it has been noted."""
    await until(lambda: asyncio.to_thread(lambda: listed(fleet, id, node)["last"]))
    return dict((await asyncio.to_thread(listed, fleet, id, node))["last"])


async def test_a_schedule_begins_one_run_each_time_it_is_due(
    make_fleet: MakeRunFleet, own_valkey: EmbeddedValkey, redis_of: RedisOf
) -> None:
    fleet = make_fleet(own_valkey.url)
    fleet.node()
    fleet.node()
    await asyncio.to_thread(fleet.agents, 12, "all", 1)
    made = await asyncio.to_thread(create, fleet)
    assert made.status_code == 201, made.text
    id = made.json()["id"]
    assert (made.json()["next"][11:16], made.json()["last"]) == ("02:30", None)
    seen = set()
    for _ in range(2):
        before = (await asyncio.to_thread(listed, fleet, id))["last"]
        await make_due(redis_of, own_valkey, id)
        await until(lambda: asyncio.to_thread(lambda: listed(fleet, id)["last"] != before))  # noqa: B023  # awaited here
        last = await begun(fleet, id)
        assert last["outcome"] == "started"
        assert (await asyncio.to_thread(fleet.end, last["run"]))["counts"] == {"ok": 12}
        seen.add(last["run"])
    assert set(await asyncio.to_thread(runs, fleet)) == seen
    assert (await asyncio.to_thread(listed, fleet, id))["next"][11:16] == "02:30"
    removed = await asyncio.to_thread(
        lambda: plain_delete(f"{fleet.nodes[1].api}/v1/schedules/{id}", headers=PLATFORM, timeout=30)
    )
    assert removed.status_code == 204
    again = await asyncio.to_thread(
        lambda: plain_delete(f"{fleet.nodes[1].api}/v1/schedules/{id}", headers=PLATFORM, timeout=30)
    )
    assert again.status_code == 404
    await make_due(redis_of, own_valkey, id)  # as a node that has read it just before
    redis = await redis_of(own_valkey)
    await until(lambda: _gone(redis))
    assert len(await asyncio.to_thread(runs, fleet)) == 2


async def _gone(redis: Any) -> bool:
    return bool(await redis.submit("ZCARD", SCHEDULES_DUE) == 0)


async def test_another_node_begins_it_if_the_one_where_it_was_made_is_dead(
    make_fleet: MakeRunFleet, own_valkey: EmbeddedValkey, redis_of: RedisOf
) -> None:
    fleet = make_fleet(own_valkey.url)
    first, _ = fleet.node(), fleet.node()
    await asyncio.to_thread(fleet.agents, 3, "all", 1)
    id = (await asyncio.to_thread(create, fleet)).json()["id"]
    first.signal(signal.SIGKILL)
    await make_due(redis_of, own_valkey, id)
    last = await begun(fleet, id, 1)
    assert last["outcome"] == "started"
    assert (await asyncio.to_thread(fleet.end, last["run"], 1))["counts"] == {"ok": 3}


async def test_what_was_missed_is_left_out_or_made_up_for_once(
    make_fleet: MakeRunFleet, own_valkey: EmbeddedValkey, redis_of: RedisOf
) -> None:
    fleet = make_fleet(own_valkey.url)
    fleet.node()
    await asyncio.to_thread(fleet.agents, 2, "all")
    skipped = (await asyncio.to_thread(create, fleet, cron="* * * * *")).json()["id"]
    caught_up = (await asyncio.to_thread(lambda: create(fleet, missed="run"))).json()["id"]
    nobody = await asyncio.to_thread(lambda: create(fleet, run={**RUN, "selector": "label.none=here"}))
    for id in (skipped, caught_up):
        await make_due(redis_of, own_valkey, id, ago=3 * 86_400)
    await make_due(redis_of, own_valkey, nobody.json()["id"])
    assert (await begun(fleet, skipped))["outcome"] == "missed"
    assert (await begun(fleet, nobody.json()["id"]))["outcome"] == "no_agents"
    last = await begun(fleet, caught_up)
    assert last["outcome"] == "started"
    assert await asyncio.to_thread(runs, fleet) == [last["run"]]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"cron": "often"}, "cron"),
        ({"zone": "Mars/Olympus"}, "zone"),
        ({"name": ""}, "name"),
        ({"run": {"method": "sys.info", "agents": ["all-0"]}}, "run.agents"),
        ({"run": {**RUN, "batches": {"size": 2}}}, "run.batches"),
        ({"run": {**RUN, "dry_run": True}}, "run.dry_run"),
        ({"run": {**RUN, "selector": "a b"}}, "selector"),
        ({"missed": "twice"}, "missed"),
    ],
)
def test_a_wrong_schedule_names_the_member_at_fault(fleet: RunFleet, change: dict[str, Any], field: str) -> None:
    answer = create(fleet, **change)
    assert (answer.status_code, answer.json()["field"]) == (422, field), answer.text


def test_the_command_line_makes_lists_and_removes_schedules(fleet: RunFleet) -> None:
    def command_line(*args: str) -> subprocess.CompletedProcess[bytes]:
        line = [sys.executable, "-P", "-m", "fairlead", "schedules", *args]
        return subprocess.run(
            line, capture_output=True, stdin=subprocess.DEVNULL, timeout=60, check=False,
            env=environment(fleet.nodes[0].api),
        )  # fmt: skip

    chosen = ("-l", "*", "--cron", "0 4 * * 0", "--zone", "Europe/Berlin", "--spread", "600", "--concurrency", "50")
    made = command_line("add", *chosen, "weekly", "sys.info")
    assert made.returncode == 0, made.stderr
    assert b"the schedule weekly is due at " in made.stderr
    id = made.stdout.decode().strip()
    shown = command_line("ls", "-o", "json")
    (one,) = [one for one in json.loads(shown.stdout)["schedules"] if one["id"] == id]
    assert (one["name"], one["cron"], one["zone"], one["missed"]) == ("weekly", "0 4 * * 0", "Europe/Berlin", "skip")
    assert command_line("rm", id).stdout.decode() == f"removed weekly ({id})\n"
    assert command_line("rm", id).returncode != 0
    wrong = command_line("add", "-l", "*", "--cron", "sometimes", "weekly", "sys.info")
    assert b"invalid cron expression" in wrong.stderr


def test_the_starts_of_a_run_are_spread_over_some_time(fleet: RunFleet) -> None:
    began = time.monotonic()
    run = fleet.begin(agents=[f"all-{n}" for n in range(40)], spread=4)
    wait_until(lambda: fleet.get(run)["counts"].get("ok", 0) >= 10)
    assert fleet.get(run)["counts"].get("waiting", 0) > 0
    assert fleet.end(run)["counts"] == {"ok": 40}
    assert time.monotonic() - began >= 3.5
