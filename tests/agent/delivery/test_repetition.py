"""At least once on the wire, once in effect: commands that are repeated, and what is remembered of them."""

from __future__ import annotations

from fairlead.wire.messages import Ack, End

from support.agent.delivery_methods import SIZE, Script
from support.agent.scripted_link import Link


async def test_a_repeated_command_is_not_run_again(script: Script, link: Link) -> None:
    await link.command("c1", "once")
    await link.end("c1")
    await link.command("c1", "once", attempt=2)
    await link.until(lambda: len(link.of(Ack, "c1")) == 2)
    await link.command("c2", "steps", {"count": 1})
    await link.command("c2", "steps", {"count": 1}, attempt=2)
    await link.until(lambda: len(link.of(Ack, "c2")) == 2)
    script.step()
    await link.end("c2")
    assert [ack.state for ack in link.of(Ack)] == ["accepted", "duplicate", "accepted", "duplicate"]
    assert script.runs == ["c1", "c2"]
    assert [end.id for end in link.of(End)] == ["c1", "c2"]


async def test_the_last_thousand_commands_are_remembered(script: Script, link: Link) -> None:
    commands = [f"c{n}" for n in range(1024)]
    for start in range(0, 1024, 128):  # fewer at once than are refused as too many
        for command in commands[start : start + 128]:
            await link.command(command, "once")
        await link.end(commands[start + 127])
        await link.until(lambda end=start + 128: len(link.of(End)) == end)  # type: ignore[misc]
    for command in commands:
        await link.command(command, "once", attempt=2)
    await link.until(lambda: len(link.of(Ack)) == 2048)
    assert {ack.state for ack in link.of(Ack)[:1024]} == {"accepted"}
    assert {ack.state for ack in link.of(Ack)[1024:]} == {"duplicate"}
    assert len(script.runs) == 1024


async def test_a_repeated_command_adds_no_credit(script: Script, link: Link) -> None:
    """The judge of the link closes it as soon as a chunk goes beyond the first credit."""
    link.grants = False
    stream = await link.command("c1", "flood", {"chunks": 100})
    await link.until(lambda: stream.credit_left < SIZE)
    await link.command("c1", "flood", {"chunks": 100}, attempt=2)
    await link.until(lambda: len(link.of(Ack, "c1")) == 2)
    await link.command("c2", "once")
    await link.end("c2")
    assert link.violation is None
    await link.cancel("c1")
    await link.end("c1")
