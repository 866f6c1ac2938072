"""The whole answer of an agent leaves what its steps would, one by one; any other record it leaves alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from fairlead.fleet import lua, schema
from fairlead.fleet.batches.command_batches import CommandBatches, SentSteps
from fairlead.fleet.batches.whole_answer import FEW, SMALL, whole_answer
from fairlead.fleet.command_record import NewRecord, ResultPage, StoredEnd, command_keys
from fairlead.fleet.commands import Commands, accepted, data, ending
from fairlead.fleet.schema import TargetState
from fairlead.shards import command_shard, of_agent
from fairlead.store.reply import Arg, integer, octets, table
from fairlead.wire.ids import uuid7

from support.fleet.script_server import FAR_MS, RETENTION_MS, ScriptServer

AGENT, OTHER_PROCESS, GEN = "host-1", "j|with bars|", 3
LIMIT = 1 << 20
NOTHING, TEXT, JSON = StoredEnd(), StoredEnd(b"done"), StoredEnd(b'{"exit_code":0}')


@pytest.fixture(scope="module", params=["server", "cluster"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScriptServer]:
    made = ScriptServer(tmp_path_factory.mktemp("valkey"), cluster=request.param == "cluster")
    yield made
    made.close()


def answer(*payloads: bytes, ack: bool = True, how: StoredEnd = JSON) -> list[Arg]:
    steps: list[Arg] = [*accepted()] if ack else []
    for n, payload in enumerate(payloads):
        steps += data(n, "stdout" if n % 2 == 0 else "stderr é", payload)
    return [*steps, *ending(len(payloads), TargetState.OK, how)]


class Posted:
    """A command that was offered to the link of generation GEN."""

    def __init__(self, server: ScriptServer, n: int, **about: Any) -> None:
        self.server = server
        self.records = Commands(server.store, LIMIT)
        now = server.run(server.time())
        self.id = of_agent(uuid7(now, (n << 20).to_bytes(10)), AGENT)
        self.shard = command_shard(self.id)
        server.submit("HSET", schema.agent_key(AGENT), "lease", "n#a", "gen", GEN, "journal", OTHER_PROCESS)
        if "remembered" in about:
            about["remembered"] += now
        record = NewRecord(
            self.id, AGENT, "do", b"payload", "interactive", now, now + FAR_MS, RETENTION_MS, now + FAR_MS, **about
        )
        got = server.call(lambda: self.records.accept(record, now, now + FAR_MS, "caller#a", offer=True))
        assert (got.why, got.offered) == ("ok", True)

    def append(self, steps: list[Arg], gen: int = GEN) -> Any:
        return self.server.call(lambda: self.records.append(self.id, AGENT, gen, steps))

    def append_as_one_of_many(self, steps: list[Arg], gen: int = GEN) -> Any:
        batches = CommandBatches(self.server.store, LIMIT, self.records.recent)
        sent = [SentSteps(self.id, AGENT, gen, steps)]
        [stored] = batches.parse(self.server.call(lambda: batches.append(self.shard, sent)))
        return stored

    def append_answer(self, steps: list[Arg], gen: int = GEN) -> Any:
        async def stored() -> Any:
            answer = self.records.append_answer(self.id, AGENT, gen, steps)
            assert answer is not None
            return await answer

        return self.server.run(stored())

    def read(self) -> ResultPage:
        page = self.server.call(lambda: self.records.read(self.id, 0, 1 << 20))
        assert isinstance(page, ResultPage)
        return page

    def left(self) -> dict[str, Any]:
        """All that the store has of the command, but for its times."""
        record, out, given, outcome, opened, due, *_ = command_keys(self.id, AGENT)
        fields = table(self.server.submit("HGETALL", record))
        for name in (b"about", b"terms"):
            fields.pop(name, None)
        times = [integer(self.server.submit("PTTL", key)) for key in (record, outcome)]
        ended = self.server.submit("GET", outcome)
        return {
            "fields": fields, "kept for": [round(ms / 60_000) for ms in times],
            "keys": [integer(self.server.submit("EXISTS", key)) for key in (out, given, outcome)],
            "open": integer(self.server.submit("HEXISTS", opened, self.id)),
            "due": self.server.submit("ZSCORE", due, f"{self.id} {AGENT}") is not None,
            "outcome": octets(ended).split()[0] if ended else None,
        }  # fmt: skip


ANSWERS = {
    "nothing": answer(how=NOTHING),
    "an end alone": answer(ack=False, how=TEXT),
    "one result": answer(b"out"),
    "empty results": answer(b"", b""),
    "octets": answer(bytes(range(256)), b"\xff"),
    "as many as fit": answer(*[b"x"] * FEW),
    "as much as fits": answer(b"x" * (SMALL - 100), how=TEXT),
}
RECORDS: dict[str, dict[str, Any]] = {
    "plain": {}, "may be repeated": {"retry": "safe"}, "with a limit": {"results_limit": SMALL},
    "under a key for a day": {"remembered": schema.REMEMBERED_MS}, "under a key that expires": {"remembered": 1000},
}  # fmt: skip


@pytest.mark.parametrize("record", RECORDS)
def test_it_leaves_what_its_steps_leave_one_by_one(server: ScriptServer, record: str) -> None:
    for n, (name, steps) in enumerate(ANSWERS.items()):
        one, other, many = (Posted(server, 3 * n + at, **RECORDS[record]) for at in range(3))
        assert one.append_answer(steps) == other.append(steps) == many.append_as_one_of_many(steps), name
        assert one.left() == other.left() == many.left(), name
        pages = [
            (page.seq, [(r.offset, r.agent, r.n, r.kind, r.payload) for r in page.results], page.ended is not None)
            for page in (one.read(), other.read(), many.read())
        ]
        assert pages[0] == pages[1] == pages[2], name
        again = one.append_answer(steps), one.append(steps)
        assert (again[0], again[1].why) == (None, "over"), name


def test_an_ack_that_was_stored_before_changes_nothing_of_that(server: ScriptServer) -> None:
    acked = Posted(server, 0)
    acked.append([*accepted()])
    assert acked.append_answer(answer(b"out", ack=False)).added == 1
    row = server.submit("HGET", schema.cmd_key(acked.id), f"t:{AGENT}")
    assert octets(row).decode() == f"ok|{GEN}|1|1|{OTHER_PROCESS}"


def others(server: ScriptServer, first: int) -> list[tuple[Posted, int]]:
    """Records that are not those of open commands without results, each with the generation of a link. Some of these
    links do not own the command."""
    terms: list[dict[str, Any]] = [{}, {"retain": "window"}, {}, {"results_limit": 5}, {}, {"retry": "safe"}, {}, {}]
    begun, window, given, limited, gone, second, older, newer = (
        Posted(server, first + n, **about) for n, about in enumerate(terms)
    )  # fmt: skip
    begun.append([*data(0, "stdout", b"before")])
    server.call(lambda: given.records.add_input(given.id, AGENT, 0, b"input", False))
    server.submit("DEL", schema.cmd_key(gone.id))
    for gen in (GEN, GEN + 1):
        server.call(lambda gen=gen: second.records.fence(second.id, AGENT, gen, f"process {gen}"))  # type: ignore[misc]
    same = [(one, GEN) for one in (begun, window, given, limited, gone)]
    return [*same, (second, GEN + 1), (older, GEN - 1), (newer, GEN + 1)]


def test_any_other_record_is_left_as_it_is(server: ScriptServer) -> None:
    for one, gen in others(server, 0):
        before = server.submit("DUMP", schema.cmd_key(one.id))
        assert one.append_answer(answer(b"out"), gen) is None
        assert server.submit("DUMP", schema.cmd_key(one.id)) == before


def test_as_one_of_many_any_other_record_gets_the_steps_one_by_one(server: ScriptServer) -> None:
    for (one, gen), (other, _) in zip(others(server, 0), others(server, 20), strict=True):
        for steps in (answer(b"out"), answer(), answer(b"out", b"more")):  # what comes after the end is refused
            assert one.append_as_one_of_many(steps, gen) == other.append(steps, gen)
            assert one.left() == other.left()


@pytest.mark.parametrize(
    "steps",
    [
        [], accepted(), data(0, "e", b"e"), (*data(0, "k", b""), *data(1, "e", b"")),
        (*accepted(), *accepted(), *ending(0, TargetState.OK, JSON)), answer(*[b""] * (FEW + 1)),
        answer(b"x" * SMALL), (*data(1, "k", b""), *ending(2, TargetState.OK, JSON)),
        (*data(0, "k", b""), *ending(2, TargetState.OK, JSON)), ending(0, TargetState.FAILED, JSON),
        ending(0, TargetState.CANCELLED, JSON), (*ending(0, TargetState.OK, JSON), *accepted()),
    ],
)  # fmt: skip
def test_other_steps_are_no_whole_answer(steps: list[Arg]) -> None:
    assert whole_answer(AGENT, steps, LIMIT) is None


def test_more_than_the_output_limit_is_none() -> None:
    assert whole_answer(AGENT, answer(b"12345"), 4) is None
    assert whole_answer(AGENT, answer(b"12345"), 5) is not None


def test_the_limits_are_those_of_the_scripts() -> None:
    source = lua.APPEND_RESULTS.source
    assert f"local FEW_BYTES, FEW = 4096, {FEW}\n" in source
    assert f"local KEPT_FROM = {SMALL} " in source
