"""Sends to the gateway, across links: messages go out on the present link, or wait for the next one.

`CommandRunner` and `Agent.emit` send with it; the connector attaches and detaches sessions. It uses one link at a time,
even while the agent moves: the old one until the new one is welcomed. What must not be lost is written to the journal,
if there is one, and to the outbox before it is sent. What may be lost (acks, credit, events of qos 0) goes out only on
an open link.
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
    Credit,
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

EVENT_LIMIT = 1_000
"""Maximum number of events that are not stored yet: beyond it `emit` fails. It is more than a host has to report during
an outage."""


def too_large(size: int, limit: int) -> Error:
    """The error that is sent in place of a result that does not fit into a message."""
    return Error(
        code="result_too_large",
        message=f"the result of {size} bytes exceeds max {limit}: the handler must yield it in pieces",
    )


class LinkWriter(Protocol):
    """What the sender uses of a session."""

    link: AgentLink

    def post(self, message: Numbered) -> None:
        """Write it after what was posted before."""

    def send_now(self, message: Message) -> None:
        """Write it immediately."""

    @property
    def congested(self) -> bool: ...

    @property
    def subprotocol(self) -> str: ...


class Sender:
    def __init__(self) -> None:
        self.outbox = Outbox()
        self.limits = Limits()
        self._subprotocol = SUBPROTOCOL_JSON  # until there is a link: in JSON less payload fits into a message
        self.session = ""
        """The id of the newest link's session."""
        self._writer: LinkWriter | None = None
        self._withholding = False
        """Whether credit for input is withheld: see `withhold_credit`."""
        self._journal: Journal | None = None

    def use_journal(self, journal: Journal) -> list[Accepted]:
        """Continue from a journal; returns the commands that may begin again."""
        waiting = self.outbox.events
        self._journal, self.outbox = journal, Outbox(journal)
        restartable = journal.restore(self.outbox)
        for event in waiting.values():  # emitted before the agent served
            if event.id not in self.outbox.events:
                try:
                    self.outbox.occurred(event)
                except JournalFailed as e:
                    logger.error("event %s of type %s is lost: %s", event.id, event.type, e.message)
        return restartable

    def drop_journal(self) -> None:
        """Forget the journal, which is closed: what it contains comes back with `use_journal`."""
        self._journal, self.outbox = None, Outbox()

    @property
    def has_room(self) -> bool:
        """Whether the journal, if there is one, has room for output."""
        return self._journal is None or self._journal.has_room

    @property
    def chunk_limit(self) -> int:
        """The maximum size of a chunk in bytes. It is at most half a window: the gateway grants credit in halves, so a
        larger chunk might wait for ever.
        """
        return max(1, min(self.limits.chunk, self.limits.window // 2))

    @property
    def payload_limit(self) -> int:
        """The maximum size of the payload of one end or event, in bytes, on the newest link."""
        return payload_limit(self._subprotocol, self.limits.message)

    def attach(self, writer: LinkWriter, welcome: Welcome) -> list[str]:
        """Send on `writer`, which was welcomed, from now on; first whatever is not stored yet. Returns the commands
        that are lost.
        """
        self.limits, self.session = welcome.limits, welcome.sid
        self._subprotocol = writer.subprotocol
        for stream in self.outbox.streams.values():  # results that were made for a link with larger messages
            if (size := stream.result_size) > self.payload_limit:
                stream.replace_end(too_large(size, self.payload_limit))
        lost, unstored = writer.link.resend(welcome)
        self._writer, self._withholding = writer, False
        for message in unstored:
            if isinstance(message, Event) and len(message.payload) > self.payload_limit:
                logger.warning(
                    "event %s of type %s is too large for this link: it waits for one that takes larger messages",
                    message.id,
                    message.type,
                )
            else:
                writer.post(message)
        return lost

    def detach(self, writer: LinkWriter) -> None:
        """The link of `writer` has closed. If it was the link in use, messages wait for the next `attach`."""
        if self._writer is writer:
            self._writer = None

    def withhold_credit(self) -> None:
        """Stop granting input on the link in use: the hello on a new link has named the input that the agent wants
        there, and the gateway forgets what was granted before.
        """
        self._withholding = True

    def release_credit(self) -> None:
        """Grant the input that was withheld: the new link was not welcomed, so the old one stays in use."""
        if not self._withholding:
            return
        self._withholding = False
        for stream in self.outbox.streams.values():
            if (credit := stream.settle()) is not None:
                self.send_now(credit)

    def post(self, message: Numbered) -> None:
        """Send a message of the outbox, after what was posted before."""
        if self._writer is not None:
            self._writer.post(message)

    def send_now(self, message: Message) -> None:
        """Send a small message immediately, or not at all without a link. Credit that is withheld is sent later."""
        if self._withholding and isinstance(message, Credit):
            if (stream := self.outbox.streams.get(message.id)) is not None:
                stream.unsettled(message.bytes)
        elif self._writer is not None:
            self._writer.send_now(message)

    def emit(self, event: Event) -> None:
        """Keep an event and send it. Raises Unavailable if too many events are waiting or the journal cannot keep this
        one, and ValueError if it is too large.
        """
        if len(event.payload) > self.payload_limit:
            raise ValueError(f"event of {len(event.payload)} bytes exceeds max {self.payload_limit}")
        if event.qos == 0:
            if self._writer is not None and not self._writer.congested:
                self._writer.post(event)
            return
        if len(self.outbox.events) >= EVENT_LIMIT:
            raise Unavailable(f"{EVENT_LIMIT} events wait to be stored, the limit: wait, or drop some")
        self.outbox.occurred(event)
        self.post(event)

    @property
    def linked(self) -> bool:
        return self._writer is not None

    @property
    def empty(self) -> bool:
        """Whether all results and events are stored."""
        return not self.outbox.streams and not self.outbox.events
