"""What is posted while an agent is claimed for a new link: Redis names the new owner before its node knows so.

The claim's answer is held back here, as a busy node or network may do for a moment. Until it is there, the agent has no
session on the node, or only that of its older link.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fairlead.hub.session import Session
from fairlead.hub.session_context import SessionContext
from fairlead.node import Node
from fairlead.settings import Settings
from fairlead.store.embedded_valkey.server import EmbeddedValkey
from fairlead.wire.codec import gateway_codec
from fairlead.wire.messages import SUBPROTOCOL_MSGPACK, Ack, Bye, Cancel, Chunk, Cmd, Hello, Message, Welcome

from support.gateway.platform_api import MakeGatewayApi
from support.gateway.process import MakeGateway
from support.hub.linked_session import AGENT, Wire, feed_message
from support.waiting import until

GATEWAY = gateway_codec(SUBPROTOCOL_MSGPACK)


def connected(node: Node, conn: int, **have: int) -> tuple[Session, Wire]:
    """A session of the node whose agent has said hello."""
    session, wire = Session(SessionContext(GATEWAY, node.routing.link_handler, 1 << 18)), Wire()
    session.on_open(wire)
    feed_message(session, wire, Hello(agent="mover", boot="b", conn=conn, have=have))
    return session, wire


def sent(wire: Wire) -> list[Message]:
    messages = [AGENT.decode(data) for data in wire.sent]
    return [message for message in messages if message is not None]


class HeldClaims:
    """The answers to claims wait until `release`."""

    def __init__(self, node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made = asyncio.Event()
        self._released = asyncio.Event()
        self._claim = node.directory.claim
        monkeypatch.setattr(node.directory, "claim", self._held)

    async def _held(self, *arguments: Any, **more: Any) -> Any:
        answer = await self._claim(*arguments, **more)
        self.made.set()
        await self._released.wait()
        return answer

    def release(self) -> None:
        self._released.set()


@pytest.mark.parametrize("older", [False, True], ids=["no session here", "an older session here"])
async def test_commands_input_and_cancels_wait_for_the_welcome(
    own_valkey: EmbeddedValkey,
    make_gateway: MakeGateway,
    api_of: MakeGatewayApi,
    monkeypatch: pytest.MonkeyPatch,
    older: bool,
) -> None:
    other = make_gateway(own_valkey.url, name="other")
    api = api_of(other)
    async with Node(Settings(node="claiming"), own_valkey.url) as node:
        old_session, old = connected(node, 1)

        async def has(wire: Wire, kind: type[Message], count: int = 1) -> bool:
            return len([m for m in sent(wire) if isinstance(m, kind)]) >= count

        await until(lambda: has(old, Welcome))
        running, fed = [await api.start("mover") for _ in range(2)]
        await until(lambda: has(old, Cmd, 2))
        for command in (running, fed):
            feed_message(old_session, old, Ack(id=command))
        if not older:
            old_session.on_close(old, 1000, "moved elsewhere")

        claims = HeldClaims(node, monkeypatch)
        session, wire = connected(node, 2, **{running: 0, fed: 0})
        async with asyncio.timeout(20):
            await claims.made.wait()
        before = len(old.sent)
        posted = await api.start("mover")
        assert (await api.http.delete(f"/v1/commands/{running}")).status_code < 300
        assert (await api.http.post(f"/v1/commands/{fed}/input?n=0", content=b"x")).status_code < 300

        async def waits() -> bool:
            return {posted, running, fed} <= set(session.deliveries or ())

        await until(waits)
        assert not [m for m in sent(old)[before:] if isinstance(m, Cmd)], "sent on a link that the agent leaves"
        claims.release()
        await until(lambda: has(wire, Cmd))
        await until(lambda: has(wire, Cancel))
        await until(lambda: has(wire, Chunk))
        assert isinstance(sent(wire)[0], Welcome)
        assert [(m.id, m.attempt) for m in sent(wire) if isinstance(m, Cmd)] == [(posted, 1)]
        assert {m.id for m in sent(wire) if isinstance(m, Cancel)} == {running}
        assert {m.id for m in sent(wire) if isinstance(m, Chunk)} == {fed}
        assert older == any(isinstance(m, Bye) and m.code == 4007 for m in sent(old))


async def test_what_waited_for_a_claim_that_fails_goes_to_the_link_that_is_there(
    own_valkey: EmbeddedValkey,
    make_gateway: MakeGateway,
    api_of: MakeGatewayApi,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A late attempt of the same process: the newer link keeps the agent, and gets what was posted meanwhile."""
    api = api_of(make_gateway(own_valkey.url, name="other"))
    async with Node(Settings(node="claiming"), own_valkey.url) as node:
        _, newer = connected(node, 5)

        async def has(wire: Wire, kind: type[Message]) -> bool:
            return any(isinstance(m, kind) for m in sent(wire))

        await until(lambda: has(newer, Welcome))
        claims = HeldClaims(node, monkeypatch)
        late_session, late = connected(node, 4)
        async with asyncio.timeout(20):
            await claims.made.wait()
        posted = await api.start("mover")

        async def waits() -> bool:
            return posted in (late_session.deliveries or ())

        await until(waits)
        claims.release()
        await until(lambda: has(newer, Cmd))
        assert late.closed == [4007]
