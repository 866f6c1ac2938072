"""One simulated agent: a listener of the carrier, small enough that a process can have ten thousand.

Made by the pool, which connects it and visits it twice in each heartbeat interval; an idle agent has no task and no
timer. It keeps to the protocol as a real one does: hello first, heartbeats when it was silent, receipts. When it is
drained it moves: it opens its next connection first and uses the old one until that is welcomed. Only its profile makes
it deviate, and only after welcome.
"""

from __future__ import annotations

import random
import time

from fairlead.carrier.listener import Connection
from fairlead.errors import ProtocolViolation
from fairlead.swarm.agents.owner import SimulatedAgentOwner
from fairlead.swarm.agents.simulated_commands import SimulatedCommands
from fairlead.swarm.counters import Counters
from fairlead.swarm.profile import Profile
from fairlead.wire.close_codes import CloseCode
from fairlead.wire.codec import Codec
from fairlead.wire.messages import Bye, Cmd, Drain, Event, FromGateway, Hb, Message, Rx, Welcome

WELCOME_TIMEOUT = 30.0
"""Seconds from hello to welcome that the protocol asks an agent to wait."""
HALF_OPEN = 3.5
"""Heartbeat intervals after which the gateway must have ended a silent, half-open link: the protocol says 2.5, and a
quarter longer at most; the rest allows for the gateway's load."""
GRACE = 10.0
"""Seconds for which a half-open agent then reads, after which its link counts as not noticed by the gateway."""
SLOW_BUFFER = 8 << 10
"""Bytes of a slow reader's receive buffer: the system's default holds megabytes, which would hide the slowness."""


class SimulatedAgent:
    __slots__ = (
        "commands",
        "connection",
        "has_sent",
        "number",
        "pool",
        "profile",
        "since",
        "welcomed",
    )  # fmt: skip

    def __init__(self, pool: SimulatedAgentOwner[SimulatedAgent], number: int, profile: Profile) -> None:
        self.pool = pool
        self.number = number
        self.profile = profile
        self.connection: Connection | None = None
        """The connection in use. While the agent moves, this is the old one until the next one is welcomed."""
        self.since = 0.0
        """When it was welcomed."""
        self.welcomed = False
        self.has_sent = False
        self.commands: SimulatedCommands | None = None

    @property
    def name(self) -> str:
        return f"{self.pool.options.prefix}-{self.number}"

    # -- called by its commands ----------------------------------------------------------------------

    @property
    def codec(self) -> Codec[FromGateway]:
        return self.pool.codec

    @property
    def counters(self) -> Counters:
        return self.pool.counters

    @property
    def output(self) -> int:
        options = self.pool.options
        return options.chatty_output if self.profile is Profile.CHATTY else options.output

    # -- called by the pool --------------------------------------------------------------------------

    def visit(self, now: float, *, listening: bool) -> None:
        """Send a heartbeat if nothing was sent since the last visit, and act on timeouts. With `listening`, also check
        for how long nothing was received.
        """
        if listening:
            for connection in (self.connection, self._next):
                if connection is not None:
                    self.pool.listen(connection)
        if self.connection is None:
            return
        asked = self.pool.unwelcomed.asked.get(self.number)
        is_late = asked is not None and now - asked > WELCOME_TIMEOUT
        if is_late and self._next is not None:
            self._leave_next(CloseCode.NORMAL, "no welcome in time")
            self.pool.refused(self, "no welcome", f"no welcome within {WELCOME_TIMEOUT:g} s", now)
        if not self.welcomed:
            if is_late:
                self.leave(CloseCode.NORMAL, "no welcome in time")
                self.pool.refused(self, "no welcome", f"no welcome within {WELCOME_TIMEOUT:g} s", now)
                return
        elif self.profile is Profile.HALF_OPEN:
            self._stay_half_open(self.connection, now)
            return
        if self.has_sent:
            self.has_sent = False
        else:
            self.counters.heartbeats += 1
            self._send(Hb(ts=int(now * 1_000_000)))

    def leave(self, code: int, why: str) -> None:
        """Say bye and close; whatever still arrives is ignored."""
        connection, self.connection = self.connection, None
        self._say_bye(connection, code, why)
        self._leave_next(code, why)

    def drop(self) -> None:
        """Drop the connection without a close frame. An agent that moves continues with its next one."""
        connection = self.connection
        self._lose()
        if connection is not None:
            connection.abort()

    @property
    def _next(self) -> Connection | None:
        """The next connection of an agent that moves, on which it has said hello."""
        return self.pool.unwelcomed.next.get(self.number)

    def _take_next(self) -> Connection | None:
        return self.pool.unwelcomed.next.pop(self.number, None)

    def _leave_next(self, code: int, why: str) -> None:
        self._say_bye(self._take_next(), code, why)

    def _say_bye(self, connection: Connection | None, code: int, why: str) -> None:
        if connection is not None and not connection.closing:
            connection.send(self.codec.encode(Bye(code=code, why=why)))
            connection.close(code, why)

    def _lose(self) -> None:
        """The connection in use is gone. The next one, if any, replaces it and still waits for its welcome."""
        self.connection = self._take_next()
        self._unwelcome()

    def emit(self) -> None:
        """Send an event of a chatty agent; the next one is scheduled."""
        if self.pool.stopping:
            return
        every = self.pool.options.event_every
        self.pool.loop.call_later(random.uniform(0.5, 1.5) * every, self.emit)
        if self.welcomed:
            self._with_commands().emit(Event(id=self.pool.event_id(), type="swarm.tick", payload=b'{"load":0.42}'))

    def _stay_half_open(self, connection: Connection, now: float) -> None:
        asked = self.pool.unwelcomed.asked.get(self.number)
        if asked is None:
            if now - self.since > HALF_OPEN * self.pool.heartbeat:
                self.pool.unwelcomed.asked[self.number] = now
                connection.resume_reading()  # now read what the gateway has sent meanwhile
        elif now - asked > GRACE:
            self.counters.half_open_unnoticed += 1
            self.drop()
            self.pool.reconnect(self, now)

    def _with_commands(self) -> SimulatedCommands:
        if self.commands is None:
            self.commands = SimulatedCommands(self, window=self.pool.window, ready=self.welcomed)
        return self.commands

    def _send(self, message: Message) -> None:
        self.has_sent = True
        if self.connection is not None:
            self.connection.send(self.codec.encode(message))

    # -- the carrier's listener ----------------------------------------------------------------------

    def on_open(self, connection: Connection) -> None:
        unwelcomed = self.pool.unwelcomed
        unwelcomed.asked[self.number] = self.pool.opened(self)
        have = self.commands.outbox.have() if self.commands is not None else {}
        if self.connection is not None:
            unwelcomed.next[self.number] = connection
        else:
            self.connection = connection
            self._unwelcome()
        self.has_sent = True
        connection.send(self.codec.encode(self.pool.hello(self, have)))

    def on_message(self, connection: Connection, data: bytes | str) -> None:
        in_use = connection is self.connection
        if not in_use and connection is not self._next:
            return  # it was left
        if self.welcomed and self.profile is Profile.HALF_OPEN:
            return
        try:
            message = self.codec.decode(data)
            if in_use:
                self._receive(connection, message)
            else:
                self._receive_on_next(connection, message)
        except ProtocolViolation as violation:
            was_welcomed = self.welcomed and connection is self.connection
            if connection is self._next:
                self._take_next()
            else:
                self._lose()
            connection.close(violation.close_code, violation.message)
            self.pool.violated(self, was_welcomed)

    def _receive_on_next(self, connection: Connection, message: FromGateway | None) -> None:
        if not isinstance(message, Welcome):
            if not isinstance(message, Hb | Bye | None):
                raise ProtocolViolation(CloseCode.PROTOCOL, "expected nothing but hb and bye until welcome")
            return
        old, self.connection = self.connection, self._take_next()
        self._unwelcome()
        self._receive(connection, message)
        self.counters.moved += 1
        self._say_bye(old, CloseCode.NORMAL, "moved to a new link")

    def _unwelcome(self) -> None:
        """`connection` is new."""
        self.counters.linked -= self.welcomed
        self.welcomed = False
        if self.commands is not None:
            self.commands.relink()

    def _receive(self, connection: Connection, message: FromGateway | None) -> None:
        if isinstance(message, Welcome):
            # The commands check first, because they can distinguish a second welcome from the first.
            if self.commands is not None:
                self.commands.receive(message)
            elif self.welcomed:
                raise ProtocolViolation(CloseCode.PROTOCOL, "second welcome: expected one on each link")
            self._welcomed(connection, message)
        elif isinstance(message, Hb):
            if message.echo is not None:
                self.pool.echoed(self, message.echo)
        elif isinstance(message, Drain):
            self.pool.drained(self, connection, message)
        elif isinstance(message, Bye):
            self.pool.on_bye(self, message.retry)
        elif self.commands is not None or isinstance(message, Cmd | Rx):
            self.has_sent = self.has_sent or isinstance(message, Cmd)
            self._with_commands().receive(message)
        if self.profile is Profile.SLOW and self.welcomed:
            connection.pause_reading()
            self.pool.loop.call_later(
                self.pool.options.slow_pause * random.uniform(0.5, 1.5), self._resume_reading, connection
            )

    def _welcomed(self, connection: Connection, welcome: Welcome) -> None:
        self.counters.linked += 1
        self.welcomed = True
        self.pool.unwelcomed.asked.pop(self.number, None)
        self.since = self.pool.welcomed(self, welcome)
        if self.profile is Profile.HALF_OPEN:
            connection.pause_reading()
        elif self.profile is Profile.SLOW:
            self.pool.shrink(connection, SLOW_BUFFER)

    @staticmethod
    def _resume_reading(connection: Connection) -> None:
        if not connection.closing:
            connection.resume_reading()

    def on_close(self, connection: Connection, code: int, reason: str) -> None:
        if connection is self.connection:
            was_welcomed = self.welcomed
            self._lose()
            self.pool.ended(self, code, reason, was_welcomed)
        elif connection is self._next:
            self._take_next()
            self.pool.refused(self, f"close {code}", reason, time.monotonic())

    def on_silence(self, connection: Connection) -> None:
        """Treat the connection as closed: the gateway may be gone, and nothing else would ever report it."""
        self.on_close(connection, CloseCode.SILENT, "nothing was heard")
        connection.abort()

    def on_writable(self, connection: Connection) -> None:
        if self.commands is not None and connection is self.connection:
            self.commands.pump()

    def on_overflow(self, connection: Connection) -> None: ...
