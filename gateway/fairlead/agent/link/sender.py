"""The way out to the gateway, which outlives links: what is written goes to the link there is, or waits for the next.

Commands and `Agent.emit` write to it; the connector attaches and detaches sessions. What must not be lost stands in
the outbox before it is sent, and in the journal before that if there is one; what may be lost (acks, credit, events
of qos 0) goes only over an open link.
"""

from __future__ import annotations

import logging
from typing import Protocol

from fairlead.agent.errors import JournalFailed
from fairlead.agent.journal.journal import Journal
from fairlead.agent.journal.records import Accepted
from fairlead.errors import Unavailable
from fairlead.wire.agent_link import AgentLink
from fairlead.wire.messages import (
    SUBPROTOCOL_JSON,
    Error,
    Event,
    Limits,
    Message,
    Numbered,
    Welcome,
    payload_limit,
)
from fairlead.wire.outbox import Outbox

logger = logging.getLogger("fairlead.agent")

EVENTS = 1_000
"""Events not stored yet: above it `emit` fails rather than grow. More than a host has to say during an outage."""


def too_large(size: int, limit: int) -> Error:
    """What is sent in place of a result that fits no message."""
    return Error(
        code="result_too_large",
        message=f"the result of {size} bytes exceeds max {limit}: the handler must yield it in pieces",
    )


class LinkWriter(Protocol):
    """What the outlet uses of a session."""

    link: AgentLink

    def post(self, message: Numbered) -> None:
        """Write it in its turn."""

    def tell(self, message: Message) -> None:
        """Write it now."""

    @property
    def congested(self) -> bool: ...

    @property
    def subprotocol(self) -> str: ...


class Sender:
    def __init__(self) -> None:
        self.outbox = Outbox()
        self.limits = Limits()
        self._subprotocol = SUBPROTOCOL_JSON  # which takes less, while there was no link yet
        self.session = ""
        """The id of the newest link's session."""
        self._way: LinkWriter | None = None
        self._journal: Journal | None = None

    def remember(self, journal: Journal) -> list[Accepted]:
        """Go on from a journal; returns the commands that may begin again."""
        waiting = self.outbox.events
        self._journal, self.outbox = journal, Outbox(journal)
        again = journal.restore(self.outbox)
        for event in waiting.values():  # emitted before the agent served
            if event.id not in self.outbox.events:
                try:
                    self.outbox.occurred(event)
                except JournalFailed as e:
                    logger.error("event %s of type %s is lost: %s", event.id, event.type, e.message)
        return again

    def forget(self) -> None:
        """The journal is closed: what it holds comes back with `remember`."""
        self._journal, self.outbox = None, Outbox()

    @property
    def has_room(self) -> bool:
        """Whether chunks may be made, as far as the journal is asked."""
        return self._journal is None or self._journal.has_room

    @property
    def chunk_limit(self) -> int:
        """Half a window at most: the gateway grants in halves, so a larger chunk might wait for ever."""
        return max(1, min(self.limits.chunk, self.limits.window // 2))

    @property
    def payload_limit(self) -> int:
        """Bytes of the payload of one end or event, on the newest link."""
        return payload_limit(self._subprotocol, self.limits.message)

    def attach(self, way: LinkWriter, welcome: Welcome) -> list[str]:
        """`way` is open from now on; returns the commands that cannot go on."""
        self.limits, self.session = welcome.limits, welcome.sid
        self._subprotocol = way.subprotocol
        for stream in self.outbox.streams.values():  # made for a link that took larger messages
            if (size := stream.result_size) > self.payload_limit:
                stream.replace_end(too_large(size, self.payload_limit))
        lost, again = way.link.resend(welcome)
        self._way = way
        for message in again:
            if isinstance(message, Event) and len(message.payload) > self.payload_limit:
                logger.warning("event %s of type %s is too large for this link: it waits", message.id, message.type)
            else:
                way.post(message)
        return lost

    def detach(self) -> None:
        """There is no link until the next `attach`."""
        self._way = None

    def post(self, message: Numbered) -> None:
        """Send something that stands in the outbox, in its turn."""
        if self._way is not None:
            self._way.post(message)

    def tell(self, message: Message) -> None:
        """Send something small at once, or not at all."""
        if self._way is not None:
            self._way.tell(message)

    def emit(self, event: Event) -> None:
        """Raises Unavailable when too many events wait or the journal cannot keep this one, ValueError when it is too
        large.
        """
        if len(event.payload) > self.payload_limit:
            raise ValueError(f"event of {len(event.payload)} bytes exceeds max {self.payload_limit}")
        if event.qos == 0:
            if self._way is not None and not self._way.congested:
                self._way.post(event)
            return
        if len(self.outbox.events) >= EVENTS:
            raise Unavailable(f"{EVENTS} events wait to be stored, the limit: wait, or drop some")
        self.outbox.occurred(event)
        self.post(event)

    @property
    def linked(self) -> bool:
        return self._way is not None

    @property
    def empty(self) -> bool:
        """All results and events are stored."""
        return not self.outbox.streams and not self.outbox.events
