"""Writes the input of a command, chunk by chunk: to Redis first, then a doorbell to the agent's node.

Called by the API. If the agent consumes no input, the caller waits for a bounded time. So a slow agent slows its
caller, and the input that is stored for one command is bounded. The content of a chunk is never read.
"""

from __future__ import annotations

import asyncio
import random

from fairlead.bus.doorbell import InputAdded
from fairlead.bus.inbox import Inbox
from fairlead.errors import FairleadError, InputConflict, InvalidRequest, Unavailable
from fairlead.routing.fleet_store import FleetStore
from fairlead.routing.membership.membership import Membership
from fairlead.routing.timeouts import RING_AGAIN_MS

TIMEOUT = 20.0
"""Seconds that a caller waits while the agent consumes no input: less than the timeouts of usual proxies."""
POLL_INTERVAL = 0.1
"""Seconds, times a random factor of 0.5 to 1.5."""


class InputFull(Unavailable):
    """The agent does not consume its input. The chunk was not stored and may be sent again."""

    code = "input_full"


class InputWriter:
    def __init__(self, fleet: FleetStore, inbox: Inbox, membership: Membership) -> None:
        self._directory = fleet.directory
        self._records = fleet.records
        self._deadlines = fleet.deadlines
        self._inbox = inbox
        self._membership = membership

    async def add(self, command: str, n: int, payload: bytes, end: bool) -> None:
        """Store input chunk `n` and tell the agent's node.

        Raises CommandUnknown, InputFull, InvalidRequest (with what was expected), and InputConflict if another chunk
        has this number.
        """
        agent = await self._records.agent_of(command)
        if agent is None:
            raise self._membership.unknown_command(command)
        loop = asyncio.get_running_loop()
        give_up = loop.time() + TIMEOUT
        while True:
            # If the doorbell is lost, the sweeper rings again.
            scheduled = self._deadlines.schedule(command, agent, self._membership.now() + RING_AGAIN_MS)
            stored = self._records.add_input(command, agent, n, payload, end)
            row = await self._directory.look_up(agent)
            await scheduled
            word, number = await stored
            if word != "full":
                break
            if loop.time() > give_up:
                raise InputFull(
                    f"{number} bytes of input wait for the agent to consume them: send this chunk again later"
                )
            # No doorbell announces room for input, so the caller polls for it.
            await asyncio.sleep(random.uniform(0.5, 1.5) * POLL_INTERVAL)
        if (error := _error(word, n, number)) is not None:
            raise error
        if row is not None and row.lease:
            self._inbox.ring(row.lease, (InputAdded(agent, command),))


def _error(word: str, n: int, number: int) -> FairleadError | None:
    """The error for chunk `n` that the store answered with `word`; None if it is stored."""
    if word == "other":
        return InputConflict(
            f"input chunk {n} is already stored with other bytes, or as the end: expected the same chunk again, or the "
            "next number for a new one",
            n=n,
        )
    if word == "gap":
        return InvalidRequest(f"input chunk {n} out of order: expected {number}", field="n", expected=number)
    if word in ("over", "gone"):
        return InvalidRequest("the command is over: it takes no input", field="id")
    if word == "ended":
        return InvalidRequest("the input has ended: expected no further chunk", field="n")
    return None
