"""Streams over lost links: each continues after the results that the gateway has stored, and gaps are reported."""

from __future__ import annotations

from fairlead.wire.messages import Ack, Chunk, End, Hello

from support.agent.delivery_methods import SIZE, Script
from support.agent.scripted_gateway import Gateway
from support.agent.scripted_link import Link
from support.waiting import until


async def test_a_stream_continues_after_what_was_stored(gateway: Gateway, script: Script, link: Link) -> None:
    link.stores = False
    await link.command("c1", "steps", {"count": 6})
    script.step(4)
    await link.until(lambda: len(link.of(Chunk, "c1")) == 4)
    await link.store(2)  # the ack and chunk 0; chunk 1 is stored, but its receipt is lost
    await link.cut()
    script.step(1)
    again = await gateway.accept()
    hello = await again.welcome(have={"c1": 2}, resumed=True)
    first = link.of(Hello)[0]
    assert hello.boot == first.boot
    assert hello.conn > first.conn
    assert hello.have == {"c1": 0}
    script.step(1)
    end = await again.end("c1")
    assert [c.n for c in again.of(Chunk, "c1")] == [2, 3, 4, 5]
    assert [c.payload for c in again.of(Chunk, "c1")] == [b"2\n", b"3\n", b"4\n", b"5\n"]
    assert (end.state, end.total) == ("ok", 6)
    assert script.runs == ["c1"]
    assert not again.of(Ack)


async def test_repeated_chunks_have_the_same_number_and_content(gateway: Gateway, script: Script, link: Link) -> None:
    """The new link's window is smaller: what was cut into chunks once is never cut anew."""
    link.stores = False
    stream = await link.command("c1", "flood", {"chunks": 40})
    await link.until(lambda: stream.credit_left < SIZE)
    before = {c.n: c.payload for c in link.of(Chunk, "c1")}
    await link.cut()
    again = await gateway.linked(have={"c1": 0})
    end = await again.end("c1")
    after = {c.n: c.payload for c in again.of(Chunk, "c1")}
    assert before.items() <= after.items()
    assert again.output("c1") == b"".join(f"{n:08d}".encode() * (SIZE // 8) for n in range(40))
    assert end.total == len(after)


async def test_an_end_without_a_receipt_is_sent_again(gateway: Gateway, script: Script, link: Link) -> None:
    link.stores = False
    await link.command("c1", "once")
    end = await link.end("c1")
    await link.cut()
    again = await gateway.accept()
    hello = await again.welcome(have={"c1": 0})
    assert hello.have == {}, "a command that has ended takes no more input"
    assert await again.end("c1") == end
    await again.cut()
    # Its receipt has come: the third link hears nothing of it.
    third = await gateway.linked()
    await third.command("c2", "once")
    await third.end("c2")
    assert not third.of(End, "c1")
    assert script.runs == ["c1", "c2"]


async def test_a_command_sent_again_after_a_lost_ack_runs_once(gateway: Gateway, script: Script, link: Link) -> None:
    link.stores = False
    await link.command("c1", "steps", {"count": 2})
    await link.expect(Ack, "c1")
    await link.cut()
    again = await gateway.linked(have={"c1": 0})
    await again.command("c1", "steps", {"count": 2}, attempt=2)
    assert (await again.expect(Ack, "c1")).state == "duplicate"
    script.step(2)
    assert (await again.end("c1")).total == 2
    assert script.runs == ["c1"]


async def test_a_stream_that_the_gateway_has_ended_is_stopped(gateway: Gateway, script: Script, link: Link) -> None:
    await link.command("c1", "steps", {"count": 2})
    await link.command("c2", "steps", {"count": 1})
    await link.until(lambda: script.runs == ["c1", "c2"])
    await link.cut()
    again = await gateway.linked(have={"c2": 0})
    await until(lambda: script.cleaned == ["c1"])
    script.step(3)
    assert (await again.end("c2")).state == "ok"
    assert not again.of(End, "c1")
    assert not again.of(Chunk, "c1")


async def test_results_lost_behind_the_gateway_are_reported(gateway: Gateway, script: Script, link: Link) -> None:
    """The store has less than it gave receipts for: the command ends there, since nobody has what lies between."""
    await link.command("c1", "steps", {"count": 6})
    script.step(3)
    await link.until(lambda: len(link.of(Chunk, "c1")) == 3 and link.unstored == 0)
    # The receipts are known to have been read when something that came behind them is answered.
    await link.command("c2", "once")
    await link.end("c2")
    await link.cut()
    again = await gateway.linked(have={"c1": 1})
    end = await again.end("c1")
    assert (end.state, end.total) == ("error", 1)
    assert end.error is not None
    assert end.error.code == "results_gap"
    assert not again.of(Chunk, "c1")


async def test_output_continues_without_a_link_up_to_the_window(gateway: Gateway, script: Script, link: Link) -> None:
    link.stores = False
    stream = await link.command("c1", "flood", {"chunks": 100})
    await link.until(lambda: stream.credit_left < SIZE)
    await link.cut()
    again = await gateway.linked(have={"c1": 0})
    end = await again.end("c1")
    assert len(again.of(Chunk, "c1")) == end.total
    assert again.output("c1") == b"".join(f"{n:08d}".encode() * (SIZE // 8) for n in range(100))


async def test_output_is_complete_after_many_lost_links(gateway: Gateway, script: Script, link: Link) -> None:
    """Links of random length; whatever was stored stands, and all of it is stored once."""
    stored: dict[int, bytes] = {}
    here = link
    await here.command("c1", "flood", {"chunks": 150})
    for n in range(8):
        await here.until(lambda h=here, n=n: len(h.of(Chunk, "c1")) >= 5 + 3 * n or bool(h.of(End)))  # type: ignore[misc]
        await here.cut()
        for chunk in here.of(Chunk, "c1"):
            assert chunk.n not in stored
            stored[chunk.n] = chunk.payload
        if here.of(End):
            break
        here = await gateway.linked(have={"c1": len(stored)})
    await here.end("c1")
    for chunk in here.of(Chunk, "c1"):
        stored[chunk.n] = chunk.payload
    assert sorted(stored) == list(range(len(stored)))
    assert b"".join(stored[n] for n in sorted(stored)) == b"".join(
        f"{n:08d}".encode() * (SIZE // 8) for n in range(150)
    )
    assert script.runs == ["c1"]


async def test_a_receipt_for_a_chunk_that_was_never_sent_closes_the_link(
    gateway: Gateway, script: Script, link: Link
) -> None:
    from fairlead.wire.messages import Rx

    await link.command("c1", "steps", {"count": 1})
    await link.expect(Ack, "c1")
    await link.send(Rx(s=99))
    assert await link.closed() == 4500
    # It was the agent's finding, so it comes back: the next node may know better.
    again = await gateway.linked(have={"c1": 0})
    script.step()
    await again.end("c1")
