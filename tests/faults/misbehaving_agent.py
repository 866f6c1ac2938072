"""Agents that break the protocol, each in its own way; and how their commands must end.

Used by the scenario `misbehave`, and by runs that have such targets. They use the `websockets` library, so that they
can do what the SDK never would.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable

import websockets
from websockets.asyncio.client import ClientConnection

from fairlead.wire.codec import agent_codec
from fairlead.wire.messages import SUBPROTOCOL_MSGPACK, Ack, Chunk, Cmd, End, Hello, Message

from faults.agent_methods import TOKEN
from faults.fault_fleet import FaultFleet, NodeProcess

CODEC = agent_codec(SUBPROTOCOL_MSGPACK)
DEADLINE = 2.0
"""Seconds of the commands here: most of these agents let it pass."""


class MisbehavingAgent:
    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.command = ""

    async def send(self, *messages: Message) -> None:
        """A link that the gateway has closed meanwhile, for what it got, takes no more."""
        with contextlib.suppress(websockets.ConnectionClosed):
            for message in messages:
                await self.socket.send(CODEC.encode(message))

    def chunk(self, n: int) -> Chunk:
        return Chunk(id=self.command, n=n, kind="stdout", payload=f"{n}\n".encode())

    def end(self, total: int) -> End:
        return End(id=self.command, total=total)

    async def met(self) -> None:
        """Wait for the command."""
        while True:
            message = CODEC.decode(await self.socket.recv())
            if isinstance(message, Cmd):
                self.command = message.id
                return


async def twice(agent: MisbehavingAgent) -> None:
    for _ in range(2):
        await agent.send(Ack(id=agent.command), agent.chunk(0), agent.end(1))


async def out_of_order(agent: MisbehavingAgent) -> None:
    await agent.send(Ack(id=agent.command), agent.chunk(1), agent.chunk(0), agent.end(2))


async def with_a_gap(agent: MisbehavingAgent) -> None:
    await agent.send(Ack(id=agent.command), agent.chunk(0), agent.chunk(2), agent.end(3))


async def a_wrong_total(agent: MisbehavingAgent) -> None:
    await agent.send(Ack(id=agent.command), agent.chunk(0), agent.end(7))


async def after_its_deadline(agent: MisbehavingAgent) -> None:
    await agent.send(Ack(id=agent.command))
    await asyncio.sleep(DEADLINE + 4)
    await agent.send(agent.chunk(0), agent.end(1))


async def with_a_wrong_digest(agent: MisbehavingAgent) -> None:
    await agent.send(Ack(id=agent.command), agent.chunk(0))
    await agent.send(End(id=agent.command, total=1, digest=b"of something else entirely"))


async def for_another(agent: MisbehavingAgent) -> None:
    agent.command = "01890a5d-ac96-774b-bcce-b302099a8057"
    await agent.send(Ack(id=agent.command), agent.chunk(0), agent.end(1))


async def never(agent: MisbehavingAgent) -> None:
    pass


Misbehaviour = Callable[[MisbehavingAgent], Awaitable[None]]

MISBEHAVIOURS: dict[Misbehaviour, tuple[str, list[str]]] = {
    twice: ("ok", ["0\n"]),
    out_of_order: ("deadline", []),
    with_a_gap: ("deadline", ["0\n"]),
    a_wrong_total: ("deadline", ["0\n"]),
    with_a_wrong_digest: ("ok", ["0\n"]),
    after_its_deadline: ("deadline", []),
    for_another: ("deadline", []),
    never: ("deadline", []),
}
"""How the command ends, by its error's code or its state, and the output that a caller reads."""


@contextlib.asynccontextmanager
async def misbehaving(node: NodeProcess, name: str) -> AsyncIterator[MisbehavingAgent]:
    """An agent that is linked to the node."""
    async with websockets.connect(
        f"ws://127.0.0.1:{node.link}/v1/link",
        subprotocols=[websockets.Subprotocol(SUBPROTOCOL_MSGPACK)],
        additional_headers={"Authorization": f"Bearer {TOKEN}"},
        compression=None,
        ping_interval=None,
        proxy=None,
    ) as socket:
        agent = MisbehavingAgent(socket)
        await agent.send(Hello(agent=name, boot="misbehaving", conn=1))
        await socket.recv()
        yield agent


async def outcome_of(fleet: FaultFleet, node: NodeProcess, misbehaviour: Misbehaviour) -> tuple[str, list[str]]:
    """Post a command to an agent with that misbehaviour; returns what its caller receives."""
    name = f"misbehaving-{misbehaviour.__name__}"
    async with misbehaving(node, name) as agent:
        body = {"agent": name, "method": "work", "deadline": DEADLINE}
        caller = asyncio.create_task(
            fleet.http.post(
                f"http://127.0.0.1:{node.api}/v1/commands", json=body, headers={"accept": "application/x-ndjson"}
            )
        )
        async with asyncio.timeout(10):
            await agent.met()
        await misbehaviour(agent)
        answer = await caller
    lines = [json.loads(line) for line in answer.text.splitlines()]
    end = lines[-1]["end"]
    return (end["error"]["code"] if end["error"] else end["state"]), [x["text"] for x in lines if "text" in x]
