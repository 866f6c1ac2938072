"""What one agent has sent of one command, as the bulk recorder stores it beside that of others.

Most agents of a run answer with an ack, some output and an end, which came together. A `MessageBatch` could hold
anything, and takes twice as long to make. It does no I/O and reads no clock.
"""

from __future__ import annotations

from collections.abc import Sequence

from fairlead.fleet.batches.command_batches import SentSteps
from fairlead.hub.pending_messages import pending_size
from fairlead.hub.session import Session
from fairlead.routing.delivery.recording.append_ops import append_ops, error_code
from fairlead.store.reply import Arg
from fairlead.wire.messages import Ack, Chunk, End, FromAgent


class BulkAnswer:
    __slots__ = ("code", "messages", "pending", "sent", "session", "size")

    def __init__(self, session: Session, messages: Sequence[FromAgent | None], sent: SentSteps) -> None:
        self.session = session
        self.messages = messages
        self.sent = sent
        self.code = ""
        """That of the error with which the agent ended the command."""
        self.size = 0
        """The bytes of its results."""
        self.pending = 0
        """The bytes that the session counts as pending."""


def bulk_answer(session: Session, messages: Sequence[FromAgent | None]) -> BulkAnswer | None:
    """None if there are no messages, they are not all of one command, or some are of another kind."""
    if not messages:
        return None
    steps: list[Arg] = []
    command = getattr(messages[0], "id", "")
    answer = BulkAnswer(session, messages, SentSteps(command, session.agent, session.gen, steps))
    for message in messages:
        kind = type(message)  # the exact type, because isinstance takes three times as long
        if kind is Chunk:
            answer.size += len(message.payload)  # type: ignore[union-attr]
        elif kind is Ack or kind is End:
            answer.code = error_code(message)  # type: ignore[arg-type]
        else:
            return None
        if message.id != command:  # type: ignore[union-attr]
            return None
        steps += append_ops(message)  # type: ignore[arg-type]
        answer.pending += pending_size(message)
    return answer
