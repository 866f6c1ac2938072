"""Input of a command, chunk by chunk: stored in Redis, then told to the agent's node.

Called by the API. A caller is held back while the agent consumes nothing, for a bounded time: so a slow agent slows its
caller, and what is stored of one command stays bounded. It never looks at what a chunk holds.
"""

from __future__ import annotations

import asyncio
import random

from fairlead.bus.doorbell import InputAdded
from fairlead.bus.inbox import Inbox
from fairlead.errors import InputConflict, InvalidRequest, Unavailable
from fairlead.fleet.commands import Commands
from fairlead.fleet.deadline_queue import DeadlineQueue
from fairlead.fleet.directory import Directory
from fairlead.routing.membership.membership import Membership
from fairlead.routing.timeouts import RING_AGAIN_MS

PATIENCE = 20.0
"""Seconds that a caller is held back while the agent consumes no input; below the time-outs of proxies."""
PERIOD = 0.1


class InputFull(Unavailable):
    """The agent does not consume its input; the chunk was not taken and may be sent again."""

    code = "input_full"


class InputWriter:
    def __init__(
        self, directory: Directory, records: Commands, due: DeadlineQueue, inbox: Inbox, membership: Membership
    ) -> None:
        self._directory = directory
        self._records = records
        self._due = due
        self._inbox = inbox
        self._membership = membership

    async def add(self, command: str, n: int, payload: bytes, end: bool) -> None:
        """Store input chunk `n` and tell the agent's node. Raises InvalidRequest, with what was expected, and
        InputConflict when another chunk has that number."""
        agent = await self._records.agent_of(command)
        if agent is None:
            raise self._membership.unknown(command)
        loop = asyncio.get_running_loop()
        patience = loop.time() + PATIENCE
        while True:
            # Should the bell be lost, the keeper rings it again.
            looked = self._due.schedule(command, agent, self._membership.now() + RING_AGAIN_MS)
            stored = self._records.add_input(command, agent, n, payload, end)
            row = await self._directory.look_up(agent)
            await looked
            word, number = await stored
            if word != "full":
                break
            if loop.time() > patience:
                raise InputFull(
                    f"{number} bytes of input wait for the agent to consume them: send this chunk again later"
                )
            # The caller is held back for as long as the agent does not read: no bell rings for room.
            await asyncio.sleep(random.uniform(0.5, 1.5) * PERIOD)
        if word == "other":
            raise InputConflict(
                f"input chunk {n} was stored before with other octets, or as the end, and the agent gets that one: "
                "repeat a chunk as it was, and give the next one the next number",
                n=n,
            )
        if word == "gap":
            raise InvalidRequest(f"input chunk {n} out of order: expected {number}", field="n", expected=number)
        if word in ("over", "gone"):
            raise InvalidRequest("the command is over: it takes no input", field="id")
        if word == "ended":
            raise InvalidRequest("the input was ended before: nothing may follow", field="n")
        if row is not None and row.lease:
            self._inbox.ring(row.lease, (InputAdded(agent, command),))
