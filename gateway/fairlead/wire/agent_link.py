"""The agent's end of one link: which messages were written, which are stored, and which must be sent again.

The SDK's session passes received messages to it; it has no socket and no clock. Its state belongs to one connection;
the `Outbox`, to which it applies the messages, outlives the connection. Windows bound both directions, so that neither
a fast command nor a fast caller can fill the memory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping

from fairlead.errors import ProtocolViolation
from fairlead.wire.close_codes import CloseCode
from fairlead.wire.messages import WINDOW, Bye, Chunk, Credit, End, Event, FromGateway, Hb, Numbered, Rx, Welcome
from fairlead.wire.outbox import Outbox


class AgentLink:
    """The state of one connection: hello, then welcome, then all other messages. `receive` raises ProtocolViolation if
    the gateway violates this order, the numbering or a window."""

    __slots__ = ("input_from", "outbox", "ready", "released", "sent", "stored", "unstored", "window")

    def __init__(self, outbox: Outbox) -> None:
        self.outbox = outbox
        self.input_from: Mapping[str, int] = {}
        """What hello asked for: for each stream, the number of the first input chunk that comes on this link."""
        self.ready = False
        self.sent = 0
        self.stored = 0
        self.unstored: deque[Numbered] = deque()
        self.window = WINDOW
        self.released: list[Numbered] = []
        """The messages that credit has released. The caller that passed the credit to `receive` sends them."""

    def greeted(self, have: Mapping[str, int]) -> None:
        """Record that hello was written, with this `have`."""
        self.input_from = have

    def receive(self, message: FromGateway | None) -> Iterable[str]:
        """Apply `message` to the outbox. Returns the ids of the commands whose streams may continue because of it."""
        if not self.ready and not isinstance(message, Welcome | Hb | Bye | None):
            what = type(message).__name__.lower()
            raise ProtocolViolation(
                CloseCode.PROTOCOL, f"{what} out of order: expected nothing but hb and bye until welcome"
            )
        if isinstance(message, Welcome):
            if self.ready:
                raise ProtocolViolation(CloseCode.PROTOCOL, "second welcome: expected one on each link")
            self.ready = True
            self.window = message.limits.window
        elif isinstance(message, Rx):
            return self._receipt(message.s)
        elif isinstance(message, Chunk | End):
            return self._input(message)
        elif isinstance(message, Credit):
            stream = self.outbox.streams.get(message.id)
            if stream is not None:
                self.released.extend(stream.granted(message.bytes))
                return (message.id,)
        return ()

    def written(self, message: Numbered) -> None:
        """Record that `message` is now written to the socket: it gets the next number of this link."""
        if isinstance(message, Event) and message.qos == 0:
            return
        self.sent += 1
        self.unstored.append(message)

    def resend(self, welcome: Welcome) -> tuple[list[str], list[Numbered]]:
        """After welcome: the commands that cannot continue, and the messages to send again, in order.

        A command cannot continue if the gateway has ended it meanwhile or has lost some of its stored results.
        """
        streams = self.outbox.streams
        lost = [command for command in streams if command not in welcome.have]
        for command in lost:
            self.outbox.dropped(command)
        again: list[Numbered] = []
        for command, stream in streams.items():
            if stream.resume(welcome.have[command], self.window, self.input_from.get(command, 0)):
                again.extend(stream.granted(self.window))
            else:
                lost.append(command)
                again.extend(stream.pending)
        again.extend(self.outbox.events.values())
        return lost, again

    def _receipt(self, s: int) -> Iterable[str]:
        if not self.stored <= s <= self.sent:
            raise ProtocolViolation(CloseCode.PROTOCOL, f"rx {s} out of range: expected {self.stored} to {self.sent}")
        moved = set()
        for _ in range(s - self.stored):
            message = self.unstored.popleft()
            self.outbox.stored(message)
            if isinstance(message, Chunk):
                moved.add(message.id)
        self.stored = s
        return moved

    def _input(self, message: Chunk | End) -> Iterable[str]:
        stream = self.outbox.streams.get(message.id)
        if stream is None or stream.ended:
            return ()
        n = message.n if isinstance(message, Chunk) else message.total
        if n != stream.input_next or (stream.input_ended and isinstance(message, Chunk)):
            raise ProtocolViolation(
                CloseCode.PROTOCOL, f"input {n} of {message.id} out of order: expected {stream.input_next}"
            )
        if isinstance(message, End):
            stream.input_ended = True
            return (message.id,)
        size = len(message.payload)
        if stream.input_size + size > self.window:
            raise ProtocolViolation(
                CloseCode.PROTOCOL, f"input of {message.id} exceeds the window of {self.window} bytes"
            )
        stream.received(message.payload)
        return (message.id,)
