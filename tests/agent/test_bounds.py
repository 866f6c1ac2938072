"""Absurd numbers of a gateway: the agent replaces each with its own limit and continues."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.agent import Agent
from fairlead.agent.link.bounds import (
    DEADLINE_MOST,
    HEARTBEAT_LEAST,
    HEARTBEAT_MOST,
    MESSAGE_LEAST,
    SLOT_MOST,
    WINDOW_MOST,
    bounded,
)
from fairlead.wire.messages import (
    CHUNK_LIMIT,
    MESSAGE_LIMIT,
    Chunk,
    Cmd,
    Credit,
    Drain,
    End,
    Hb,
    Hello,
    Limits,
    Welcome,
)
from fairlead.wire.outbox import Outbox

from support.agent.delivery_methods import Script
from support.agent.fixtures import Serve
from support.agent.scripted_gateway import Gateway
from support.agent.scripted_link import SOON

LARGEST = (1 << 53) - 1
counts = st.integers(0, LARGEST)


@given(st.builds(Limits, message=counts, chunk=counts, window=counts, queue=counts), counts)
def test_numbers_of_welcome_are_brought_into_bounds(limits: Limits, hb: int) -> None:
    taken = bounded(Welcome(sid="s", gen=1, now=0, hb=hb, limits=limits), Outbox())
    assert isinstance(taken, Welcome)
    assert HEARTBEAT_LEAST <= taken.hb <= HEARTBEAT_MOST
    assert MESSAGE_LEAST <= taken.limits.message <= MESSAGE_LIMIT
    assert taken.limits.chunk <= CHUNK_LIMIT
    assert taken.limits.window <= WINDOW_MOST
    if HEARTBEAT_LEAST <= hb <= HEARTBEAT_MOST:
        assert taken.hb == hb


@given(counts, counts, st.lists(counts, max_size=20), counts)
def test_the_credit_of_a_command_is_brought_into_bounds(
    deadline: int, credit: int, grants: list[int], slot: int
) -> None:
    outbox = Outbox()
    cmd = bounded(Cmd(id="c", method="m", deadline=deadline, credit=credit), outbox)
    assert isinstance(cmd, Cmd)
    assert cmd.deadline == min(deadline, DEADLINE_MOST)
    stream = outbox.opened(cmd)
    for grant in grants:
        taken = bounded(Credit(id="c", bytes=grant), outbox)
        assert isinstance(taken, Credit)
        stream.granted(taken.bytes)
        assert stream.credit_left <= WINDOW_MOST, "what a stream may keep in memory"
    drain = bounded(Drain(why="age", slot=slot), outbox)
    assert isinstance(drain, Drain)
    assert drain.slot == min(slot, SLOT_MOST)


def test_numbers_within_bounds_are_not_changed() -> None:
    outbox = Outbox()
    outbox.opened(Cmd(id="c", method="m"))
    for message in (Cmd(id="x", method="m"), Credit(id="c", bytes=1000), Hb(ts=LARGEST), Drain(why="age", slot=5)):
        assert bounded(message, outbox) is message
    assert bounded(None, outbox) is None


@pytest.mark.parametrize("number", [0, LARGEST])
async def test_an_agent_serves_a_gateway_whose_numbers_are_absurd(
    gateway: Gateway, agent: Agent, serve: Serve, number: int
) -> None:
    script = Script(agent)
    serve(agent)
    link = await gateway.accept()
    await link.expect(Hello)
    link.state.welcomed()
    window = max(number, 1_000)
    limits = Limits(message=number, chunk=number, window=window, queue=number)
    hb = max(number, 10_000)  # the least would end the link after 0.25 s of silence, which a busy machine may reach
    await link.send(Welcome(sid="s", gen=1, now=number, hb=hb, limits=limits, retry=SOON))
    link.state.opened("c1")
    await link.send(Cmd(id="c1", method="flood", payload=b'{"chunks": 3}', deadline=LARGEST, credit=LARGEST))
    for _ in range(100):
        await link.send(Credit(id="c1", bytes=LARGEST), Credit(id="none", bytes=LARGEST))
    if number:
        assert (await link.end("c1")).state == "ok"
    else:
        await link.expect(Chunk, "c1")  # chunks of one octet: it goes on
    await link.send(Cmd(id="c2", method="once", credit=LARGEST, deadline=60_000))
    await link.expect(End, "c2")
    assert "c2" in script.runs
