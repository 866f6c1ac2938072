"""Scripts on a command that a failover has lost, and that is opened again by the node that knows how it ended."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest

from fairlead.fleet import schema
from fairlead.fleet.command_record import StoredEnd
from fairlead.fleet.failover.recent_steps import AcceptedStep, EndedStep, StoredStep
from fairlead.fleet.failover.repairs import Repairs
from fairlead.fleet.schema import TargetState
from fairlead.shards import of_agent
from fairlead.store.reply import text

from support.fleet.script_server import FAR_MS, ScriptServer

AGENT = "host-1"
COMMAND = of_agent("01890000-0000-7000-8000-000000000001", AGENT)
ENDED = StoredStep(
    COMMAND, AGENT, "the second process",
    ("c", 0, "out", b"all of it", "e", 1, "ok", msgspec.msgpack.encode(StoredEnd()), ""),
)  # fmt: skip
OFFLINE = EndedStep(COMMAND, AGENT, TargetState.OFFLINE, StoredEnd(code="agent_offline"))


@pytest.fixture(scope="module", params=["server", "cluster"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScriptServer]:
    made = ScriptServer(tmp_path_factory.mktemp("valkey"), cluster=request.param == "cluster")
    yield made
    made.close()


@pytest.fixture
def repairs(server: ScriptServer) -> Repairs:
    server.submit("FLUSHALL")
    return Repairs(server.store, 1 << 20)


def lose(server: ScriptServer, repairs: Repairs, retry: str) -> None:
    """The acceptor has written the command as lost."""
    expires = server.run(server.time()) + FAR_MS
    terms = (expires, 600_000, retry, "all", expires)
    step = AcceptedStep(COMMAND, AGENT, expires - FAR_MS, 600_000, terms, b"")
    assert server.call(lambda: repairs.end_lost(step)) == (True, False)


def state(server: ScriptServer) -> str:
    return text(server.submit("HGET", schema.cmd_key(COMMAND), f"t:{AGENT}")).partition("|")[0]


@pytest.mark.parametrize("retry", ["never", "safe"])
@pytest.mark.parametrize("attempt", [1, 4])
def test_who_had_sent_it_to_another_process_of_its_agent_does_not_keep_it_from_ending_as_it_was_told(
    server: ScriptServer, repairs: Repairs, retry: str, attempt: int
) -> None:
    lose(server, repairs, retry)
    assert server.call(lambda: repairs.reopen(ENDED)) == "ok"
    said = server.call(lambda: repairs.recall(COMMAND, AGENT, 5, "the first process", attempt))
    assert said.why == "later"
    said = server.call(lambda: repairs.recall(COMMAND, AGENT, 7, ENDED.memory, attempt))
    assert (said.why, said.gen) == ("ok", 0)
    assert server.call(lambda: repairs.append(COMMAND, AGENT, 0, ENDED.steps)).why == "ok"
    assert state(server) == "ok"


@pytest.mark.parametrize("step", [ENDED, OFFLINE], ids=["its agent's end", "a node's end"])
def test_it_is_never_sent_again_although_its_end_is_not_stored(
    server: ScriptServer, repairs: Repairs, step: StoredStep | EndedStep
) -> None:
    """The node that knows the end dies in between, and the record has no payload any more."""
    lose(server, repairs, "safe")
    assert server.call(lambda: repairs.reopen(step)) == "ok"
    row, terms = (server.submit("HGET", schema.cmd_key(COMMAND), field) for field in (f"t:{AGENT}", "terms"))
    memory = step.memory if isinstance(step, StoredStep) else ""
    assert text(row) == f"sent|0|0|1|{memory}", "an offer would be rung for again"
    assert "|never|" in text(terms)
    assert server.call(lambda: repairs.reopen(step)) == "open"


def test_what_a_node_has_ended_ends_again(server: ScriptServer, repairs: Repairs) -> None:
    lose(server, repairs, "never")
    assert server.call(lambda: repairs.reopen(OFFLINE)) == "ok"
    assert server.call(lambda: repairs.recall(COMMAND, AGENT, 5, "a process", 1)).why == "later"
    assert server.call(lambda: repairs.end(OFFLINE))[0] == "ok"
    assert state(server) == "offline"
