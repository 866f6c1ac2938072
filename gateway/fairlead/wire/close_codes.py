"""The close codes of a link: the one table of what each code means and what follows from it.

Both ends send these codes. The agent's connector, the telemetry of the gateway, the load swarm, the dashboards and the
alerts read this table, and a test compares it with the table in docs/protocol.md. A code's number tells whether the
agent reconnects, so that an end that does not know a code still does the right thing: 4000 to 4499 mean reconnect (by
the policy of `welcome`, or at the slot that `drain` or `bye` named), 4500 to 4999 mean stay away, because the gateway
would refuse the same hello again. Codes below 4000 are those of RFC 6455 and mean reconnect.
"""

from __future__ import annotations

from enum import Enum, IntEnum
from typing import Final, Self

STAY_AWAY: Final = 4500
"""The first code after which an agent does not reconnect."""


class CloseKind(Enum):
    """Why a link ended."""

    LEFT = "left"
    """One end left on purpose."""
    MOVED = "moved"
    """The gateway asked the agent to connect again."""
    REPLACED = "replaced"
    """A newer link of the same agent took its place."""
    LOST = "lost"
    """Neither end wanted the link to end. Dashboards and the objective for lost links count these codes."""
    FAULT = "fault"
    """One end did not accept what the other one sent, or the peer gave no code."""


class CloseCode(IntEnum):
    """RFC 6455 section 7.4.1 defines the codes below 4000; section 7.4.2 leaves 4000 to 4999 to private use.

    Each member has its number, its kind and its meaning, which is at most 123 bytes long to fit into a close frame.
    """

    kind: CloseKind
    meaning: str

    def __new__(cls, code: int, kind: CloseKind, meaning: str) -> Self:
        member = int.__new__(cls, code)
        member._value_ = code
        member.kind = kind
        member.meaning = meaning
        return member

    NORMAL = 1000, CloseKind.LEFT, "closed on purpose"
    GOING_AWAY = 1001, CloseKind.LEFT, "the process is shutting down"
    FRAMING = 1002, CloseKind.FAULT, "the peer violated RFC 6455"
    UNSUPPORTED = 1003, CloseKind.FAULT, "the peer does not accept this kind of data"
    NO_STATUS = 1005, CloseKind.FAULT, "closed without a code"
    ABNORMAL = 1006, CloseKind.LOST, "the connection was lost without a close frame"
    NOT_UTF8 = 1007, CloseKind.FAULT, "a text message was not UTF-8"
    FRAME_TOO_BIG = 1009, CloseKind.FAULT, "a message was larger than the limit"
    INTERNAL = 1011, CloseKind.LOST, "an internal error of the gateway"
    SERVICE_RESTART = 1012, CloseKind.MOVED, "the process is restarting"
    TRY_AGAIN_LATER = 1013, CloseKind.FAULT, "the peer is overloaded"

    RESTART = 4000, CloseKind.MOVED, "the node is restarting: reconnect"
    BUS_AWAY = 4003, CloseKind.LOST, "the node lost Redis for too long: reconnect"
    DISCONNECTED = 4004, CloseKind.MOVED, "disconnected by the platform: reconnect"
    EXPIRED = 4006, CloseKind.MOVED, "the agent's credential has expired: reconnect with a new one"
    SUPERSEDED = 4007, CloseKind.REPLACED, "superseded by a newer attempt of the same process"
    SILENT = 4008, CloseKind.LOST, "nothing was heard for 2.5 heartbeats"
    CONTESTED = 4009, CloseKind.FAULT, "another copy of this agent has the link: reconnect later"
    SLOW_READER = 4408, CloseKind.LOST, "the agent does not read what it is sent"
    RATE = 4413, CloseKind.FAULT, "more was sent than the limits allow"

    PROTOCOL = 4500, CloseKind.FAULT, "the link protocol was violated"
    ENCODING = 4501, CloseKind.FAULT, "text on a binary link, or binary on a text link"
    IDENTITY = 4503, CloseKind.FAULT, "the id does not belong to this agent"
    REVOKED = 4504, CloseKind.FAULT, "the agent's key was revoked: release the id, then enrol with a new key"
    TOO_BIG = 4506, CloseKind.FAULT, "a message or field was larger than the limit"
    REPLACED = 4507, CloseKind.REPLACED, "replaced by another start of the same agent"


def find_close_code(code: int) -> CloseCode | None:
    """The member with the number `code`; None for a code that is not in this table, as an agent may send."""
    return _BY_NUMBER.get(code)


_BY_NUMBER: Final[dict[int, CloseCode]] = {code.value: code for code in CloseCode}


def may_reconnect(code: int) -> bool:
    """Whether an agent whose link was closed with `code` connects again by itself."""
    return code < STAY_AWAY


def was_orderly(code: int) -> bool:
    """Whether one end wanted the link to end: such a close is not a failure."""
    found = find_close_code(code)
    return found is not None and found.kind in (CloseKind.LEFT, CloseKind.MOVED, CloseKind.REPLACED)


def meaning_of(code: int, otherwise: str = "unknown close code") -> str:
    """The meaning of `code` in words; `otherwise` for a code that is not in this table."""
    found = find_close_code(code)
    return otherwise if found is None else found.meaning


def describe(code: int) -> str:
    """The number and its meaning, for people: `4000 (the node is restarting: reconnect)`."""
    return f"{code} ({meaning_of(code)})"
