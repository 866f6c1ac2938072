"""Translates a message of an agent into operations on its command's record: the arguments of an append.

The recorder calls it for each message of a batch. It uses neither the store nor a session. No other module knows both
the terms of the protocol and those of the record.
"""

from __future__ import annotations

from fairlead.fleet import commands
from fairlead.fleet.command_record import StoredEnd
from fairlead.fleet.schema import TargetState
from fairlead.store.reply import Arg
from fairlead.wire.messages import Ack, Chunk, End, Error

REFUSED = "refused"
"""The state of an Ack that ends its command, and the error code if the agent gave none."""
END_STATES = {
    "ok": TargetState.OK,
    "error": TargetState.FAILED,
    "cancelled": TargetState.CANCELLED,
    "timeout": TargetState.TIMEOUT,
}


def append_ops(message: Ack | Chunk | End) -> tuple[Arg, ...]:
    if isinstance(message, Chunk):
        return commands.data(message.n, message.kind, message.payload)
    if isinstance(message, End):
        error = message.error
        how = StoredEnd(payload=message.payload or None)
        if error is not None:
            how = _failure(error, message.payload)
        return commands.ending(message.total, END_STATES[message.state], how)
    if message.state == REFUSED:
        error = message.error
        how = StoredEnd(code=REFUSED, message="the agent refused the command")
        if error is not None:
            how = _failure(error)
        return commands.ending(0, TargetState.FAILED, how)
    return commands.accepted()


def error_code(message: Ack | End) -> str:
    """The code of the error with which the message ends its command, or "" if it has none."""
    if message.error is not None:
        return message.error.code
    return REFUSED if message.state == REFUSED else ""


def _failure(error: Error, payload: bytes = b"") -> StoredEnd:
    # JSON has integers of any size, MessagePack has not.
    details = {
        key: str(value) if isinstance(value, int) and not -(1 << 63) <= value < 1 << 64 else value
        for key, value in error.details.items()
    }
    return StoredEnd(payload or None, error.code, error.message, error.temporary, details)
