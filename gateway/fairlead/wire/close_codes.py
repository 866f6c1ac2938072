"""Close codes of a link: the number's range says what the agent does next.

Both sides send them, the agent's reconnect loop and the documentation read them. 4000–4499 mean reconnect (by the
policy of `welcome`, or at the slot that `drain` or `bye` named); 4500–4999 mean do not: the same hello would be
refused again. Codes below 4000 are RFC 6455's own and mean reconnect.
"""

from __future__ import annotations

from enum import IntEnum


class CloseCode(IntEnum):
    """The codes in use. RFC 6455 §7.4.1 for 1xxx, ours for 4xxx (its private range, §7.4.2)."""

    NORMAL = 1000
    GOING_AWAY = 1001
    FRAMING = 1002
    UNSUPPORTED = 1003
    NO_STATUS = 1005
    ABNORMAL = 1006
    NOT_UTF8 = 1007
    FRAME_TOO_BIG = 1009
    INTERNAL = 1011
    SERVICE_RESTART = 1012
    TRY_AGAIN_LATER = 1013

    RESTART = 4000
    REBALANCE = 4001
    AGE = 4002
    BUS_AWAY = 4003
    DISCONNECTED = 4004
    SUPERSEDED = 4007
    SILENT = 4008
    SLOW_READER = 4408
    RATE = 4413
    FULL = 4429

    PROTOCOL = 4500
    ENCODING = 4501
    VERSION_RETIRED = 4502
    TOKEN_REFUSED = 4503
    IDENTITY_CONFLICT = 4504
    REVOKED = 4505
    TOO_BIG = 4506
    REPLACED = 4507


MEANING: dict[int, str] = {
    CloseCode.NORMAL: "closed on purpose",
    CloseCode.GOING_AWAY: "the process went away",
    CloseCode.FRAMING: "RFC 6455 was violated",
    CloseCode.UNSUPPORTED: "a kind of data that is not accepted",
    CloseCode.NO_STATUS: "closed without a code",
    CloseCode.ABNORMAL: "the connection was lost without a close frame",
    CloseCode.NOT_UTF8: "a text message was not UTF-8",
    CloseCode.FRAME_TOO_BIG: "a message was larger than the limit",
    CloseCode.INTERNAL: "an internal error of the gateway",
    CloseCode.SERVICE_RESTART: "the process restarts",
    CloseCode.TRY_AGAIN_LATER: "the peer is overloaded",
    CloseCode.RESTART: "the node restarts: reconnect",
    CloseCode.REBALANCE: "the node has more than its share: reconnect",
    CloseCode.AGE: "the link reached its greatest age: reconnect",
    CloseCode.BUS_AWAY: "the node has lost Redis for too long: reconnect",
    CloseCode.DISCONNECTED: "disconnected by the platform: reconnect",
    CloseCode.SUPERSEDED: "superseded by a newer attempt of the same process",
    CloseCode.SILENT: "nothing was heard for 2.5 heartbeats",
    CloseCode.SLOW_READER: "the agent does not read what it is sent",
    CloseCode.RATE: "more was sent than the limits allow",
    CloseCode.FULL: "the node is full: reconnect",
    CloseCode.PROTOCOL: "the link protocol was violated",
    CloseCode.ENCODING: "text on a binary link, or binary on a text link",
    CloseCode.VERSION_RETIRED: "this version of the protocol is no longer served",
    CloseCode.TOKEN_REFUSED: "the credential is no longer accepted",
    CloseCode.IDENTITY_CONFLICT: "two machines use this identity",
    CloseCode.REVOKED: "the agent was revoked",
    CloseCode.TOO_BIG: "a message or field was larger than the limit",
    CloseCode.REPLACED: "replaced by another start of the same agent",
}


def may_reconnect(code: int) -> bool:
    """Whether an agent closed with `code` comes back by itself."""
    return code < CloseCode.PROTOCOL


def describe(code: int) -> str:
    """`code` in words, for people; unknown codes are named as such."""
    return f"{code} ({MEANING.get(code, 'unknown close code')})"
