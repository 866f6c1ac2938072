"""The orders that make the agent do what a script's agent does. Used by `ConversationRun`.

It remembers what was ordered, because an agent repeats by itself, without another order, what was not stored.
"""

from __future__ import annotations

import base64
from collections import Counter

from fairlead.mock.agent_under_test import AgentUnderTest
from fairlead.mock.script import CHUNK, END, EVENT, Raw


class ScriptOrders:
    def __init__(self, agent: AgentUnderTest, enabled: bool) -> None:
        """If not `enabled`, the conversation needs no orders, and none are given."""
        self._agent = agent
        self._enabled = enabled
        self._written: Counter[str] = Counter()
        """Chunks of each command that were ordered from this process."""
        self._ended: set[str] = set()
        self._emitted: set[str] = set()

    def process_restarted(self) -> None:
        self._written.clear()

    async def take_input(self, command: str) -> bool:
        """Let a command read one chunk of input; False when the order is not carried out in time."""
        process = self._agent.process
        return await process.done(await process.take(command), self._agent.timeout)

    async def write(self, command: str, kind: str, payload: str) -> None:
        self._written[command] += 1
        await self._agent.process.write({"id": command, "kind": kind, "payload": payload})
        # The write may wait for credit, so do not wait until it is done, but until the order has been read.
        await self._until_read()

    async def end(self, command: str, payload: str, size: int) -> None:
        """End a command with `payload`, or with a result of `size` bytes."""
        self._ended.add(command)
        await self._agent.process.end({"id": command, "payload": payload or _result(size)})
        await self._until_read()

    async def lead_to(self, expected: Raw) -> None:
        """Make the agent do what leads to this message, unless it is one that it repeats by itself."""
        if not self._enabled:
            return
        process, kind, command = self._agent.process, expected["t"], expected.get("id", "")
        if kind == CHUNK and expected["n"] == self._written[command]:
            self._written[command] += 1
            await process.write(expected)
        elif kind == END and expected.get("state", "ok") == "ok" and command not in self._ended:
            self._ended.add(command)
            await process.end(expected)
        elif kind == EVENT and command not in self._emitted:
            self._emitted.add(command)
            await process.emit(expected)

    async def _until_read(self) -> None:
        """Wait until the agent has read all orders so far."""
        process = self._agent.process
        await process.done(await process.order("ready"), self._agent.timeout)


def _result(size: int) -> str:
    """A JSON string of so many bytes, in base64."""
    return base64.b64encode(b'"' + b"x" * (size - 2) + b'"').decode()
