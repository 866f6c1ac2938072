"""What an idle session keeps: its own octets, what it still knows of its agent, and nothing in the tables of all."""

from __future__ import annotations

import asyncio
import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from fairlead.hub.link_identity import LinkIdentity, pack_facts, pack_identity, unpack_identity
from fairlead.hub.session import Session
from fairlead.hub.session_context import SessionContext
from fairlead.hub.totals import Totals
from fairlead.wire.messages import Hello, Welcome

from support.hub.linked_session import AGENT, GATEWAY, SessionHandler, Wire, feed_message, linked

GEN = 1_795_920_000_123
FACTS = {"os": "linux", "arch": "x86_64", "kernel": "6.1.0", "env": "test", "zone": "eu-1a", "sdk": "0.1.0"}
AGENTS = 4_000
MOST = 367
"""Bytes: the session has 160 in CPython 3.11, the name of its agent 60, and what is packed 138. The allocator gives a
session that has one attribute more another 16."""


def welcomed(context: SessionContext, wire: Wire, name: str) -> Session:
    """A session that was welcomed as the node does it."""
    hello = GATEWAY.decode(AGENT.encode(Hello(agent=name, boot="boot", conn=1, facts=FACTS)))
    assert isinstance(hello, Hello)
    session = Session(context, [1, 2, 0, 0, 0, 0])
    session.on_open(wire)
    feed_message(session, wire, hello)
    session.identify(hello.agent, hello, bytes(range(8)))
    session.claimed(GEN)
    session.welcome(Welcome(sid=session.sid, gen=GEN, now=1, hb=1))
    session.finish_opening(keep=False)
    wire.sent.clear()
    return session


async def test_an_idle_session_is_small() -> None:
    context, wire = SessionContext(GATEWAY, SessionHandler(Totals()), 1 << 18), Wire()
    kept = [welcomed(context, wire, "warm")] * AGENTS
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for number in range(AGENTS):
            kept[number] = welcomed(context, wire, f"agent-{number:05}")
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (after - before) / AGENTS <= MOST


async def test_a_packed_session_still_knows_its_agent() -> None:
    session = welcomed(SessionContext(GATEWAY, SessionHandler(Totals()), 1 << 18), Wire(), "a")
    assert (session.gen, session.sid, session.memory, session.conn) == (GEN, "0001020304050607", "boot", 1)
    assert (
        session.identity.facts
        == b'{"os":"linux","arch":"x86_64","kernel":"6.1.0","env":"test","zone":"eu-1a","sdk":"0.1.0"}'
    )
    session.keep_facts({"os": "plan9"})
    session.claimed(GEN + 1)
    assert (session.identity.facts, session.gen, session.sid) == (b'{"os":"plan9"}', GEN + 1, "0001020304050607")
    session.keep_facts({})
    assert session.identity.facts == b"{}"


@given(st.dictionaries(st.text(max_size=20), st.text(max_size=20), max_size=20), st.integers(0, 2**53), st.binary())
def test_what_is_packed_comes_back(facts: dict[str, str], gen: int, sid: bytes) -> None:
    identity = LinkIdentity("boot", 7, sid, "journal", pack_facts(facts), "key", 1.5, "issuer", gen)
    assert unpack_identity(pack_identity(identity)) == identity


async def test_a_lost_link_waits_for_nothing_any_more() -> None:
    session, wire = linked(Totals())
    wire.congested = True
    waiting = asyncio.create_task(session.wait_writable(60))
    await asyncio.sleep(0)
    assert list(session.context.waiters) == [session]
    session.on_close(wire, 1006, "")
    async with asyncio.timeout(10):
        await waiting
    assert not session.context.waiters
