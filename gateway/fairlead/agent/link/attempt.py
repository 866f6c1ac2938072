"""How an attempt to hold a link ended and what follows from it, and the log of the reasons.

`connector` uses both. A reason is logged once and then only at level debug, until an hour has passed or a link was
welcomed: an outage of hours must not fill the disks of a fleet.
"""

from __future__ import annotations

import asyncio
import logging
import random
from dataclasses import dataclass

import msgspec

from fairlead.agent.link.session import AgentSession
from fairlead.errors import ConnectionRefused
from fairlead.repeated_lines import RepeatedLines
from fairlead.text import plain
from fairlead.wire.close_codes import describe, may_reconnect, meaning_of
from fairlead.wire.retry import after_refusal

logger = logging.getLogger("fairlead.agent")

MISCONFIGURED = (400, 401, 403, 407, 409, 426, 431)
"""HTTP statuses of refusals whose cause somebody has to correct."""


@dataclass(frozen=True, slots=True)
class AttemptEnd:
    reason: str
    delay: float | None = None
    """Milliseconds until the next attempt, if the gateway has specified them."""
    slow: bool = False
    """Whether somebody has to correct something first."""
    final: bool = False
    """Whether the agent must not connect again."""
    moved: bool = False
    """Whether the link was drained. Without a `delay` the link had been stable: this is not a failure, and the next
    attempt follows at once."""
    lived: float = 0.0
    """Seconds since welcome."""
    detail: str = ""
    """What the other end said. It is not part of the reason, because it may contain a number or a time."""


def end_of_refusal(e: ConnectionRefused, *, has_token: bool = True) -> AttemptEnd:
    """The connection or its upgrade was refused, or the agent's credential was, which is a token or something else."""
    delay = None
    if e.retry_after is not None:
        delay = after_refusal(e.retry_after, random.random())
    reason = plain(e.message)
    if e.status == 401 and has_token:
        reason += (
            ": the gateway does not accept the agent's token; correct it where the agent gets it from (a token_file is "
            "read again at each attempt)"
        )
    return AttemptEnd(reason, delay, slow=e.status in MISCONFIGURED, detail=_detail(e.body))


def end_of_session(session: AgentSession, lived: float) -> AttemptEnd:
    """The connection was closed; `lived` in seconds since welcome."""
    code, words = session.closed.result()
    said = plain(words)
    reason = f"the link closed with {describe(code)}" + (f": {said}" if said not in ("", meaning_of(code)) else "")
    if session.by_us:
        # The gateway violated the protocol or fell silent. Another node may run another version, so the agent tries
        # again.
        return AttemptEnd(reason, lived=lived)
    if not may_reconnect(code):
        return AttemptEnd(reason, final=True)
    delay = None
    if session.bye is not None and session.bye.retry is not None:
        delay = float(session.bye.retry)
    return AttemptEnd(reason, delay, lived=lived)


class AttemptLog:
    """Logs how attempts end."""

    def __init__(self) -> None:
        self._reasons = RepeatedLines()
        """The reasons since the last link, which say how loudly each is logged."""

    def welcomed(self) -> None:
        """A link was made, so every reason is logged again when it next occurs."""
        self._reasons.clear()

    def record(self, end: AttemptEnd, delay: float) -> str:
        """Log how an attempt ended, and that the next one follows in `delay` seconds. Returns the line for the
        service's status.
        """
        level = logging.WARNING if end.slow or not end.lived else logging.INFO
        level = self._reasons.level(end.reason, level, asyncio.get_running_loop().time())
        detail = f" ({end.detail})" if end.detail else ""
        when = f"in {delay:.1f} s" if delay >= 0.05 else "at once"
        logger.log(level, "%s%s; connecting again %s", end.reason, detail, when)
        return f"not linked: {end.reason}{detail}"


def _detail(body: bytes) -> str:
    """A refusal's body in one line: the detail of a problem document (RFC 9457), or the beginning of the body."""
    try:
        text = msgspec.json.decode(body, type=_RefusalBody).detail
    except (msgspec.MsgspecError, UnicodeDecodeError):
        text = body[:200].decode(errors="replace")
    return plain(" ".join(text.split()))[:300]


class _RefusalBody(msgspec.Struct):
    detail: str
