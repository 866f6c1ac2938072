"""An agent that moves: its new link is opened before the old one is closed, and the old one serves until then."""

from __future__ import annotations

import asyncio
import time

import pytest

from fairlead.agent import Agent, Command
from fairlead.errors import ConnectionRefused
from fairlead.wire.messages import Ack, Bye, Chunk, Credit, Event, Hb, Hello, Retry

from support.agent.fixtures import Serve
from support.agent.scripted_gateway import Gateway
from support.agent.scripted_link import Link

SLOW_FIRST = Retry(first=600_000, base=50, cap=100)
"""The first pause after a lost link is endless; those between the attempts of a move are short."""


@pytest.fixture
def echo(agent: Agent) -> Agent:
    """`echo` returns its text; `copy` writes its input; `hold` writes and then waits."""

    @agent.command("echo")
    async def echo(text: str = "") -> str:
        return text

    @agent.command("copy")
    async def copy(command: Command) -> str:
        async for data in command.stdin:
            await command.write("stdout", data)
        return "copied"

    @agent.command("hold")
    async def hold(command: Command) -> None:
        await command.write("stdout", b"one")
        await command.write("stdout", b"two")
        await asyncio.sleep(1000)

    return agent


async def moving(gateway: Gateway, retry: Retry = SLOW_FIRST) -> tuple[Link, Link]:
    """The old link of an agent that is told to move, and its new one, which has said hello."""
    old = await gateway.linked(retry=retry)
    await old.drain(0)
    new = await gateway.accept()
    await new.expect(Hello)
    return old, new


async def answers(link: Link, id: str) -> None:
    await link.command(id, "echo", {"text": id})
    assert (await link.end(id)).payload == f'"{id}"'.encode()


async def test_the_old_link_serves_until_the_new_one_is_welcomed(gateway: Gateway, echo: Agent, serve: Serve) -> None:
    serve(echo)
    old, new = await moving(gateway)
    await answers(old, "c1")
    echo.emit("meanwhile")
    await old.expect(Event)
    assert [type(m) for _, m in new.heard] == [Hello], "nothing but hello until welcome"
    await new.welcome()
    assert await old.closed() == 1000
    assert old.of(Bye)[0].code == 1000
    await answers(new, "c2")
    assert len(gateway.attempts) == 2


async def test_what_has_no_receipt_on_the_old_link_is_sent_again_on_the_new_one(
    gateway: Gateway, echo: Agent, serve: Serve
) -> None:
    """A command that came between hello and welcome: it runs once, and its output is the same on both links."""
    serve(echo)
    old, new = await moving(gateway)
    old.stores = False
    await old.command("c1", "hold")
    await old.until(lambda: len(old.of(Chunk, "c1")) == 2)
    echo.emit("once")
    await old.expect(Event)
    await old.store(2)  # the ack and the first chunk
    await new.welcome(have={"c1": 1})
    again = await new.expect(Chunk, "c1")
    assert (again.n, again.payload) == (1, b"two")
    assert (await new.expect(Event)).id == old.of(Event)[0].id
    await new.command("c1", "hold", attempt=2)
    assert (await new.expect(Ack, "c1")).state == "duplicate"
    assert [ack.state for ack in old.of(Ack, "c1")] == ["accepted"]
    await new.cancel("c1")
    assert (await new.end("c1")).state == "cancelled"


async def test_a_command_that_is_on_both_links_runs_once(gateway: Gateway, echo: Agent, serve: Serve) -> None:
    """What still arrives on the link that was left is not read."""
    serve(echo)
    old, new = await moving(gateway)
    await new.welcome(have={"c1": 0})
    await new.command("c1", "echo", {"text": "x"}, attempt=2)
    await old.command("c1", "echo", {"text": "x"})
    assert (await new.end("c1")).total == 0
    assert await old.closed() == 1000
    assert not old.of(Ack)
    assert [ack.state for ack in new.of(Ack)] == ["accepted"]


async def test_attempts_that_fail_leave_the_old_link_as_it_was(gateway: Gateway, echo: Agent, serve: Serve) -> None:
    serve(echo)
    old = await gateway.linked(retry=SLOW_FIRST)
    gateway.refusals.extend([(503, {"Retry-After": "1"}), (500, {}), (502, {})])
    await old.drain(0)
    await gateway.attempted(2)
    await answers(old, "c1")
    for _ in range(2):
        broken = await gateway.accept()
        await broken.expect(Hello)
        await broken.cut()
        await answers(old, f"c{len(gateway.attempts)}")
    new = await gateway.linked()
    assert await old.closed() == 1000
    await answers(new, "last")
    conns = [hello.conn for link in gateway.links for hello in link.of(Hello)]
    assert conns == sorted(set(conns))


@pytest.mark.parametrize("status", [401, 403])
async def test_a_node_that_refuses_a_moving_agent_is_not_waited_for(
    gateway: Gateway, echo: Agent, serve: Serve, status: int
) -> None:
    """Half of this cap, after which the agent comes back to a fleet that refuses it, would be five minutes."""
    serve(echo)
    old = await gateway.linked(retry=Retry(first=600_000, base=50, cap=600_000))
    gateway.refusals.extend([(status, {})] * 4)
    await old.drain(0)
    await gateway.attempted(3)
    await old.close(4000)
    new = await gateway.linked()
    await answers(new, "c1")
    assert len(gateway.attempts) == 6


@pytest.mark.parametrize("when", ["greeting", "pausing"])
@pytest.mark.parametrize("how", ["4007", "4000", "lost"])
async def test_an_old_link_that_ends_changes_nothing(
    gateway: Gateway, echo: Agent, serve: Serve, when: str, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    """4007 is how the gateway closes it when the new link owns the agent before the agent knows."""
    serve(echo)
    old = await gateway.linked(retry=Retry(first=600_000, base=1_000, cap=1_000))
    if when == "pausing":
        gateway.refusals.append((503, {"Retry-After": "2"}))
    await old.drain(0)
    if when == "pausing":
        await gateway.attempted(2)
    else:
        new = await gateway.accept()
        await new.expect(Hello)
    if how == "lost":
        await old.cut()
    else:
        await old.close(int(how))
    if when == "pausing":
        new = await gateway.accept()
        assert gateway.attempts[2] - gateway.attempts[1] >= 1.99, "Retry-After holds"
    await new.welcome()
    await answers(new, "c1")
    assert len(gateway.attempts) == (3 if when == "pausing" else 2)


async def test_a_command_of_the_old_link_goes_on_without_it(gateway: Gateway, echo: Agent, serve: Serve) -> None:
    """The old link is closed between hello and welcome: what runs waits for the new one."""
    serve(echo)
    old, new = await moving(gateway)
    await old.command("c1", "copy")
    await old.expect(Ack, "c1")
    await old.close(4007)
    await new.welcome(have={"c1": 0})
    await new.feed("c1", b"x")
    await new.feed_end("c1")
    assert (await new.end("c1")).total == 1


@pytest.mark.parametrize("side", ["old", "new"])
async def test_a_final_code_on_either_link_ends_it(gateway: Gateway, echo: Agent, serve: Serve, side: str) -> None:
    serving = serve(echo)
    old, new = await moving(gateway)
    final, other = (old, new) if side == "old" else (new, old)
    await final.close(4507)
    with pytest.raises(ConnectionRefused, match="4507"):
        await asyncio.wait_for(serving, 20)
    assert await other.closed() in (1000, 1001)
    assert len(gateway.attempts) == 2


@pytest.mark.parametrize("when", ["greeting", "pausing"])
async def test_a_time_that_the_old_link_names_holds(gateway: Gateway, echo: Agent, serve: Serve, when: str) -> None:
    """The attempt that is under way is given up: 4413, for example, asks an agent to stay away."""
    serve(echo)
    old = await gateway.linked(retry=Retry(first=600_000, base=600_000, cap=600_000))
    if when == "pausing":
        gateway.refusals.append((500, {}))
    await old.drain(0)
    await gateway.attempted(2)
    if when == "greeting":
        new = await gateway.accept()
        await new.expect(Hello)
    began = time.monotonic()
    await old.close(4413, retry=1200)
    await gateway.attempted(3)
    assert time.monotonic() - began >= 1.19
    await gateway.linked()


async def test_the_slot_of_the_later_drain_counts(gateway: Gateway, echo: Agent, serve: Serve) -> None:
    serve(echo)
    old = await gateway.linked()
    await old.drain(60_000)
    await old.drain(0)
    await gateway.linked()
    assert await old.closed() == 1000


async def test_a_new_link_that_is_drained_at_once(gateway: Gateway, echo: Agent, serve: Serve) -> None:
    """It is used until the next one is welcomed, within a second or so."""
    serve(echo)
    link = await gateway.linked(retry=SLOW_FIRST)
    for n in range(3):
        await link.drain(0)
        await answers(link, f"c{n}")
        following = await gateway.linked(retry=SLOW_FIRST)
        assert await link.closed() == 1000
        link = following
    await answers(link, "last")
    assert len(gateway.attempts) == 4


async def test_input_in_the_overlap_is_read_once_and_granted_on_the_new_link_only(
    gateway: Gateway, echo: Agent, serve: Serve
) -> None:
    """Hello has named the input: what the old link granted after it, the gateway could not send again."""
    serve(echo)
    old = await gateway.linked(retry=SLOW_FIRST)
    await old.command("c1", "copy")
    await old.feed("c1", b"a")
    await old.until(lambda: sum(c.bytes for c in old.of(Credit, "c1")) == 1)
    await old.drain(0)
    new = await gateway.accept()
    hello = await new.expect(Hello)
    assert hello.have == {"c1": 1}
    await old.feed("c1", b"b", b"c")
    await old.until(lambda: old.output("c1") == b"abc")
    assert sum(c.bytes for c in old.of(Credit, "c1")) == 1, "granted after hello"
    await new.welcome(have={"c1": 3})
    await new.feed("c1", b"b", b"c", b"d")
    await new.until(lambda: sum(c.bytes for c in new.of(Credit, "c1")) == 3)
    await new.feed_end("c1")
    assert (await new.end("c1")).total == 4
    assert new.output("c1") == b"d"


async def test_input_that_was_withheld_is_granted_when_the_new_link_fails(
    gateway: Gateway, echo: Agent, serve: Serve
) -> None:
    serve(echo)
    old = await gateway.linked(retry=SLOW_FIRST)
    await old.command("c1", "copy")
    await old.expect(Ack, "c1")
    await old.drain(0)
    new = await gateway.accept()
    await new.expect(Hello)
    await old.feed("c1", b"abc")
    await old.until(lambda: old.output("c1") == b"abc")
    assert not old.of(Credit, "c1")
    await new.cut()
    await old.until(lambda: sum(c.bytes for c in old.of(Credit, "c1")) == 3)


async def test_a_cancel_on_the_old_link(gateway: Gateway, echo: Agent, serve: Serve) -> None:
    serve(echo)
    old, new = await moving(gateway)
    old.stores = False
    await old.command("c1", "hold")
    await old.until(lambda: len(old.of(Chunk, "c1")) == 2)
    await old.cancel("c1")
    assert (await old.end("c1")).state == "cancelled"
    await new.welcome(have={"c1": 0})
    end = await new.end("c1")
    assert (end.state, end.total, new.output("c1")) == ("cancelled", 2, b"onetwo")


async def test_both_links_have_heartbeats(gateway: Gateway, echo: Agent, serve: Serve) -> None:
    serve(echo)
    old = await gateway.linked(hb=200, retry=SLOW_FIRST)
    await old.drain(0)
    new = await gateway.accept()
    await new.expect(Hello)
    before = len(old.of(Hb))
    await old.until(lambda: len(old.of(Hb)) >= before + 5)  # more than 2.5 intervals: it is not given up either
    await new.welcome(hb=200)
    await new.until(lambda: len(new.of(Hb)) >= 5)
    assert await old.closed() == 1000


async def test_stop_in_the_middle_of_a_move(gateway: Gateway, echo: Agent, serve: Serve) -> None:
    serving = serve(echo)
    old, new = await moving(gateway)
    await old.command("c1", "hold")
    await old.until(lambda: len(old.of(Chunk, "c1")) == 2)
    echo.stop()
    async with asyncio.timeout(20):
        await serving
    assert (await old.end("c1")).state == "cancelled", "the old link is still in use"
    assert await old.closed() == 1001
    assert await new.closed() in (1000, 1001)
