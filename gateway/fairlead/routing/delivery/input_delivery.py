"""Sends the input of commands from Redis to the agent, as far as the agent's credit goes.

Called when a doorbell announces new input, when the agent grants credit, and when a command is sent or taken over. One
task for each command reads and sends; input that the agent has consumed is dropped from Redis. The input of a command
with a content is that content, and is sent once the agent has asked for it, by credit for nothing.
"""

from __future__ import annotations

import logging

from fairlead.errors import BusUnavailable
from fairlead.hub.session import Session
from fairlead.routing.background_tasks import BackgroundTasks
from fairlead.routing.contents.content_cache import ContentCache
from fairlead.routing.delivery.terminal_recorder import TerminalRecorder
from fairlead.routing.fleet_store import FleetStore
from fairlead.routing.timeouts import wait_for_redis
from fairlead.wire.gateway_stream import GatewayStream
from fairlead.wire.messages import CHUNK_LIMIT, Chunk, End

logger = logging.getLogger(__name__)

AT_ONCE = 16
"""Chunks of a content that are made at once: the least window has two, and the largest a few dozen."""


class InputDelivery:
    def __init__(
        self,
        fleet: FleetStore,
        contents: ContentCache,
        terminals: TerminalRecorder,
        tasks: BackgroundTasks,
        timeout: float,
    ) -> None:
        """`timeout` is the number of seconds without reading after which an agent is too slow."""
        self._store = fleet.store
        self._records = fleet.records
        self._contents = contents
        self._terminals = terminals
        self._tasks = tasks
        self._timeout = timeout

    def credit_received(self, session: Session, command: str) -> None:
        """Drop the input that the agent has consumed from Redis, and send more."""
        stream = session.stream(command)
        if stream is None:
            return
        if (consumed := stream.take_consumed()) and not stream.input_source:
            self._records.consume_input(command, consumed)
        self.feed(session, command)

    def feed(self, session: Session, command: str) -> None:
        """Send the input that is in Redis, unless the agent does not have the command yet or has had all input."""
        stream = session.stream(command)
        if stream is None or stream.input_ended or not stream.known:
            return
        if stream.begin_feeding():
            self._tasks.spawn(self._feed(session, command, stream))

    async def _feed(self, session: Session, command: str, stream: GatewayStream) -> None:
        try:
            while session.ready and stream.input_to_send:
                await session.wait_writable(self._timeout)
                first = stream.begin_reading()
                try:
                    chunks = await self._read(command, stream, first)
                except BusUnavailable as e:
                    logger.debug("input of %s waits for Redis: %s", command, e)
                    stream.reading_failed()
                    await wait_for_redis(self._store, self._timeout)
                    continue
                if not self._send(session, command, stream, chunks):
                    return
        finally:
            stream.end_feeding()

    async def _read(self, command: str, stream: GatewayStream, first: int) -> list[tuple[int, bytes, bool]]:
        """The next chunks of the input, from number `first` on. Raises BusUnavailable."""
        if stream.input_source is None:
            stream.input_source = await self._records.content(command)
        if not stream.input_source:
            return await self._records.read_input(command, first)
        return _chunks(await self._contents.find(stream.input_source), first)

    def _send(
        self, session: Session, command: str, stream: GatewayStream, chunks: list[tuple[int, bytes, bool]]
    ) -> bool:
        """Send what the credit allows. Returns False if there is nothing more to send for now."""
        for number, payload, end in chunks:
            if number != stream.input_next:
                # An agent that was killed may come back without the input that it had consumed, and soon ends the
                # command. Sending this chunk in place of the one that is gone would change the input of the command.
                logger.warning(
                    "input %d of %s on %s is gone, because the agent had consumed it: the command gets no more input",
                    stream.input_next, command, session.agent,
                )  # fmt: skip
                stream.end_input()
                return False
            if len(payload) > stream.input_credit:
                return False
            if end:
                stream.end_input()
                session.send(End(id=command, total=stream.input_next))
                return False
            session.send(Chunk(id=command, n=stream.input_next, kind="stdin", payload=payload))
            self._terminals.input_sent(command, payload)
            stream.fed(len(payload))
        return True


def _chunks(content: bytes | None, first: int) -> list[tuple[int, bytes, bool]]:
    """The chunks of a content from number `first` on, then the end. Of one that is gone there is the end alone, and the
    agent sees that something is missing."""
    data = content or b""
    numbers = range(first, min(first + AT_ONCE, -(-len(data) // CHUNK_LIMIT)))
    chunks = [(n, data[n * CHUNK_LIMIT : (n + 1) * CHUNK_LIMIT], False) for n in numbers]
    last = first + len(chunks)
    return chunks if last * CHUNK_LIMIT < len(data) else [*chunks, (last, b"", True)]
