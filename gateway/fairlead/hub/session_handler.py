"""What a session needs from others, as protocols: the carrier's connection below it and the handler above it.

The carrier and `routing` provide them, so that the hub depends on neither.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from fairlead.hub.totals import Totals
from fairlead.telemetry.message_counters import MessageCounters
from fairlead.wire.messages import Hello

if TYPE_CHECKING:
    from fairlead.hub.session import Session


class SessionConnection(Protocol):
    """The part of the carrier's connection that a session uses."""

    @property
    def closing(self) -> bool: ...
    def send(self, message: bytes | str) -> None: ...
    def close(self, code: int = 1000, reason: str = "") -> None: ...
    def abort(self) -> None: ...
    @property
    def congested(self) -> bool: ...
    def buffered(self) -> int: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def charge(self, messages: float = 0, events: int = 0) -> None: ...


class SessionHandler(Protocol):
    """Handles what happens on sessions. Called on the event loop; must not block."""

    message_counters: MessageCounters
    """Counts the messages of this node."""
    totals: Totals
    """The sums over all sessions of this node."""

    def link_opened(self, session: Session) -> None:
        """The WebSocket is open. The session expects hello."""

    def hello_received(self, session: Session, hello: Hello) -> None:
        """The agent said hello: claim it, then welcome it."""

    def messages_pending(self, session: Session) -> None:
        """The session has messages to store, and no task stores them yet."""

    def input_credit_received(self, session: Session, command: str) -> None:
        """The agent has consumed input of `command` and takes more."""

    def facts_changed(self, session: Session, changes: Mapping[str, str | None]) -> None:
        """The agent told new values of facts, None for those that are gone."""

    def rtt_reported(self, session: Session, rtt_ms: float) -> None:
        """The agent reported its last round trip."""

    def link_closed(self, session: Session, code: int, reason: str, by_gateway: bool) -> None:
        """The connection is over. `by_gateway` says that this end closed it, not the agent or the network. This is the
        last call for the session."""
