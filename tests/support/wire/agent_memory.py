"""A memory that only records what an outbox reports to it, and links over an outbox that are welcomed at once."""

from __future__ import annotations

from fairlead.errors import Unavailable
from fairlead.wire.agent_link import AgentLink
from fairlead.wire.messages import Chunk, End, Event, Limits, Welcome
from fairlead.wire.outbox import Outbox

WINDOW = 64


def welcome(have: dict[str, int] | None = None, window: int = WINDOW) -> Welcome:
    return Welcome(sid="s", gen=1, now=0, hb=1, have=have or {}, limits=Limits(window=window))


def greeted(outbox: Outbox) -> AgentLink:
    """A link that has said hello."""
    link = AgentLink(outbox)
    link.greeted(outbox.have())
    return link


def welcomed(link: AgentLink, have: dict[str, int]) -> None:
    message = welcome(have)
    link.receive(message)
    link.resend(message)


def linked(outbox: Outbox, have: dict[str, int] | None = None) -> AgentLink:
    link = greeted(outbox)
    link.receive(welcome(have))
    return link


class RecordedMemory:
    """A memory: what the outbox reports to it is all that the next process gets."""

    def __init__(self) -> None:
        self.pending: dict[str, list[Chunk | End]] = {}
        self.next: dict[str, int] = {}
        self.read: set[str] = set()
        self.finished: list[str] = []
        self.events: dict[str, Event] = {}
        self.full = False

    def accept(self, command: str) -> None:
        self.pending[command], self.next[command] = [], 0

    def keep(self, message: Chunk | End | Event) -> None:
        if isinstance(message, Event):
            self.events[message.id] = message
            return
        if isinstance(message, End):
            self.next[message.id] = message.total
        elif self.full:
            raise Unavailable("full")
        else:
            assert message.n == self.next[message.id]
            self.next[message.id] += 1
        self.pending[message.id].append(message)

    def took(self, command: str) -> None:
        self.read.add(command)

    def stored(self, command: str, count: int) -> None:
        kept = self.pending[command]
        self.pending[command] = [m for m in kept if isinstance(m, End) or m.n >= count]

    def over(self, command: str) -> None:
        del self.pending[command]
        self.finished.append(command)

    def event_stored(self, event: str) -> None:
        del self.events[event]

    def outbox(self) -> Outbox:
        """That of the next process: what ran has ended."""
        made = Outbox(self)
        for command in self.finished:
            made.finished(command)
        for command, pending in self.pending.items():
            stream = made.restored(command, self.next[command], pending)
            if not stream.ended:
                stream.end("error")
            made.finished(command)
        made.events.update(self.events)
        return made
