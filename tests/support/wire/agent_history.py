"""One agent's process, one gateway with a store, and the wire between them.

Commands write and read, the gateway stores and grants when it likes, links break with messages on the wire, the agent
moves (its new link says hello while the old one is in use), and the process dies and leaves its memory to the next.
Played by test_agent_link_histories.py. The judges are a store of its own and the gateway's state machine, which raises
at the first gap, repetition or byte beyond the credit.
"""

from __future__ import annotations

from collections import deque

from fairlead.wire.agent_link import AgentLink
from fairlead.wire.gateway_link import Action
from fairlead.wire.messages import Ack, Chunk, Cmd, Credit, End, Event, FromAgent, FromGateway, Hello, Numbered
from fairlead.wire.outbox import Outbox

from support.wire.agent_memory import WINDOW, RecordedMemory, welcome
from support.wire.windowed_link import WindowedLink

SMALL = 32
COMMANDS = ("A", "B")


def payload(command: str, n: int, size: int) -> bytes:
    """Octets that name their place, so that a mix-up shows."""
    return f"{command}{n}:".encode().ljust(size, b".")[:size]


class AgentHistory:
    """One agent's process, one gateway with a store, and the wire between them, which is lost now and then."""

    def __init__(self) -> None:
        self.ledger = RecordedMemory()
        self.outbox = Outbox(self.ledger)
        self.produced: dict[str, list[bytes]] = {c: [] for c in COMMANDS}
        self.ended: set[str] = set()
        self.events: list[str] = []
        self.taken: dict[str, list[bytes]] = {c: [] for c in COMMANDS}
        # The gateway's store
        self.stored: dict[str, list[bytes]] = {c: [] for c in COMMANDS}
        self.over: set[str] = set()
        self.stored_events: list[str] = []
        self.fed: dict[str, list[bytes]] = {c: [] for c in COMMANDS}
        self.forgotten: dict[str, int] = dict.fromkeys(COMMANDS, 0)
        """Input before this chunk was granted: the gateway cannot send it again."""
        # The link, if there is one
        self.conn = 0
        self.agent: AgentLink | None = None
        self.gateway = WindowedLink(WINDOW)
        self.next: tuple[AgentLink, WindowedLink, Hello] | None = None
        """A new link that has said hello and is not welcomed yet."""
        self.up: deque[FromAgent] = deque()
        self.down: deque[FromGateway] = deque()
        self.unstored: deque[tuple[Numbered, Action]] = deque()

        self.resume(0, 0)
        for command in COMMANDS:
            self.gateway.opened(command)
            self.ledger.accept(command)
            self.outbox.opened(Cmd(id=command, method="m", credit=WINDOW), WINDOW)
            self.write(Ack(id=command))

    def write(self, message: Numbered) -> None:
        """What a session does: write it if there is a link."""
        if self.agent is not None:
            self.agent.written(message)
            self.up.append(message)

    # -- the agent's process

    def produce(self, command: str, size: int) -> None:
        stream = self.outbox.streams.get(command)
        if stream is None or stream.ended or stream.credit_left < size:
            return
        data = payload(command, stream.next, size)
        self.produced[command].append(data)
        self.write(stream.chunk("stdout", data))

    def end(self, command: str) -> None:
        stream = self.outbox.streams.get(command)
        if stream is not None and not stream.ended:
            self.ended.add(command)
            made = stream.end("ok")
            self.outbox.finished(command)
            if not stream.held:
                self.write(made)

    def emit(self, _: str) -> None:
        event = Event(id=f"e{len(self.events)}", type="t")
        self.events.append(event.id)
        self.outbox.occurred(event)
        self.write(event)

    def take(self, command: str, settle: bool) -> None:
        """The handler reads."""
        stream = self.outbox.streams.get(command)
        if stream is None or stream.ended or not stream.input:
            return
        data, credit = stream.take()
        self.taken[command].append(data)
        if credit is None and settle:
            credit = stream.settle()
        if credit is not None and self.next is not None:
            stream.unsettled(credit.bytes)
        elif credit is not None and self.agent is not None:
            self.up.append(credit)

    def agent_reads(self, count: int) -> None:
        for _ in range(min(count, len(self.down))):
            assert self.agent is not None
            self.agent.receive(self.down.popleft())
            released, self.agent.released = self.agent.released, []
            for message in released:
                self.write(message)

    # -- the gateway

    def gateway_reads(self, count: int) -> None:
        for _ in range(min(count, len(self.up))):
            message = self.up.popleft()
            act = self.gateway.receive(message)  # raises when the agent breaks the protocol
            if isinstance(message, Credit):
                stream = self.gateway.stream(message.id)
                if act is Action.GRANT and stream is not None:
                    assert stream.input_credit <= self.gateway.window, "granted more than was sent on this link"
                    self.forgotten[message.id] = max(self.forgotten[message.id], stream.input_consumed)
            elif isinstance(message, Ack | Chunk | End | Event):
                self.unstored.append((message, act))

    def gateway_stores(self, count: int) -> None:
        done = min(count, len(self.unstored))
        if not done:
            return
        credits = [credit for _ in range(done) if (credit := self._store()) is not None]
        self.down.append(self.gateway.store(done))
        self.down.extend(credits)

    def _store(self) -> Credit | None:
        message, act = self.unstored.popleft()
        if act is Action.SKIP:
            return None
        if isinstance(message, Chunk):
            assert message.n == len(self.stored[message.id])
            self.stored[message.id].append(message.payload)
            return self.gateway.repay(message.id, len(message.payload))
        if isinstance(message, End):
            assert message.total == len(self.stored[message.id])
            self.over.add(message.id)
            self.gateway.ended(message.id)
        elif isinstance(message, Event) and message.id not in self.stored_events:
            self.stored_events.append(message.id)
        return None

    def feed(self, command: str, size: int) -> None:
        stream = self.gateway.stream(command) if self.agent is not None else None
        if stream is None:
            return
        if stream.input_next < len(self.fed[command]):
            data = self.fed[command][stream.input_next]
        else:
            data = payload(command.lower(), stream.input_next, size)
        if len(data) > stream.input_credit:
            return
        if stream.input_next == len(self.fed[command]):
            self.fed[command].append(data)
        self.down.append(Chunk(id=command, n=stream.input_next, kind="stdin", payload=data))
        stream.fed(len(data))

    # -- the wire

    def lose(self, read: int, stored: int) -> None:
        """The link breaks. Some that was on the wire was still read, and some of it stored; no receipt arrives."""
        if self.agent is None:
            return
        self.gateway_reads(read)
        for _ in range(min(stored, len(self.unstored))):
            self._store()
        self.agent = None
        self.up.clear()
        self.down.clear()
        self.unstored.clear()

    def die(self, read: int, stored: int) -> None:
        """The agent's process ends without closing the link, and the next begins with what the memory has."""
        self.lose(read, stored)
        self.next = None
        self.ended |= self.outbox.streams.keys()
        self.outbox = self.ledger.outbox()

    def greet(self, odd: int, _: int) -> None:
        """A new link says hello, now and then to a node with a smaller window. The link in use stays in use."""
        if self.next is not None:
            return
        self.conn += 1
        gateway, agent = WindowedLink(SMALL if odd == 1 else WINDOW), AgentLink(self.outbox)
        hello = Hello(agent="a", boot="b", conn=self.conn, have=self.outbox.have())
        agent.greeted(hello.have)
        assert gateway.receive(hello) is Action.CLAIM
        self.next = agent, gateway, hello

    def give_up(self, *_: int) -> None:
        """The new link breaks before its welcome."""
        if self.next is None:
            return
        self.next = None
        for stream in self.outbox.streams.values():
            if (credit := stream.settle()) is not None and self.agent is not None:
                self.up.append(credit)

    def resume(self, odd: int, read: int) -> None:
        """The new link is welcomed. What is on the wire of the old one is lost, from the claim on."""
        if self.agent is not None and self.next is None:
            return
        self.greet(odd, 0)
        assert self.next is not None
        self.lose(read, read)
        self.agent, self.gateway, hello = self.next
        self.next, window = None, self.gateway.window
        self.gateway.welcomed()
        have: dict[str, int] = {}
        for command in COMMANDS:
            if self.conn > 1 and command not in self.over:
                have[command] = len(self.stored[command])
                wanted = hello.have.get(command, 0)
                assert wanted >= self.forgotten[command] or command not in hello.have, "asks for what was granted"
                self.gateway.opened(command, have[command], wanted)
        greeting = welcome(have, window)
        self.agent.receive(greeting)
        lost, again = self.agent.resend(greeting)
        assert set(lost) <= self.over, "the store loses nothing here"
        for message in again:
            self.write(message)

    # -- what must hold

    def memory_is_bounded(self) -> None:
        for stream in self.outbox.streams.values():
            assert sum(len(m.payload) for m in stream.pending if isinstance(m, Chunk)) <= WINDOW
            assert stream.input_size == sum(map(len, stream.input)) <= WINDOW
            assert stream.credit_left <= WINDOW
        if self.agent is not None:
            assert len(self.agent.unstored) == self.agent.sent - self.agent.stored

    def the_memory_is_what_the_outbox_holds(self) -> None:
        streams = self.outbox.streams
        assert {c: list(s.pending) for c, s in streams.items()} == self.ledger.pending
        assert all(self.ledger.next[c] == s.next for c, s in streams.items())
        assert self.outbox.events == self.ledger.events
        assert all(self.outbox.known(c) for c in COMMANDS), "none is run again"

    def everything_is_in_order_and_once(self) -> None:
        for command in COMMANDS:
            assert self.stored[command] == self.produced[command][: len(self.stored[command])]
            assert self.taken[command] == self.fed[command][: len(self.taken[command])]
        assert len(set(self.stored_events)) == len(self.stored_events)

    def settle(self) -> None:
        """When faults end, all that was produced is stored, and nothing is held any more."""
        self.resume(0, 0)
        for _ in range(1000):
            if not (self.up or self.unstored or self.down):
                break
            self.gateway_reads(1000)
            self.gateway_stores(1000)
            self.agent_reads(1000)
        assert self.stored == self.produced
        assert sorted(self.stored_events) == sorted(self.events)
        assert self.over == self.ended == set(self.ledger.finished)
        assert set(self.outbox.streams) == set(COMMANDS) - self.ended
        assert not self.outbox.events
        for stream in self.outbox.streams.values():
            assert not stream.pending
            assert stream.credit_left * 2 > self.gateway.window, "credit leaked away"
