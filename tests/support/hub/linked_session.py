"""Sessions without a network: the connection notes what is done to it, and what comes waits to be stored."""

from __future__ import annotations

from collections.abc import Mapping

from fairlead.hub.session import Session
from fairlead.hub.session_context import SessionContext
from fairlead.hub.totals import Totals
from fairlead.telemetry.message_counters import MessageCounters
from fairlead.wire.codec import agent_codec, gateway_codec
from fairlead.wire.messages import SUBPROTOCOL_MSGPACK, Hello, Message

AGENT = agent_codec(SUBPROTOCOL_MSGPACK)
GATEWAY = gateway_codec(SUBPROTOCOL_MSGPACK)


class Wire:
    """The connection of a session, which only notes what is done to it."""

    def __init__(self) -> None:
        self.closing = self.congested = False
        self.reading = True
        self.sent: list[bytes | str] = []
        self.closed: list[int] = []
        self.charged = [0.0, 0]

    def send(self, message: bytes | str) -> None:
        self.sent.append(message)

    def close(self, code: int = 1000, reason: str = "") -> None:
        self.closed.append(code)

    def abort(self) -> None:
        raise AssertionError("nobody aborts here")

    def buffered(self) -> int:
        return 0

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def charge(self, messages: float = 0, events: int = 0) -> None:
        self.charged[0] += messages
        self.charged[1] += events


class SessionHandler:
    """Stores nothing until the test releases it."""

    def __init__(self, totals: Totals) -> None:
        self.message_counters = MessageCounters()
        self.totals = totals

    def link_opened(self, session: Session) -> None: ...

    def hello_received(self, session: Session, hello: Hello) -> None: ...

    def messages_pending(self, session: Session) -> None: ...

    def input_credit_received(self, session: Session, command: str) -> None: ...

    def facts_changed(self, session: Session, changes: Mapping[str, str | None]) -> None: ...

    def rtt_reported(self, session: Session, rtt_ms: float) -> None: ...

    def link_closed(self, session: Session, code: int, reason: str, by_gateway: bool) -> None: ...


def greeted(totals: Totals, name: str = "a") -> tuple[Session, Wire]:
    """A session whose hello has come and whose claim is under way."""
    session, wire = Session(SessionContext(GATEWAY, SessionHandler(totals), 1 << 18)), Wire()
    session.on_open(wire)
    feed_message(session, wire, Hello(agent=name, boot="b", conn=1))
    session.agent = name
    return session, wire


def linked(totals: Totals, name: str = "a") -> tuple[Session, Wire]:
    """A session that was welcomed."""
    session, wire = greeted(totals, name)
    session.welcomed()
    return session, wire


def feed_message(session: Session, wire: Wire, message: Message) -> None:
    session.on_message(wire, AGENT.encode(message))
