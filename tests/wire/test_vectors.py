"""The vectors that ship with the package, run against our own two ends: they are what we follow ourselves.

A conversation is played between a real GatewayLink and a real AgentLink over a real Outbox. What the state
machines produce by themselves (chunks, what is sent again, receipts, credit, hello's `have`) must equal the
script; what only routing knows (when to welcome, when something is stored) is taken from it.
"""

from __future__ import annotations

import json
from base64 import b64decode
from typing import Any

import pytest

from fairlead.errors import ProtocolViolation
from fairlead.mock.script import Conversation, Step, data_of, load_conversations, load_messages
from fairlead.wire.agent_link import AgentLink
from fairlead.wire.codec import Codec, agent_codec, gateway_codec
from fairlead.wire.gateway_link import Action
from fairlead.wire.messages import (
    SUBPROTOCOL_JSON,
    SUBPROTOCOL_MSGPACK,
    Ack,
    Bye,
    Cancel,
    Chunk,
    Cmd,
    Credit,
    End,
    Error,
    Event,
    Facts,
    FromAgent,
    FromGateway,
    Hb,
    Hello,
    Message,
    Numbered,
    Rx,
    Welcome,
)
from fairlead.wire.outbox import Outbox

from support.wire.windowed_link import WindowedLink

SUBPROTOCOL = {"json": SUBPROTOCOL_JSON, "msgpack": SUBPROTOCOL_MSGPACK}
GATEWAY = gateway_codec(SUBPROTOCOL_JSON)
AGENT = agent_codec(SUBPROTOCOL_JSON)


Vector = dict[str, Any]
MESSAGES = load_messages()
CONVERSATIONS = load_conversations()


def codec(direction: str, encoding: str) -> Codec[FromAgent] | Codec[FromGateway]:
    if direction == "agent-to-gateway":
        return gateway_codec(SUBPROTOCOL[encoding])
    assert direction == "gateway-to-agent"
    return agent_codec(SUBPROTOCOL[encoding])


@pytest.mark.parametrize("vector", [v for v in MESSAGES if v["valid"]], ids=lambda v: v["name"])
def test_both_encodings_of_a_message_are_the_same_message(vector: Vector) -> None:
    text, binary = codec(vector["direction"], "json"), codec(vector["direction"], "msgpack")
    message = text.decode(vector["json"])
    assert binary.decode(bytes.fromhex(vector["msgpack"])) == message
    assert (message is None) == vector.get("ignored", False)
    if message is not None:
        assert json.loads(vector["json"])["t"] == message.__struct_config__.tag
        assert text.decode(text.encode(message)) == message
        assert binary.decode(binary.encode(message)) == message


@pytest.mark.parametrize(
    "vector", [v for v in MESSAGES if not v["valid"]], ids=lambda v: f"{v['name']}-{v['encoding']}"
)
def test_invalid_messages_are_refused_with_their_code(vector: Vector) -> None:
    data, reader = data_of(vector), codec(vector["direction"], vector["encoding"])
    if "or_read_as" in vector:  # the document leaves the choice: ours reads it where it can
        try:
            read = reader.decode(data)
        except ProtocolViolation as violation:
            code = violation.close_code
        else:
            assert read == codec(vector["direction"], "json").decode(vector["or_read_as"])
            return
        assert code == vector["close_code"]
        return
    with pytest.raises(ProtocolViolation) as caught:
        reader.decode(data)
    assert caught.value.close_code == vector["close_code"]


def test_every_message_type_has_a_vector() -> None:
    kinds = {(v["direction"], json.loads(v["json"])["t"]) for v in MESSAGES if v["valid"]}
    assert {t for direction, t in kinds if direction == "agent-to-gateway" and t < 64} == {
        1, 3, 5, 6, 7, 8, 10, 12, 14, 15,
    }  # fmt: skip
    assert {t for direction, t in kinds if direction == "gateway-to-agent" and t < 64} == {
        2, 3, 4, 6, 7, 8, 9, 11, 12, 13, 14,
    }  # fmt: skip


OF_A_LINK = ("agent", "gateway", "hello", "again", "written", "grants", "echo", "granted")


class Stage:
    """Both ends of one link, and the agent's process behind its end; of an agent that moves, of its old link, too."""

    def __init__(self, stray: bool = False) -> None:
        """`stray`: the agent's part is not our agent's, which would never say it."""
        self.stray = stray
        self.old: dict[str, Any] = {}
        """What belongs to the old link of an agent that moves."""
        self.restarted()

    def restarted(self) -> None:
        self.outbox = Outbox()
        self.commands: dict[str, Cmd] = {}
        self.lost()

    def reopened(self) -> None:
        """As `restarted`, with a journal: output that was not stored is there again, what ran ends behind it."""
        former = self.outbox
        self.restarted()
        for command, stream in former.streams.items():
            restored = self.outbox.restored(command, stream.next, stream.pending)
            if not restored.ended:
                restored.end("error", error=Error(code="outcome_unknown"))
        self.outbox.events.update(former.events)

    def lost(self) -> None:
        self.agent = AgentLink(self.outbox)
        self.gateway: WindowedLink | None = None
        self.hello: Hello | None = None
        self.again: list[Numbered] = []
        """What the agent owes after welcome, in order."""
        self.written: list[tuple[Numbered, Action]] = []
        """What the gateway got and has not stored yet."""
        self.grants: list[Credit] = []
        self.echo: int | None = None
        self.granted: list[Credit] = []
        """Credit that the agent owes for input that was taken."""

    def on_old_link(self, step: Step) -> None:
        """Play one step on the old link of an agent that moves."""
        new = {name: getattr(self, name) for name in OF_A_LINK}
        vars(self).update(self.old)
        play(self, step, broken=False)
        self.old = {name: getattr(self, name) for name in OF_A_LINK}
        vars(self).update(new)

    # -- agent to gateway --------------------------------------------------------------------------

    def from_agent(self, message: FromAgent | None, broken: bool) -> None:
        """The agent sends it. When `broken`, our own agent would not."""
        if isinstance(message, Hello) and not broken and self.gateway is not None:
            self.old = self.old or {name: getattr(self, name) for name in OF_A_LINK}
            self.lost()  # it was drained, or gave the link up
        if self.gateway is None:
            self.gateway = WindowedLink()
        if isinstance(message, Ack | Chunk | End | Event) and not broken and not self.stray:
            self._write(message)
        if isinstance(message, Hello) and not broken:
            assert message.have == self.outbox.have()
            self.agent.greeted(message.have)
            self.hello = message
        if isinstance(message, Credit) and not broken and not self.stray:
            assert self.granted.pop(0) == message
        act = self.gateway.receive(message)
        if isinstance(message, Ack | Chunk | End) or (isinstance(message, Event) and message.qos == 1):
            assert act in (Action.STORE, Action.STORE_UNASKED, Action.SKIP)
            self.written.append((message, act))
        elif isinstance(message, Hb):
            assert act is Action.ANSWER
            self.echo = message.ts
        else:
            assert act is (Action.IGNORE if self.stray and isinstance(message, Credit) else self._expected(message))

    @staticmethod
    def _expected(message: FromAgent | None) -> Action:
        if isinstance(message, Hello):
            return Action.CLAIM
        if isinstance(message, Event):
            return Action.STORE
        if isinstance(message, Credit):
            return Action.GRANT
        if isinstance(message, Facts):
            return Action.CHANGE
        return Action.LEAVE if isinstance(message, Bye) else Action.IGNORE

    def _write(self, message: Numbered) -> None:
        """Our agent makes the same message, or sends the same one again."""
        made: Numbered
        if isinstance(message, Ack):
            made = message
            if message.state == "accepted":
                self.outbox.opened(self.commands[message.id], self.agent.window)
        elif self.again:
            made = self.again.pop(0)
        elif isinstance(message, Event):
            made = message
            if message.qos == 1:
                self.outbox.events[message.id] = message
        elif isinstance(message, Chunk):
            made = self.outbox.streams[message.id].chunk(message.kind, message.payload)
        else:
            stream = self.outbox.streams[message.id]
            made = stream.end(message.state, message.payload, message.error)
        assert made == message
        self.agent.written(made)

    def take(self, command: str) -> None:
        """The command's handler reads one chunk of its input."""
        _, credit = self.outbox.streams[command].take()
        if credit is not None:
            self.granted.append(credit)

    def hold(self, command: str, kind: str, payload: bytes) -> None:
        """The handler has output for which there is no credit: ours makes no chunk of it until there is."""
        stream = self.outbox.streams[command]
        assert len(payload) > stream.credit_left
        with pytest.raises(ValueError, match="exceeds the credit left"):
            stream.chunk(kind, payload)

    # -- gateway to agent --------------------------------------------------------------------------

    def from_gateway(self, message: FromGateway | None, drops: list[str], broken: bool) -> None:
        assert self.gateway is not None
        if isinstance(message, Hb):
            assert message.echo == self.echo
        if isinstance(message, Welcome) and not broken:
            self._welcomed(message)
        elif isinstance(message, Cmd):
            self._command(message)
        elif isinstance(message, Rx) and not broken:
            self._store(message)
        elif isinstance(message, Credit):
            assert self.grants.pop(0) == message
        elif isinstance(message, Cancel) and message.id in self.outbox.streams:
            self.outbox.streams[message.id].cut()
        elif isinstance(message, Chunk | End) and not broken:
            self._input(message)
        if self.stray:
            return
        self.agent.receive(message)
        if isinstance(message, Welcome):
            lost, again = self.agent.resend(message)
            assert lost == drops
            self.again = list(again)

    def _welcomed(self, welcome: Welcome) -> None:
        assert self.gateway is not None
        assert self.hello is not None
        self.gateway.welcomed()
        self.gateway.window = welcome.limits.window
        for command, first in welcome.have.items():
            self.gateway.opened(command, first, self.hello.have.get(command, 0))

    def _command(self, cmd: Cmd) -> None:
        assert self.gateway is not None
        if self.gateway.stream(cmd.id) is None:
            self.gateway.opened(cmd.id)
        assert cmd.credit == self.gateway.window
        self.commands[cmd.id] = cmd

    def _store(self, rx: Rx) -> None:
        """What routing does with what came, up to the receipt."""
        assert self.gateway is not None
        count = rx.s - self.gateway.stored
        assert self.gateway.store(count) == rx
        sizes: dict[str, int] = {}
        for message, act in self.written[:count]:
            if act is Action.STORE and isinstance(message, Chunk):
                sizes[message.id] = sizes.get(message.id, 0) + len(message.payload)
            if isinstance(message, End) or (isinstance(message, Ack) and message.state == "refused"):
                self.gateway.ended(message.id)
            if act is Action.SKIP and isinstance(message, Chunk):
                self.grants.append(Credit(id=message.id, bytes=len(message.payload)))
        del self.written[:count]
        for command, size in sizes.items():
            if (credit := self.gateway.repay(command, size)) is not None:
                self.grants.append(credit)

    def _input(self, message: Chunk | End) -> None:
        assert self.gateway is not None
        stream = self.gateway.stream(message.id)
        assert stream is not None
        if isinstance(message, End):
            assert message.total == stream.input_next
            return
        assert message.n == stream.input_next
        stream.fed(len(message.payload))
        assert stream.input_credit >= 0


@pytest.mark.parametrize("conversation", CONVERSATIONS, ids=lambda c: c.name)
def test_conversation_is_played_as_scripted(conversation: Conversation) -> None:
    stage = Stage(stray=conversation.for_ == "gateway")
    steps = conversation.steps
    for step, following in zip(steps, [*steps[1:], Step()], strict=True):
        close = following.close
        violated = close is not None and close.code == 4500
        guilty = (step.agent if close.by == "gateway" else step.gateway) if close is not None and violated else None
        if guilty is not None:
            assert close is not None
            with pytest.raises(ProtocolViolation) as caught:
                play(stage, step, broken=True)
            assert caught.value.close_code == close.code
        elif step.old:
            stage.on_old_link(step)
        else:
            play(stage, step, broken=False)
    assert not stage.again, "the agent had more to send again"
    assert not stage.granted, "the agent had credit to grant"
    assert not stage.grants, "the gateway had credit to grant"


def play(stage: Stage, step: Step, broken: bool) -> None:
    if step.agent is not None:
        stage.from_agent(GATEWAY.decode(json.dumps(step.agent)), broken)
    elif step.gateway is not None:
        stage.from_gateway(AGENT.decode(json.dumps(step.gateway)), step.drops, broken)
    elif step.lost:
        stage.lost()
    elif step.restart:
        (stage.reopened if step.journal else stage.restarted)()
    elif step.takes:
        stage.take(step.takes)
    elif step.writes:
        stage.hold(step.writes, step.kind, b64decode(step.payload))
    elif step.over:
        assert stage.gateway is not None
        credit = stage.gateway.dismissed(step.over)
        if credit is not None:
            stage.grants.append(credit)
    else:
        assert step.close or step.leaves or step.away or step.ends or step.refuses, f"a step that says nothing: {step}"


def test_the_steps_of_conversations_are_valid_messages() -> None:
    """A misspelt field would be ignored as unknown, and the script would test nothing."""
    for conversation in CONVERSATIONS:
        for step in conversation.steps:
            for raw, reader in ((step.agent, GATEWAY), (step.gateway, AGENT)):
                if raw is not None and int(str(raw["t"])) < 64:
                    message = reader.decode(json.dumps(raw))
                    assert isinstance(message, Message)
                    names = set(message.__struct_config__.tag_field or "") | set(fields(message))
                    assert set(raw) <= names, (conversation.name, raw)


def fields(message: Message) -> list[str]:
    return list(message.__struct_encode_fields__)
