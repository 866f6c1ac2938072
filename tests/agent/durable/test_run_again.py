"""`retry: safe`: a command is run again once after a kill if it had no output and is still wanted."""

from __future__ import annotations

from fairlead.agent.journal.replay import replay
from fairlead.wire.messages import Ack, Chunk, End

from support.agent.durable_host import DurableHost, hello
from support.waiting import until


async def test_a_safe_command_without_output_is_run_again_once(host: DurableHost) -> None:
    link = await host.linked()
    await link.command("c1", "once-hung", retry="safe")
    await link.expect(Ack, "c1")
    await until(lambda: host.runs == ["c1 1"])
    await host.killed()
    again = await host.linked(have={"c1": 0})
    end = await again.end("c1")
    assert (end.state, end.payload) == ("ok", b'"done"')
    assert hello(again).have == {"c1": 0}
    assert not again.of(Ack)
    assert host.runs == ["c1 1", "c1 2"]


async def test_a_safe_command_is_not_run_a_third_time(host: DurableHost) -> None:
    link = await host.linked()
    await link.command("c1", "count", {"chunks": 0, "hang": True}, retry="safe")
    await link.expect(Ack, "c1")
    await host.killed()
    again = await host.linked(have={"c1": 0})
    await again.command("c2", "count", {"chunks": 0})
    await again.end("c2")
    await host.killed()
    third = await host.linked(have={"c1": 0})
    end = await third.end("c1")
    assert end.error is not None
    assert end.error.code == "outcome_unknown"
    assert host.runs.count("c1 2") == 1


async def test_a_safe_command_with_output_or_input_is_not_run_again(host: DurableHost) -> None:
    link = await host.linked()
    await link.command("c1", "count", {"chunks": 1, "hang": True}, retry="safe")
    await link.command("c2", "read-then-hang", retry="safe")
    await link.feed("c2", b"x")
    await link.until(lambda: bool(link.of(Chunk, "c1")))
    memory = host.memory / "journal"

    def took() -> bool:
        return replay(memory.read_bytes()).state.commands["c2"].spent

    await until(took)
    await host.killed()
    again = await host.linked(have={"c1": 1, "c2": 0})
    for command in ("c1", "c2"):
        end = await again.end(command)
        assert end.error is not None
        assert end.error.code == "outcome_unknown"
    assert host.runs == ["c1 1", "c2 1"]


async def test_a_cancelled_or_expired_safe_command_is_not_run_again(host: DurableHost) -> None:
    link = await host.linked()
    await link.command("c1", "count", {"chunks": 0, "hang": True}, retry="safe")
    await link.command("c2", "count", {"chunks": 0, "hang": True}, retry="safe", deadline=100)
    await link.expect(Ack, "c1")
    await link.end("c2")
    await host.killed()
    again = await host.linked()
    await again.command("c3", "count", {"chunks": 0})
    await again.end("c3")
    assert [end.id for end in again.of(End)] == ["c3"]
    assert "c1 2" not in host.runs
