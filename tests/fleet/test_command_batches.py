"""Many commands in one call: each of them is what it would be by itself, and leaves the others alone.

`test_model.py` plays the same calls in histories, as one of many.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fairlead.errors import BusUnavailable
from fairlead.fleet import schema
from fairlead.fleet.batches.command_batches import AT_ONCE, PAYLOAD_BYTES, CommandBatches, SentSteps
from fairlead.fleet.command_record import Acceptance, NewRecord, StoredEnd
from fairlead.fleet.commands import Commands, data, ending
from fairlead.fleet.schema import TargetState
from fairlead.shards import agent_shard, of_agent
from fairlead.store.reply import integer, text
from fairlead.wire.ids import uuid7

from support.fleet.script_server import FAR_MS, OUTPUT_LIMIT, RETENTION_MS, ScriptServer

SHARD = 7
AGENTS = [name for name in (f"host-{n}" for n in range(10_000)) if agent_shard(name) == SHARD][: AT_ONCE + 8]
ALL_OF_IT = (*data(0, "stdout", b"all of it"), *ending(1, TargetState.OK, StoredEnd(b"null")))


@pytest.fixture(scope="module", params=["server", "cluster"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScriptServer]:
    made = ScriptServer(tmp_path_factory.mktemp("valkey"), cluster=request.param == "cluster")
    yield made
    made.close()


class Fleet:
    """Linked agents of one shard, and a command for each."""

    def __init__(self, server: ScriptServer, agents: list[str], payload: bytes = b"payload") -> None:
        server.submit("FLUSHALL")
        self.server = server
        self.records = Commands(server.store, OUTPUT_LIMIT)
        self.batches = CommandBatches(server.store, OUTPUT_LIMIT, self.records.recent)
        self.now = now = server.run(server.time())
        self.commands = [
            NewRecord(
                of_agent(uuid7(now, (n << 20).to_bytes(10)), agent), agent, "do", payload, "bulk", now,
                now + FAR_MS, RETENTION_MS, now + FAR_MS,
            )
            for n, agent in enumerate(agents)
        ]  # fmt: skip
        for agent in agents:
            server.submit("HSET", schema.agent_key(agent), "lease", "n#a", "gen", 3, "up", 5, "seen", 6, "journal", "j")

    def accept(self, valid: int = FAR_MS) -> list[Acceptance]:
        async def accepted() -> list[Acceptance]:
            parts = list(self.batches.accept(self.commands, self.now, self.now + valid, "!n#b", offer=True))
            return [one for _, answer in parts for one in await answer]

        return self.server.run(accepted())

    def append(self, gens: list[int]) -> list[str]:
        sent = [SentSteps(one.id, one.agent, gen, ALL_OF_IT) for one, gen in zip(self.commands, gens, strict=True)]
        return [one.why for one in self.batches.parse(self.server.call(lambda: self.batches.append(SHARD, sent)))]

    def state(self, n: int) -> str:
        one = self.commands[n]
        return text(self.server.submit("HGET", schema.cmd_key(one.id), f"t:{one.agent}")).partition("|")[0]

    def due(self) -> int:
        return integer(self.server.submit("ZCARD", schema.deadlines_key(SHARD)))

    def plant(self, key: str) -> None:
        self.server.submit("DEL", key)
        self.server.submit("RPUSH", key, "a note")


def test_each_is_accepted_offered_and_due_and_its_end_removes_it(server: ScriptServer) -> None:
    fleet = Fleet(server, AGENTS)
    accepted = fleet.accept()
    assert {(one.why, one.offered) for one in accepted} == {("ok", True)}
    rows = [one.row for one in accepted if one.row is not None]
    assert [(row.agent, row.lease, row.gen, row.up, row.seen) for row in rows] == [(a, "n#a", 3, 5, 6) for a in AGENTS]
    assert fleet.due() == len(AGENTS)
    assert {fleet.state(n) for n in range(len(AGENTS))} == {"sent"}
    assert {one.why for one in fleet.accept()} == {"exists"}
    assert fleet.append([3] * len(AGENTS)) == ["ok"] * len(AGENTS)
    assert {fleet.state(n) for n in range(len(AGENTS))} == {"ok"}
    assert fleet.due() == 0
    assert [integer(server.submit("EXISTS", schema.open_key(agent))) for agent in AGENTS] == [0] * len(AGENTS)
    assert fleet.append([3] * len(AGENTS)) == ["over"] * len(AGENTS)


def test_what_is_refused_or_fenced_leaves_the_others_alone(
    server: ScriptServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = Fleet(server, AGENTS[:4])
    monkeypatch.setattr(schema, "OPEN_LIMIT", 2)
    server.submit("DEL", schema.agent_key(AGENTS[1]))
    server.submit("HSET", schema.open_key(AGENTS[2]), "one", 1, "two", 2)
    server.submit("HSET", schema.agent_key(AGENTS[3]), "lease", "")
    accepted = fleet.accept()
    assert [(one.why, one.offered, one.opened) for one in accepted] == [
        ("ok", True, 0), ("unknown", False, 0), ("full", False, 2), ("ok", False, 0),
    ]  # fmt: skip
    assert fleet.due() == 2
    assert [fleet.state(n) for n in (0, 3)] == ["sent", "queued"]
    assert fleet.append([2, 3, 3, 3]) == ["fenced", "gone", "gone", "ok"]
    assert fleet.due() == 1


def test_a_key_of_another_type_fails_its_own_command_only(server: ScriptServer) -> None:
    fleet = Fleet(server, AGENTS[:4])
    fleet.plant(schema.agent_key(AGENTS[1]))
    fleet.plant(schema.open_key(AGENTS[2]))
    assert [one.why for one in fleet.accept()] == ["ok", "failed", "failed", "ok"]
    assert fleet.due() == 2  # every command that was accepted
    fleet.plant(schema.cmd_key(fleet.commands[0].id))
    assert fleet.append([3] * 4) == ["failed", "gone", "gone", "ok"]
    assert fleet.due() == 1


def test_what_comes_too_late_is_not_accepted(server: ScriptServer) -> None:
    fleet = Fleet(server, AGENTS[:2])
    with pytest.raises(BusUnavailable, match="too late"):
        fleet.accept(valid=-1_000)
    assert fleet.due() == 0


@pytest.mark.parametrize(("size", "most"), [(0, AT_ONCE), (PAYLOAD_BYTES // 4, 4), (2 * PAYLOAD_BYTES, 1)])
def test_large_payloads_are_written_a_few_at_a_time(server: ScriptServer, size: int, most: int) -> None:
    """Each record has a copy: 32 of the largest would stop Redis for tens of milliseconds, and be 16 MiB at once."""
    fleet = Fleet(server, AGENTS[:9], bytes(size))
    assert {one.why for one in fleet.accept()} == {"ok"}

    async def parts() -> list[int]:
        each = list(fleet.batches.accept(fleet.commands, fleet.now, fleet.now + FAR_MS, "!n#b", offer=True))
        for _, answer in each:
            await answer
        return [len(records) for records, _ in each]

    found = server.run(parts())
    assert (sum(found), max(found)) == (9, min(most, 9))
