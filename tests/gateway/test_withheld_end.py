"""An agent whose `end` waits behind output without credit can send it: at a cancel, and after a deadline that the
gateway has already recorded.

The agent is written as docs/protocol.md, section 13, shows it: it makes chunks as long as what it holds unstored fits
the window, and writes them as credit comes.
"""

from __future__ import annotations

import asyncio

import pytest

from fairlead.wire.messages import WINDOW, Ack, Bye, Cancel, Chunk, Cmd, Credit, End, EndState, Rx

from support.gateway.platform_api import GatewayApi
from support.gateway.process import GatewayProcess
from support.gateway.scripted_agent import DialAgent, ScriptedAgent

CHUNK = 64 << 10
QUIET = 1.5
"""Seconds of silence after which the gateway is taken to grant nothing more."""


class HoldingStream:
    """One stream of such an agent."""

    def __init__(self, peer: ScriptedAgent, cmd: Cmd) -> None:
        self.peer = peer
        self.id = cmd.id
        self.credit_left = cmd.credit
        self.made = self.written = self.stored = 0
        self.cancels: list[str] = []
        self.ended = False

    async def write(self) -> None:
        """Produce what the window holds, and write what there is credit for."""
        while not self.ended and (self.made - self.stored) * CHUNK < WINDOW:
            self.made += 1
        while self.written < self.made and self.credit_left >= CHUNK:
            await self.peer.send(Chunk(id=self.id, n=self.written, kind="file", payload=b"x" * CHUNK))
            self.written += 1
            self.credit_left -= CHUNK

    async def run(self) -> None:
        """Run until the gateway is silent for a while, or the command is cancelled."""
        while not self.cancels:
            await self.write()
            try:
                async with asyncio.timeout(QUIET):
                    self.take(await self.peer.receive())
            except TimeoutError:
                return

    def take(self, message: object) -> None:
        if isinstance(message, Credit):
            self.credit_left += message.bytes
        elif isinstance(message, Rx):
            self.stored = message.s - 1  # the ack is the first
        elif isinstance(message, Cancel):
            self.cancels.append(message.why)

    async def finish(self, state: EndState) -> None:
        """Write the rest as credit arrives, then the end, and wait for its receipt."""
        self.ended = True
        async with asyncio.timeout(20):
            while True:
                await self.write()
                if self.written == self.made:
                    break
                self.take(await self.peer.receive())
            await self.peer.send(End(id=self.id, total=self.made, state=state))
            while self.stored < self.made + 1:
                self.take(await self.peer.receive())


async def test_a_cancel_grants_the_credit_that_the_end_needs(
    gateway: GatewayProcess, api: GatewayApi, dial: DialAgent
) -> None:
    peer = await dial(gateway)
    await peer.greet()
    command = await api.start(peer.agent, retain="window")
    holder = HoldingStream(peer, await peer.command())
    await peer.send(Ack(id=command))
    await holder.run()
    assert holder.credit_left < CHUNK
    assert holder.made > holder.written  # there is output without credit, and the end will be behind it
    assert (await api.http.delete(f"/v1/commands/{command}")).is_success
    async with asyncio.timeout(10):
        while not holder.cancels:
            holder.take(await peer.receive())
    await holder.finish("cancelled")
    target = (await api.get(command))["targets"][0]
    assert (target["state"], target["end"]["error"]) == ("cancelled", None), "it was not left to time out"
    assert set(holder.cancels) == {"cancelled"}
    assert (await api.http.get(f"/v1/agents/{peer.agent}/link")).json()["commands"] == 0


@pytest.mark.timeout(90)
async def test_a_stream_that_is_over_still_gets_credit(
    gateway: GatewayProcess, api: GatewayApi, dial: DialAgent
) -> None:
    """The agent here does not know the deadline: the gateway ends the command first, the agent later."""
    peer = await dial(gateway)
    await peer.greet()
    command = await api.start(peer.agent, retain="window", deadline=4)
    holder = HoldingStream(peer, await peer.command())
    await peer.send(Ack(id=command))
    await holder.run()
    assert holder.made > holder.written
    async with asyncio.timeout(30):
        while not holder.cancels:
            holder.take(await peer.receive())
    assert holder.cancels == ["deadline"]
    assert (await api.get(command))["targets"][0]["state"] == "timeout"
    await holder.finish("timeout")
    assert set(holder.cancels) == {"deadline"}
    assert (await api.http.get(f"/v1/agents/{peer.agent}/link")).json()["commands"] == 0


async def test_output_of_an_unknown_command_gets_receipt_and_credit(
    gateway: GatewayProcess, api: GatewayApi, dial: DialAgent
) -> None:
    peer = await dial(gateway)
    await peer.greet()
    unknown = "01890a5d-ac96-774b-bcce-b302099a8057"
    await peer.send(Ack(id=unknown), Chunk(id=unknown, n=7, kind="stdout", payload=b"12345"), End(id=unknown, total=9))
    assert (await peer.expect(Rx)).s >= 1
    assert (await peer.expect(Credit)) == Credit(id=unknown, bytes=5)


async def test_a_chunk_before_the_ack_counts_as_the_ack(
    gateway: GatewayProcess, api: GatewayApi, dial: DialAgent
) -> None:
    peer = await dial(gateway)
    await peer.greet()
    command = await api.start(peer.agent)
    await peer.command()
    await peer.send_output(command, 0, "early")
    await peer.expect(Rx)
    assert (await api.get(command))["state"] == "running"
    await peer.send(Ack(id=command), End(id=command, total=1))
    assert (await api.end(command))["state"] == "ok"


async def test_an_accepted_command_cannot_be_refused_later(
    gateway: GatewayProcess, api: GatewayApi, dial: DialAgent
) -> None:
    """Before any output it ends the command; behind output it breaks the protocol."""
    peer = await dial(gateway)
    await peer.greet()
    command = await api.start(peer.agent)
    await peer.command()
    await peer.send(Ack(id=command), Ack(id=command, state="refused"))
    end = await api.end(command)
    assert (end["state"], end["error"]["code"]) == ("failed", "refused")
    command = await api.start(peer.agent)
    await peer.command()
    await peer.send(Ack(id=command))
    await peer.send_output(command, 0, "output")
    await peer.send(Ack(id=command, state="refused"))
    assert await peer.close_code() == 4500


async def test_a_bye_is_answered_with_a_close_frame(gateway: GatewayProcess, dial: DialAgent) -> None:
    """This holds even if the agent that sent bye never closes."""
    peer = await dial(gateway)
    await peer.greet()
    await peer.send(Bye(code=1001, why="the agent ends"))
    assert await peer.close_code() == 1001
