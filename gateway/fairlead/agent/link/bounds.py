"""Every number that a gateway sends, brought within the agent's own bounds before anything is done with it.

Called by the session for each message, before its state machine. A gateway may be defective or taken over: what it
asks for must not fill the agent's memory, hold its handlers for ever or leave it on a dead link. A number beyond its
bound is taken for the bound, so that an agent goes on serving a gateway that is only set oddly. The pace of reconnects
is bounded in `wire.retry`, the size of messages by the carrier, the input of a stream by its window.
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
"""Milliseconds: ten small messages a second are no load, and a gateway that wants more of them gains nothing."""
HEARTBEAT_MOST = 3_600_000
"""Milliseconds, the largest that a gateway can be set to: without a bound a dead link would be held for ever."""
MESSAGE_LEAST = 128 << 10
"""Bytes: the protocol promises so much. With less an agent could not tell its results."""
WINDOW_MOST = 64 << 20
"""Bytes, the largest that a gateway can be set to: so much of one stream may be kept in memory in each direction."""
DEADLINE_MOST = 86_400_000
"""Milliseconds, the longest that the platform's API takes: a handler must not hold its place for ever."""
SLOT_MOST = 3_600_000
"""Milliseconds until a drained link is left: no drain takes an hour."""


def bounded(message: FromGateway | None, outbox: Outbox) -> FromGateway | None:
    """`message`, or one like it with the largest numbers that are allowed; `outbox` tells what was granted before."""
    # By type and not by pattern: this is done for each message, and of most of them nothing is asked.
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
    room = WINDOW_MOST - stream.room if stream is not None else 0
    return credit if credit.bytes <= room else Credit(id=credit.id, bytes=max(0, room))


def _cmd(cmd: Cmd) -> Cmd:
    if cmd.deadline <= DEADLINE_MOST and cmd.credit <= WINDOW_MOST:
        return cmd
    return msgspec.structs.replace(cmd, deadline=min(cmd.deadline, DEADLINE_MOST), credit=min(cmd.credit, WINDOW_MOST))


def _limits(limits: Limits) -> Limits:
    """A chunk or window of few bytes is obeyed: output that trickles costs the gateway more than the agent."""
    return msgspec.structs.replace(
        limits,
        message=min(max(limits.message, MESSAGE_LEAST), MESSAGE_LIMIT),
        chunk=min(limits.chunk, CHUNK_LIMIT),
        window=min(limits.window, WINDOW_MOST),
    )
