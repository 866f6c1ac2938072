"""Random histories on a real server, compared with reference.py, and short histories in which random play found errors.

Each run plays the same histories; `FAIRLEAD_MODEL_EXAMPLES=2000` plays that many others. Every test runs on a single
server and on a one-node cluster, where a script that touches keys which were not passed to it fails.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from fairlead.fleet import commands, schema
from fairlead.fleet.command_record import Delivery, NewRecord, OutOfRange, ResultPage, Settled, StoredEnd
from fairlead.fleet.commands import Commands, data, ending
from fairlead.fleet.directory import Directory
from fairlead.fleet.directory_replies import Claimed
from fairlead.fleet.schema import TargetState
from fairlead.shards import of_agent
from fairlead.store.reply import integer
from fairlead.wire.ids import uuid7

from support.fleet.history import FleetHistory
from support.fleet.script_server import FAR_MS, INPUT_LIMIT, OPEN_LIMIT, OUTPUT_LIMIT, RETENTION_MS, ScriptServer

EXAMPLES = os.environ.get("FAIRLEAD_MODEL_EXAMPLES")


@pytest.fixture(scope="module", params=["server", "cluster"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScriptServer]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(schema, "OPEN_LIMIT", OPEN_LIMIT)
        patch.setattr(commands, "INPUT_LIMIT", INPUT_LIMIT)
        made = ScriptServer(tmp_path_factory.mktemp("valkey"), cluster=request.param == "cluster")
        yield made
        made.close()


@pytest.mark.timeout(36000 if EXAMPLES else 300)
def test_histories_agree_with_the_reference(server: ScriptServer) -> None:
    class HistoryOfThis(FleetHistory):
        def __init__(self) -> None:
            super().__init__(server)

    run_state_machine_as_test(
        HistoryOfThis,
        settings=settings(
            max_examples=int(EXAMPLES or (40 if server.cluster else 150)),  # the cluster is there for the keys alone
            stateful_step_count=40,
            deadline=None,
            derandomize=EXAMPLES is None,
            print_blob=True,
        ),
    )


AGENT, MEMORY = "agent", "memory"


def new_id(server: ScriptServer, now: int) -> str:
    return of_agent(uuid7(now, (next(server.names) << 12).to_bytes(10)), AGENT)


def running(
    server: ScriptServer, *, retain: str = "all", retry: str = "never", remembered: int = 0
) -> tuple[Commands, str]:  # fmt: skip
    """A command that its agent has, owned from generation 1 on."""
    records = Commands(server.store, OUTPUT_LIMIT)
    now = server.run(server.time())
    command = new_id(server, now)
    server.submit("DEL", schema.open_key(AGENT))
    record = NewRecord(
        command, AGENT, "do", b"payload", "bulk", now, now + FAR_MS, RETENTION_MS, now + FAR_MS, retry, retain,
        remembered=remembered,
    )  # fmt: skip
    assert server.call(lambda: records.accept(record, now + FAR_MS, now + FAR_MS, unknown=True)).why == "ok"
    server.call(lambda: records.fence(command, AGENT, 1, MEMORY))
    return records, command


def test_stored_results_are_a_prefix_of_what_was_sent(server: ScriptServer) -> None:
    records, command = running(server)
    for n, size in enumerate((60, 60, 0, 30)):
        server.call(lambda n=n, size=size: records.append(command, AGENT, 1, data(n, "stdout", b"." * size)))  # type: ignore[misc]
    page = server.call(lambda: records.read(command, 0, 1000))
    assert isinstance(page, ResultPage)
    assert [result.n for result in page.results] == [0]


def test_an_empty_window_names_the_next_offset(server: ScriptServer) -> None:
    records, command = running(server, retain="window")
    server.call(lambda: records.append(command, AGENT, 1, data(0, "stdout", b"read")))
    page = server.call(lambda: records.read(command, 1, 1000, "", 1))
    assert isinstance(page, ResultPage)
    assert page.held == 0
    assert server.call(lambda: records.read(command, 0, 1000)) == OutOfRange(trimmed=True, edge=1)


def test_a_window_of_empty_chunks_is_full_at_some_point(server: ScriptServer) -> None:
    """No credit is needed for them, so what exceeds the bound is a gap, with which the command ends."""
    records, command = running(server, retain="window")
    out, fill = schema.out_key(command), "for i = 1, ARGV[1] do redis.call('XADD', KEYS[1], '0-' .. i, 'p', '') end"
    server.submit("EVAL", fill, 1, out, (1 << 19) - 1)
    words = [server.call(lambda n=n: records.append(command, AGENT, 1, data(n, "k", b""))).why for n in (0, 1)]  # type: ignore[misc]
    assert words == ["ok", "gap"]
    server.submit("DEL", out)


def test_results_expire_with_their_command(server: ScriptServer) -> None:
    """Nobody was there to end it before 160 s after its deadline."""
    records, command = running(server)
    server.call(lambda: records.append(command, AGENT, 1, data(0, "stdout", b"read")))
    assert server.call(lambda: records.add_input(command, AGENT, 0, b"given", False)) == ("ok", 0)
    keys = schema.cmd_key(command), schema.out_key(command), schema.in_key(command)
    for key in keys:
        server.submit("PEXPIRE", key, RETENTION_MS - 100_000)
    ended = server.run(records.finish(command, AGENT, TargetState.TIMEOUT, StoredEnd()))
    assert ended.why == "ok"
    lives = [integer(server.submit("PTTL", key)) for key in keys]
    assert min(lives) > RETENTION_MS - 10_000


@pytest.mark.parametrize("late", [1_000, 160_000])
def test_a_timed_out_command_can_be_read_for_its_retention(server: ScriptServer, late: int) -> None:
    """Soon after its deadline, when it keeps the life it was made with, and so late that this would be too short."""
    records, command = running(server)
    server.call(lambda: records.append(command, AGENT, 1, data(0, "stdout", b"read")))
    assert server.call(lambda: records.add_input(command, AGENT, 0, b"given", False)) == ("ok", 0)
    found = server.call(lambda: records.look_up(command))
    assert found is not None
    keys = schema.cmd_key(command), schema.out_key(command), schema.in_key(command)
    for key in keys:  # as if all that time had passed
        left = integer(server.submit("PTTL", key)) - (found.expires - server.run(server.time())) - late
        server.submit("PEXPIRE", key, left)
    (ended,) = server.call(
        lambda: records.time_out([(command, AGENT, found.expires + late)], StoredEnd(code="deadline"))
    )
    assert isinstance(ended, Settled)
    assert ended.why == "ended"
    lives = [integer(server.submit("PTTL", key)) for key in keys]
    assert RETENTION_MS - 10_000 < min(lives) <= max(lives) <= RETENTION_MS + 60_000


def test_a_command_is_created_once(server: ScriptServer) -> None:
    records, command = running(server)
    server.call(lambda: records.append(command, AGENT, 1, data(0, "stdout", b"kept")))
    now = server.run(server.time())
    other = NewRecord(command, AGENT, "other", b"", "bulk", now, now + FAR_MS, RETENTION_MS, now + FAR_MS)
    assert server.call(lambda: records.accept(other, now + FAR_MS, now + FAR_MS)).why == "exists"
    found = server.call(lambda: records.look_up(command))
    assert found is not None
    assert (found.seq, found.method) == (1, "do")


def test_output_proves_that_a_command_was_sent(server: ScriptServer) -> None:
    """Redis has lost its last writes: the command is queued there, and output of its agent arrives."""
    records = Commands(server.store, OUTPUT_LIMIT)
    now = server.run(server.time())
    command = new_id(server, now)
    server.submit("DEL", schema.open_key(AGENT))
    record = NewRecord(command, AGENT, "do", b"", "bulk", now, now + FAR_MS, RETENTION_MS, now + FAR_MS, retry="safe")
    assert server.call(lambda: records.accept(record, now + FAR_MS, now + FAR_MS, unknown=True)).why == "ok"
    assert server.call(lambda: records.append(command, AGENT, 1, data(0, "stdout", b"out"))).why == "ok"
    delivery = server.call(lambda: records.fence(command, AGENT, 1, ""))
    assert isinstance(delivery, Delivery)
    assert delivery.attempt == 1


def test_the_newest_link_claims_its_agent_again_after_its_row_was_lost(server: ScriptServer) -> None:
    """The node of an overtaken link may be the first to claim again; the agent is on the later one all the same."""
    directory = Directory(server.store)
    agent = f"{next(server.names)}-agent"
    far = server.run(server.time()) + FAR_MS

    def again(lease: str, conn: int, own_gen: int) -> object:
        return server.call(
            lambda: directory.claim(agent, lease, "boot", conn, f"sid-{conn}", b"{}", far, own_gen=own_gen)
        )

    assert isinstance(again("overtaken", 1, 10), Claimed)
    assert isinstance(again("newest", 2, 20), Claimed)


def test_the_output_of_a_void_run_does_not_count_for_the_next_run(server: ScriptServer) -> None:
    """The first run has filled the limit and was truncated; what the second writes is kept whole."""
    records, command = running(server, retry="safe")
    first = (*data(0, "stdout", b"x" * OUTPUT_LIMIT), *data(1, "stdout", b"dropped"))
    assert server.call(lambda: records.append(command, AGENT, 1, first)).why == "ok"
    assert isinstance(server.call(lambda: records.fence(command, AGENT, 2, "the next memory")), Delivery)
    second = (*data(0, "stdout", b"y" * OUTPUT_LIMIT), *ending(1, TargetState.OK, StoredEnd()))
    assert server.call(lambda: records.append(command, AGENT, 2, second)).state == TargetState.OK
    page = server.call(lambda: records.read(command, 0, 1 << 20))
    assert isinstance(page, ResultPage)
    assert [(result.offset, result.kind, len(result.payload)) for result in page.results] == [
        (1, "retry", 0), (2, "stdout", OUTPUT_LIMIT),
    ]  # fmt: skip
    assert page.ended is not None
    assert not page.ended.truncated


def test_the_outcome_under_an_idempotency_key_outlives_the_record(server: ScriptServer) -> None:
    records, command = running(server, remembered=server.run(server.time()) + 24 * FAR_MS)
    assert server.call(lambda: records.outcome(command)) is None
    before = server.run(server.time())
    assert server.run(records.finish(command, AGENT, TargetState.TIMEOUT, StoredEnd())).why == "ok"
    outcome = server.call(lambda: records.outcome(command))
    assert outcome is not None
    assert (outcome.state, outcome.at >= before) == (TargetState.TIMEOUT, True)
    assert integer(server.submit("PTTL", schema.outcome_key(command))) > 24 * FAR_MS - 60_000
    server.submit("DEL", schema.cmd_key(command))
    now = server.run(server.time())
    again = NewRecord(
        command, AGENT, "do", b"", "bulk", now, now + FAR_MS, RETENTION_MS, now + FAR_MS, remembered=now + FAR_MS
    )  # fmt: skip
    assert server.call(lambda: records.accept(again, now + FAR_MS, now + FAR_MS)).why == "exists"
    assert server.call(lambda: records.look_up(command)) is None


def test_an_unended_record_lives_as_long_as_its_idempotency_key(server: ScriptServer) -> None:
    _, command = running(server, remembered=server.run(server.time()) + 24 * FAR_MS)
    assert integer(server.submit("PTTL", schema.cmd_key(command))) > 24 * FAR_MS - 60_000


def test_of_two_boots_the_one_claimed_last_claims_the_agent_again(server: ScriptServer) -> None:
    """Redis has lost its data, and the node that still holds the link of a dead process may be the first to claim."""
    directory = Directory(server.store)
    for dead_first in (True, False):
        agent = f"{next(server.names)}-agent"
        far = server.run(server.time()) + FAR_MS

        def claim(boot: str, own_gen: int | None, agent: str = agent, far: int = far) -> object:
            return server.call(
                lambda: directory.claim(agent, f"of {boot}#1", boot, 1, f"sid {boot}", b"{}", far, own_gen=own_gen)
            )

        dead, live = claim("dead", None), claim("live", None)
        assert isinstance(dead, Claimed)
        assert isinstance(live, Claimed)
        server.submit("DEL", schema.agent_key(agent))
        gens = {"dead": dead.gen, "live": live.gen}
        again = {boot: claim(boot, gens[boot]) for boot in (gens if dead_first else reversed(gens))}
        assert isinstance(again["live"], Claimed)
        assert isinstance(again["dead"], Claimed) is dead_first
        row = server.call(lambda agent=agent: directory.look_up(agent))  # type: ignore[misc]
        assert row is not None
        assert (row.boot, row.gen) == ("live", live.gen)
