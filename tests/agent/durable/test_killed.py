"""A killed process: its finished work is delivered once by the next process; its running commands end as unknown."""

from __future__ import annotations

from fairlead.agent.journal.replay import replay
from fairlead.wire.messages import Ack, Chunk, End, Event

from support.agent.durable_host import DurableHost, hello


async def test_a_command_that_was_running_ends_with_outcome_unknown_after_its_chunks(host: DurableHost) -> None:
    link = await host.linked()
    link.stores = False
    await link.command("c1", "count", {"chunks": 5, "hang": True})
    await link.until(lambda: len(link.of(Chunk, "c1")) == 5)
    await host.killed()
    again = await host.linked(have={"c1": 2})
    end = await again.end("c1")
    assert [(c.n, c.payload) for c in again.of(Chunk, "c1")] == [(n, b"%d\n" % n) for n in (2, 3, 4)]
    assert (end.state, end.total) == ("error", 5)
    assert end.error is not None
    assert end.error.code == "outcome_unknown"
    assert hello(again).caps.journal == hello(link).caps.journal != ""
    assert hello(again).boot != hello(link).boot
    assert hello(again).have == {}
    await again.command("c1", "count", {"chunks": 5}, attempt=2)
    await again.until(lambda: bool(again.of(Ack, "c1")))
    assert again.of(Ack, "c1")[0].state == "duplicate"
    assert host.runs == ["c1 1"]


async def test_the_result_of_an_ended_command_arrives_and_it_is_not_run_again(host: DurableHost) -> None:
    link = await host.linked()
    link.stores = False
    await link.command("c1", "count", {"chunks": 3})
    await link.command("c2", "count", {"chunks": 0})
    first, second = await link.end("c1"), await link.end("c2")
    await host.killed()
    again = await host.linked(have={"c1": 0, "c2": 0})
    assert await again.end("c1") == first
    assert await again.end("c2") == second
    assert again.of(Chunk) == link.of(Chunk)
    await again.command("c1", "count", {"chunks": 3}, attempt=2)
    assert (await again.expect(Ack, "c1")).state == "duplicate"
    await host.killed()
    # Its end is stored, and that is remembered as well.
    third = await host.linked()
    await third.command("c1", "count", {"chunks": 3}, attempt=3)
    assert (await third.expect(Ack, "c1")).state == "duplicate"
    await third.command("c3", "count", {"chunks": 0})
    await third.end("c3")
    assert [end.id for end in third.of(End)] == ["c3"]
    assert host.runs == ["c1 1", "c2 1", "c3 1"]


async def test_a_command_that_welcome_does_not_name_is_dropped(host: DurableHost) -> None:
    link = await host.linked()
    link.stores = False
    await link.command("c1", "count", {"chunks": 2})
    await link.command("c2", "count", {"chunks": 2, "hang": True})
    await link.end("c1")
    await link.until(lambda: len(link.of(Chunk, "c2")) == 2)
    await host.killed()
    for _ in range(2):
        again = await host.linked()
        await again.command("c1", "count", {"chunks": 2}, attempt=2)
        await again.command("c2", "count", {"chunks": 2}, attempt=2)
        await again.until(lambda: len(again.of(Ack)) == 2)  # noqa: B023
        assert [ack.state for ack in again.of(Ack)] == ["duplicate", "duplicate"]
        assert not again.of(Chunk)
        assert not again.of(End)
        await host.killed()
    assert replay((host.memory / "journal").read_bytes()).state.commands == {}


async def test_lost_results_are_reported_as_a_gap_after_a_restart(host: DurableHost) -> None:
    link = await host.linked()
    await link.command("c1", "count", {"chunks": 3, "hang": True})
    await link.until(lambda: len(link.of(Chunk, "c1")) == 3)
    await host.killed()
    again = await host.linked(have={"c1": 7})
    end = await again.end("c1")
    assert end.error is not None
    assert (end.error.code, end.total) == ("results_gap", 7)


async def test_events_are_sent_again_after_a_restart_until_they_are_stored(host: DurableHost) -> None:
    link = await host.linked()
    await link.command("c1", "emit", {"count": 2})
    await link.end("c1")
    await link.until(lambda: len(link.of(Event)) == 2)
    link.stores = False
    await link.command("c2", "emit", {"count": 3})
    await link.end("c2")
    await link.until(lambda: len(link.of(Event)) == 5)
    await host.killed()
    again = await host.linked(have={"c2": 0})
    await again.until(lambda: len(again.of(Event)) == 3)
    assert again.of(Event) == link.of(Event)[2:]
    await again.command("c3", "count", {"chunks": 0})
    await again.end("c3")
    await host.killed()
    third = await host.linked()
    await third.command("c4", "count", {"chunks": 0})
    await third.end("c4")
    assert not third.of(Event)


async def test_a_command_is_in_the_file_before_its_ack(host: DurableHost) -> None:
    link = await host.linked()
    for n in range(5):
        await link.command(f"c{n}", "count", {"chunks": 0, "hang": True}, traceparent="00-aa-bb-01", lane="bulk")
        await link.expect(Ack, f"c{n}")
        found = replay((host.memory / "journal").read_bytes()).state.commands[f"c{n}"]
        assert (found.cmd.method, found.cmd.lane, found.cmd.traceparent) == ("count", "bulk", "00-aa-bb-01")
        assert found.cmd.payload == b"", "what is never run again needs no arguments"
