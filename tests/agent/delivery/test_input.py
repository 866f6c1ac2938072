"""Input reaches the handler once and in order over any number of links, and its credit is granted as it is taken."""

from __future__ import annotations

from fairlead.wire.messages import Ack, Chunk, Credit, End, Hello

from support.agent.delivery_methods import Script
from support.agent.scripted_gateway import Gateway
from support.agent.scripted_link import Link


async def test_input_reaches_the_handler_once_and_in_order(script: Script, link: Link) -> None:
    await link.command("c1", "echo")
    await link.feed("c1", b"one ", b"two ", b"", b"three")
    await link.feed_end("c1")
    assert (await link.end("c1")).state == "ok"
    assert link.output("c1") == b"one two three"


async def test_input_continues_after_what_the_handler_has_taken(gateway: Gateway, script: Script, link: Link) -> None:
    """Taken on the first link: one chunk. What was received and not taken is asked for again, and comes once."""
    await link.command("c1", "slow-reader")
    await link.feed("c1", b"one ", b"two ", b"three ")
    script.step()
    await link.until(lambda: link.output("c1") == b"one ")
    await link.cut()
    again = await gateway.accept()
    hello = await again.expect(Hello)
    # The handler holds the second chunk already, or it does not: what it took is never asked for again.
    wanted = hello.have["c1"]
    assert wanted in (1, 2)
    await again.welcome(have={"c1": 1})
    await again.feed("c1", *[b"one ", b"two ", b"three "][wanted:], b"four")
    await again.feed_end("c1")
    script.step(10)
    assert (await again.end("c1")).state == "ok"
    assert link.output("c1") + again.output("c1") == b"one two three four"


async def test_the_end_of_input_may_be_repeated_on_each_link(gateway: Gateway, script: Script, link: Link) -> None:
    await link.command("c1", "slow-reader")
    await link.feed("c1", b"one")
    await link.feed_end("c1")
    await link.command("c2", "once")
    await link.end("c2")
    await link.cut()
    again = await gateway.accept()
    wanted = (await again.welcome(have={"c1": 0})).have["c1"]
    await again.feed("c1", *[b"one"][wanted:])
    await again.feed_end("c1")
    script.step(5)
    assert (await again.end("c1")).state == "ok"
    assert again.output("c1") == b"one"


async def test_input_credit_is_granted_as_the_handler_takes_input(script: Script, link: Link) -> None:
    """Never before: what is granted is forgotten by the gateway, and what is not taken must come again."""
    stream = await link.command("c1", "slow-reader")
    for _ in range(8):
        await link.feed("c1", b"x" * 32_000)
    await link.command("c2", "once")
    await link.end("c2")
    assert not link.of(Credit, "c1")
    script.step(8)
    await link.until(lambda: stream.input_credit >= 128 << 10)
    assert sum(c.bytes for c in link.of(Credit, "c1")) <= 8 * 32_000
    await link.feed_end("c1")
    assert (await link.end("c1")).state == "ok"


async def test_input_of_a_command_that_the_agent_does_not_know_is_ignored(script: Script, link: Link) -> None:
    await link.send(Chunk(id="strange", n=7, kind="stdin", payload=b"x"), End(id="strange", total=9))
    await link.command("c1", "once")
    assert (await link.end("c1")).state == "ok"


async def test_a_gap_in_the_input_closes_the_link(gateway: Gateway, script: Script, link: Link) -> None:
    await link.command("c1", "slow-reader")
    await link.expect(Ack, "c1")
    await link.send(Chunk(id="c1", n=1, kind="stdin", payload=b"x"))
    assert await link.closed() == 4500
    again = await gateway.linked(have={"c1": 0})
    await again.feed_end("c1")
    assert (await again.end("c1")).state == "ok"
