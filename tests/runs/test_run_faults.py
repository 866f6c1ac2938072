"""Runs while nodes and Redis fail: another node goes on, sums add up at every moment, and nothing runs twice."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from fairlead.fleet.runs.keys import OPEN_RUNS, run_agents_key, run_key, run_states_key
from fairlead.fleet.schema import agent_key, cmd_key
from fairlead.settings import Settings
from fairlead.store.reply import integer, items, text

from support.gateway.platform_api import PLATFORM
from support.plain_http import plain_get, plain_post
from support.waiting import until, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from runs.conftest import MakeRunFleet, RunFleet

    from fairlead.store.embedded_valkey.server import EmbeddedValkey

    from support.fixtures import RedisOf

pytestmark = pytest.mark.timeout(300)

TARGETS = 1_000


def begin_and_reach(fleet: RunFleet, swarm: Any, share: float) -> str:
    """Begin a run over all agents, and wait until that share of them has ended: the rest waits, for the agents are
    frozen then."""
    run = fleet.begin(agents=[f"many-{n}" for n in range(TARGETS)], concurrency=20, deadline=60)
    wait_until(lambda: fleet.get(run, 1)["counts"].get("ok", 0) >= share * TARGETS, 60)
    swarm.freeze()
    wait_until(lambda: fleet.get(run, 1)["counts"].get("started", 0) == 20)
    return run


def check_all_ran_once(fleet: RunFleet, swarm: Any, run: str, node: int) -> None:
    lines = fleet.results(run, node=node, output="false")
    assert sorted(line["agent"] for line in lines[:-1]) == sorted(f"many-{n}" for n in range(TARGETS))
    swarm.process.send_signal(signal.SIGINT)
    assert swarm.result()["commands"]["received"] == TARGETS


def test_the_owner_is_killed_and_another_node_goes_on_within_ten_seconds(
    make_fleet: MakeRunFleet, own_valkey: EmbeddedValkey
) -> None:
    fleet = make_fleet(own_valkey.url)
    owner, _ = fleet.node(), fleet.node()
    swarm = fleet.agents(TARGETS, "many", 1)
    run = begin_and_reach(fleet, swarm, 0.2)
    assert fleet.get(run, 1)["node"] == "node-1"
    owner.signal(signal.SIGKILL)
    killed = time.monotonic()
    swarm.thaw()
    # What was under way ends, but nothing starts until the run has a new owner.
    wait_until(lambda: fleet.get(run, 1)["node"] == "node-2", 15)
    assert time.monotonic() - killed < 10
    ended = fleet.end(run, 1)
    assert (ended["state"], ended["counts"]) == ("done", {"ok": TARGETS})
    check_all_ran_once(fleet, swarm, run, 1)


def test_an_owner_that_is_frozen_gives_way_and_starts_nothing_when_it_wakes(
    make_fleet: MakeRunFleet, own_valkey: EmbeddedValkey
) -> None:
    fleet = make_fleet(own_valkey.url)
    owner, _ = fleet.node(), fleet.node()
    swarm = fleet.agents(TARGETS, "many", 1)
    run = begin_and_reach(fleet, swarm, 0.2)
    owner.signal(signal.SIGSTOP)
    swarm.thaw()
    wait_until(lambda: fleet.get(run, 1)["node"] == "node-2", 15)
    fleet.cancel(run, 1)
    wait_until(lambda: fleet.get(run, 1)["counts"].get("not_started"))
    owner.signal(signal.SIGCONT)
    before = fleet.end(run, 1)
    wait_until(lambda: "is not driven here any more" in owner.log())
    assert fleet.get(run, 1) == before
    assert before["state"] == "cancelled"


def test_a_node_that_stops_gives_its_runs_up_at_once(make_fleet: MakeRunFleet, own_valkey: EmbeddedValkey) -> None:
    fleet = make_fleet(own_valkey.url)
    owner, _ = fleet.node(), fleet.node()
    swarm = fleet.agents(TARGETS, "many", 1)
    run = begin_and_reach(fleet, swarm, 0.1)
    owner.stop()
    stopped = time.monotonic()
    wait_until(lambda: fleet.get(run, 1)["node"] == "node-2", 15)
    assert time.monotonic() - stopped < 4
    swarm.thaw()
    assert fleet.end(run, 1)["counts"] == {"ok": TARGETS}
    check_all_ran_once(fleet, swarm, run, 1)


def test_redis_is_frozen_in_the_middle_and_nothing_is_lost_or_run_twice(
    make_fleet: MakeRunFleet, own_valkey: EmbeddedValkey
) -> None:
    fleet = make_fleet(own_valkey.url)
    fleet.node()
    fleet.node()
    swarm = fleet.agents(TARGETS, "many", 1)
    run = fleet.begin(agents=[f"many-{n}" for n in range(TARGETS)], concurrency=20, deadline=60)
    wait_until(lambda: fleet.get(run)["counts"].get("ok", 0) >= 0.2 * TARGETS)
    os.kill(own_valkey.pid, signal.SIGSTOP)
    thaw = threading.Timer(8.0, os.kill, (own_valkey.pid, signal.SIGCONT))  # for longer than an ownership lasts
    thaw.start()
    thaw.join()
    wait_until(lambda: plain_get(f"{fleet.nodes[0].api}/v1/runs/{run}", headers=PLATFORM).status_code == 200, 60)
    ended = fleet.end(run)
    assert (ended["state"], ended["counts"]) == ("done", {"ok": TARGETS})
    check_all_ran_once(fleet, swarm, run, 0)


def test_a_stream_of_results_is_taken_up_again_at_another_node(fleet: RunFleet) -> None:
    run = fleet.begin(agents=[f"all-{n}" for n in range(100)])
    fleet.end(run)
    whole = fleet.results(run, output="false")
    for start in (0, 1, 50, 99, 100):
        assert fleet.results(run, 1, start, output="false") == whole[start:]
    beyond = plain_get(f"{fleet.nodes[1].api}/v1/runs/{run}/results?from=101", headers=PLATFORM)
    assert (beyond.status_code, beyond.json()["field"]) == (422, "from")


def test_the_deadline_of_the_whole_run_ends_it(fleet: RunFleet) -> None:
    swarm = fleet.agents(20, "late", 1)
    swarm.freeze()
    try:
        began = time.monotonic()
        run = fleet.begin(agents=[f"late-{n}" for n in range(20)], concurrency=5, deadline=60, run_deadline=6)
        ended = fleet.end(run)
        assert (ended["state"], ended["counts"]) == ("expired", {"timeout": 5, "not_started": 15})
        assert time.monotonic() - began < 20
    finally:
        swarm.thaw()


def test_the_node_of_the_agents_is_killed_and_every_target_ends(
    make_fleet: MakeRunFleet, own_valkey: EmbeddedValkey
) -> None:
    fleet = make_fleet(own_valkey.url)
    fleet.node()
    holder = fleet.node()
    swarm = fleet.agents(200, "many", 1)
    swarm.freeze()
    run = fleet.begin(agents=[f"many-{n}" for n in range(200)], concurrency=50, deadline=5)
    wait_until(lambda: fleet.get(run)["counts"].get("started", 0) == 50)
    holder.signal(signal.SIGKILL)  # nobody has the agents from now on
    ended = fleet.end(run, timeout=90)
    assert ended["state"] == "done"
    assert set(ended["counts"]) <= {"timeout", "offline", "expired"}
    assert sum(ended["counts"].values()) == 200


async def test_redis_is_killed_and_comes_back_with_its_data(
    make_fleet: MakeRunFleet, own_valkey: EmbeddedValkey
) -> None:
    fleet = make_fleet(own_valkey.url)
    fleet.node()
    fleet.node()
    swarm = fleet.agents(TARGETS, "many", 1)
    run = fleet.begin(agents=[f"many-{n}" for n in range(TARGETS)], concurrency=20, deadline=20)
    wait_until(lambda: fleet.get(run)["counts"].get("ok", 0) >= 0.2 * TARGETS)
    os.kill(own_valkey.pid, signal.SIGKILL)
    await own_valkey.restart()
    wait_until(lambda: plain_get(f"{fleet.nodes[0].api}/v1/runs/{run}", headers=PLATFORM).status_code == 200, 60)
    ended = fleet.end(run)
    # On a busy disk the server may have lost its last moments, and with them ends that it had acknowledged.
    assert (ended["state"], set(ended["counts"]) <= {"ok", "timeout"}) == ("done", True)
    assert ended["counts"]["ok"] > 0.9 * TARGETS
    lines = fleet.results(run, output="false")
    assert sorted(line["agent"] for line in lines[:-1]) == sorted(f"many-{n}" for n in range(TARGETS))
    swarm.process.send_signal(signal.SIGINT)


async def test_redis_loses_the_run_and_its_followers_are_told(
    make_fleet: MakeRunFleet, own_valkey: EmbeddedValkey, redis_of: RedisOf
) -> None:
    fleet = make_fleet(own_valkey.url)
    fleet.node()
    swarm = fleet.agents(10, "lost")
    swarm.freeze()
    store = await redis_of(own_valkey)
    run = fleet.begin(agents=[f"lost-{n}" for n in range(10)], deadline=60)
    wait_until(lambda: fleet.get(run)["counts"].get("started", 0) == 10)
    with ThreadPoolExecutor(1) as pool:
        followed = pool.submit(fleet.results, run, progress="true")
        await until(lambda: store.submit("HGET", run_key(run), "w"))  # the stream has begun
        await store.submit("FLUSHALL")
        lines = await asyncio.to_thread(followed.result, 30)
    assert lines[-1]["error"]["code"] == "record_lost"
    await asyncio.to_thread(wait_until, lambda: "is not driven here any more: gone" in fleet.nodes[0].log())
    swarm.thaw()


@pytest.mark.parametrize("lost", [run_agents_key, run_states_key])
async def test_a_run_of_which_redis_has_lost_parts_ends_and_says_so(
    make_fleet: MakeRunFleet, own_valkey: EmbeddedValkey, redis_of: RedisOf, lost: Callable[[str], str]
) -> None:
    fleet = make_fleet(own_valkey.url)
    owner, _ = fleet.node(), fleet.node()
    swarm = fleet.agents(30, "lost", 1)
    swarm.freeze()
    store = await redis_of(own_valkey)
    run = fleet.begin(agents=[f"lost-{n}" for n in range(30)], concurrency=10, deadline=60)
    wait_until(lambda: fleet.get(run)["counts"] == {"started": 10, "waiting": 20})
    owner.signal(signal.SIGKILL)
    await store.submit("DEL", lost(run))
    ended = await asyncio.to_thread(fleet.end, run, 1)
    assert (ended["state"], ended["counts"]) == ("aborted", {"failed": 10, "not_started": 20})
    assert "lost parts of this run" in ended["reason"]
    assert [(one["state"], one["code"], one["count"]) for one in ended["outcomes"]] == [("failed", "record_lost", 10)]
    assert (await asyncio.to_thread(fleet.results, run, 1))[-1] == {
        "end": {"state": "aborted", "counts": ended["counts"]}
    }
    assert await store.submit("ZSCORE", OPEN_RUNS, run) is None
    swarm.thaw()


async def test_outputs_of_the_first_targets_are_kept_as_long_as_those_of_the_last(
    fleet: RunFleet, shared_valkey: EmbeddedValkey, redis_of: RedisOf
) -> None:
    """The record of a target is kept until the retention of a run that takes all its time is over."""
    run = fleet.begin(agents=["all-0"], deadline=3600, run_deadline=3600)
    fleet.end(run)
    (line,) = fleet.results(run)[:-1]
    left = integer(await (await redis_of(shared_valkey)).submit("PTTL", cmd_key(line["command"]))) / 1000
    assert left > 3600 + Settings("node-1").retention - 300


async def test_who_takes_a_run_long_after_its_owner_has_stopped_starts_nothing_again(
    make_fleet: MakeRunFleet, own_valkey: EmbeddedValkey, redis_of: RedisOf
) -> None:
    """What had run by then may have left no record."""
    fleet, store = make_fleet(own_valkey.url), await redis_of(own_valkey)
    node = fleet.node("--retention=2")
    fleet.agents(1, "many").freeze()
    run = fleet.begin(agents=["many-0"], deadline=600, run_deadline=600)
    wait_until(lambda: fleet.get(run)["counts"].get("started") == 1)
    node.stop()
    records = items(await store.submit("KEYS", "fl2:cmd:*"))
    assert len(records) == 1
    await store.submit("DEL", text(records[0]))  # as its retention would have
    await asyncio.sleep(2)  # the time itself is what matters: more than half of the retention
    await asyncio.to_thread(node.start)
    ended = fleet.end(run)
    assert ended["counts"] == {"failed": 1}
    assert ended["outcomes"][0]["code"] == "outcome_unknown"


async def test_a_key_of_another_type_keeps_no_other_target_from_starting(
    make_fleet: MakeRunFleet, own_valkey: EmbeddedValkey, redis_of: RedisOf
) -> None:
    fleet, store = make_fleet(own_valkey.url), await redis_of(own_valkey)
    fleet.node()
    fleet.agents(60, "many")
    await store.submit("DEL", agent_key("many-7"))
    await store.submit("RPUSH", agent_key("many-7"), "a note")
    run = fleet.begin(agents=[f"many-{n}" for n in range(60)], deadline=30)
    ended = await asyncio.to_thread(fleet.end, run)
    assert ended["counts"].get("ok", 0) >= 59
    lines = await asyncio.to_thread(fleet.results, run, output="false")
    assert {line["agent"] for line in lines[:-1] if line["state"] != "ok"} <= {"many-7"}


def test_a_repeated_post_of_a_run_that_has_expired_runs_nothing(
    make_fleet: MakeRunFleet, own_valkey: EmbeddedValkey
) -> None:
    """The Idempotency-Key outlives the run."""
    fleet = make_fleet(own_valkey.url)
    node = fleet.node("--retention=1")
    fleet.agents(1, "many")
    body, headers = {"agents": ["many-0"], "method": "sys.info"}, {**PLATFORM, "idempotency-key": "once"}
    run = plain_post(f"{node.api}/v1/runs", json=body, headers=headers).json()["id"]
    fleet.end(run)
    wait_until(lambda: plain_get(f"{node.api}/v1/runs/{run}", headers=PLATFORM).status_code == 404)
    again = plain_post(f"{node.api}/v1/runs", json=body, headers=headers)
    assert (again.status_code, again.json()["code"], again.json()["id"]) == (410, "record_expired", run)
    assert plain_get(f"{node.api}/v1/runs/{run}", headers=PLATFORM).status_code == 404
