"""Limits every number that a gateway sends to the agent's own bounds, before it is used.

The session calls it for each message, before the state machine. A gateway may be defective or compromised: what it
requests must not fill the agent's memory, occupy its handlers for ever or leave it on a dead link. A number beyond its
bound is replaced with the bound, so that an agent still serves a gateway whose configuration is merely unusual. The
pace of reconnects is bounded in `wire.retry`, the size of messages by the carrier, and the input of a stream by its
window.
"""

from __future__ import annotations

from typing import cast

import msgspec

from fairlead.wire.messages import (
    CHUNK_LIMIT,
    MESSAGE_LIMIT,
    Cmd,
    Credit,
    Drain,
    FromGateway,
    Limits,
    Welcome,
)
from fairlead.wire.outbox import Outbox

HEARTBEAT_LEAST = 100
"""The shortest heartbeat interval in ms: ten small messages a second are no load for an agent, and no gateway needs
more."""
HEARTBEAT_MOST = 3_600_000
"""The longest heartbeat interval in ms, which is also the largest that a gateway accepts as a setting. Without a bound,
a dead link would be held for ever."""
MESSAGE_LEAST = 128 << 10
"""The smallest message limit in bytes, which the protocol guarantees. With less, an agent could not send its
results."""
WINDOW_MOST = 64 << 20
"""The largest window in bytes, which is also the largest that a gateway accepts as a setting. One stream keeps as much
in memory in each direction."""
DEADLINE_MOST = 86_400_000
"""The longest deadline in ms, which is also the longest that the platform's API accepts. A handler must not occupy its
slot for ever."""
SLOT_MOST = 3_600_000
"""The latest slot in ms at which the agent leaves a drained link: no drain takes an hour."""


def bounded(message: FromGateway | None, outbox: Outbox) -> FromGateway | None:
    """`message`, or a copy with its numbers within their bounds. `outbox` has the credit that was granted before."""
    # Compares types and uses no pattern matching: this runs for each message, and most messages have nothing to bound.
    kind = type(message)
    if kind is Credit:
        return _credit(cast(Credit, message), outbox)
    if kind is Cmd:
        return _cmd(cast(Cmd, message))
    if kind is Welcome:
        welcome = cast(Welcome, message)
        hb = min(max(welcome.hb, HEARTBEAT_LEAST), HEARTBEAT_MOST)
        return msgspec.structs.replace(welcome, hb=hb, limits=_limits(welcome.limits))
    if kind is Drain and cast(Drain, message).slot > SLOT_MOST:
        return msgspec.structs.replace(cast(Drain, message), slot=SLOT_MOST)
    return message


def _credit(credit: Credit, outbox: Outbox) -> Credit:
    stream = outbox.streams.get(credit.id)
    allowed = WINDOW_MOST - stream.credit_left if stream is not None else 0
    return credit if credit.bytes <= allowed else Credit(id=credit.id, bytes=max(0, allowed))


def _cmd(cmd: Cmd) -> Cmd:
    if cmd.deadline <= DEADLINE_MOST and cmd.credit <= WINDOW_MOST:
        return cmd
    return msgspec.structs.replace(cmd, deadline=min(cmd.deadline, DEADLINE_MOST), credit=min(cmd.credit, WINDOW_MOST))


def _limits(limits: Limits) -> Limits:
    """A very small chunk or window is accepted: slow output costs the gateway more than the agent."""
    return msgspec.structs.replace(
        limits,
        message=min(max(limits.message, MESSAGE_LEAST), MESSAGE_LIMIT),
        chunk=min(limits.chunk, CHUNK_LIMIT),
        window=min(limits.window, WINDOW_MOST),
    )
