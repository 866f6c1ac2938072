"""Sends the input of commands from Redis to the agent, as far as the agent's credit goes.

Called when a doorbell announces new input, when the agent grants credit, and when a command is sent or taken over. One
task for each command reads and sends; input that the agent has consumed is dropped from Redis.
"""

from __future__ import annotations

import logging

from fairlead.errors import BusUnavailable
from fairlead.hub.session import Session
from fairlead.routing.background_tasks import BackgroundTasks
from fairlead.routing.delivery.terminal_recorder import TerminalRecorder
from fairlead.routing.fleet_store import FleetStore
from fairlead.routing.timeouts import wait_for_redis
from fairlead.wire.gateway_stream import GatewayStream
from fairlead.wire.messages import Chunk, End

logger = logging.getLogger(__name__)


class InputDelivery:
    def __init__(self, fleet: FleetStore, terminals: TerminalRecorder, tasks: BackgroundTasks, timeout: float) -> None:
        """`timeout` is the number of seconds without reading after which an agent is too slow."""
        self._store = fleet.store
        self._records = fleet.records
        self._terminals = terminals
        self._tasks = tasks
        self._timeout = timeout

    def credit_received(self, session: Session, command: str) -> None:
        """Drop the input that the agent has consumed from Redis, and send more."""
        stream = session.stream(command)
        if stream is None:
            return
        if consumed := stream.take_consumed():
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
                    chunks = await self._records.read_input(command, first)
                except BusUnavailable as e:
                    logger.debug("input of %s waits for Redis: %s", command, e)
                    stream.reading_failed()
                    await wait_for_redis(self._store, self._timeout)
                    continue
                if not self._send(session, command, stream, chunks):
                    return
        finally:
            stream.end_feeding()

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
