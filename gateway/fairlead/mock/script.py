"""The conversations of `vectors/conversations.json`, as types.

Read by `runner`, by the command that lists them, and by tests that compare our own state machines with them.
`vectors/README.md` explains each member.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from enum import Enum
from importlib.resources import files
from typing import Any, TypeAlias

import msgspec

HELLO, WELCOME, HB, CMD, ACK, CHUNK, END, CREDIT, EVENT, BYE = 1, 2, 3, 4, 5, 6, 7, 8, 10, 14
LATER = 64
"""Message types from this number on belong to a later version of the protocol."""
TOO_BIG = 1009
_LINKS = 4

Raw: TypeAlias = dict[str, Any]
"""A message as JSON shows it."""


class ScriptedClose(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Who closes the connection, `agent` or `gateway`, and with which code."""

    by: str
    code: int


class Refusal(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An HTTP answer instead of an upgrade. `retry_after` in seconds; 0 for no such header."""

    status: int
    retry_after: int = 0


class Step(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One step. Exactly one of the members up to `away` is set."""

    agent: Raw | None = None
    gateway: Raw | None = None
    close: ScriptedClose | None = None
    lost: bool = False
    restart: bool = False
    over: str = ""
    takes: str = ""
    writes: str = ""
    ends: str = ""
    refuses: Refusal | None = None
    sends: str = ""
    """The name of an invalid vector of `messages.json`. No conversation of the file has one: see
    `violation_conversations`."""
    leaves: bool = False
    away: bool = False
    old: bool = False
    """Of `agent`, `gateway` and `close`: on the link before the newest one, which an agent that moves still uses."""
    journal: bool = False
    """Of a restart: the process finds its journal again."""
    kind: str = ""
    payload: str = ""
    """Of `writes` and `ends`."""
    bytes: int = 0
    """Of `ends`: the size of a generated result, instead of `payload`."""
    drops: list[str] = []
    """Of a welcome: the commands that the agent stops and forgets."""
    after: int = 0
    within: int = 0
    """Of a hello: the earliest and the latest moment, in ms from the step before."""
    note: str = ""


class Needs(Enum):
    """What a conversation needs of the agent besides the link."""

    NOTHING = "nothing"
    ORDERS = "orders on its stdin"
    RESTART = "a process that can be restarted"


class Conversation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A script. `section` is that of docs/protocol.md that it is about."""

    name: str
    section: str
    about: str
    steps: list[Step]
    for_: str = msgspec.field(default="", name="for")
    """`gateway` when a correct agent would never say this."""

    @property
    def for_agents(self) -> bool:
        """Whether an agent can be tested with it, which is not the case if its script makes the agent violate the
        protocol.
        """
        if self.for_ == "gateway":
            return False
        guilty = any(s.close is not None and s.close == ScriptedClose("gateway", 4500) for s in self.steps)
        return not guilty

    @property
    def durable(self) -> bool:
        """Whether the agent must have a journal."""
        return any(step.agent is not None and "caps" in step.agent for step in self.steps)

    @property
    def needs(self) -> Needs:
        if any(step.restart or step.leaves or step.away or step.sends or step.refuses for step in self.steps):
            return Needs.RESTART
        sent = (step.agent["t"] for step in self.steps if step.agent is not None)
        commands = any(kind in (CHUNK, END, EVENT) for kind in sent)
        accepted = any(s.agent is not None and s.agent["t"] == ACK and not s.agent.get("state") for s in self.steps)
        return (
            Needs.ORDERS
            if commands or accepted or any(s.takes or s.writes or s.ends for s in self.steps)
            else Needs.NOTHING
        )


def load_conversations() -> list[Conversation]:
    """All conversations, as they ship with this package."""
    return msgspec.json.decode(_read("conversations.json"), type=list[Conversation])


def load_messages() -> list[dict[str, Any]]:
    """The vectors of single messages: see `vectors/README.md`."""
    found: list[dict[str, Any]] = msgspec.json.decode(_read("messages.json"))
    return found


def violation_conversations(encoding: str) -> list[Conversation]:
    """Conversations with what no gateway may send on a link of this encoding: for each invalid vector of that
    direction, a link on which it is sent, and the agent's close. Vectors that a reader may accept are left out, and so
    are those that are larger than what an agent has to accept (1009). A conversation has four of them, because after
    five short links an agent may wait as long as the default policy says.
    """
    vectors = [
        vector
        for vector in load_messages()
        if vector["direction"] == "gateway-to-agent"
        and vector.get("encoding") == encoding
        and "or_read_as" not in vector
        and vector["close_code"] != TOO_BIG
    ]
    groups = [vectors[start : start + _LINKS] for start in range(0, len(vectors), _LINKS)]
    return [_violation(number, group) for number, group in enumerate(groups, 1)]


def _violation(number: int, vectors: list[dict[str, Any]]) -> Conversation:
    steps = []
    for conn, vector in enumerate(vectors, 1):
        hello = {"t": HELLO, "agent": "edge-17", "boot": "b1", "conn": conn}
        welcome = {"t": WELCOME, "sid": f"sid-{conn}00", "gen": conn, "now": 1, "hb": 25_000}
        note = f"Vector «{vector['name']}» of messages.json: {vector['data'][:80]!r}"
        steps += [Step(agent=hello), Step(gateway=welcome), Step(sends=vector["name"], note=note)]
        steps.append(Step(close=ScriptedClose("agent", vector["close_code"]), note=note))
    about = "No gateway may send these; the agent closes: " + ", ".join(vector["name"] for vector in vectors) + "."
    return Conversation(f"violation: messages, part {number}", "2", about, steps)


def vector_to_agents(name: str, encoding: str) -> bytes | str:
    """The data that the vector of this name sends to an agent."""
    for vector in load_messages():
        if (vector["direction"], vector["name"], vector.get("encoding")) == ("gateway-to-agent", name, encoding):
            return data_of(vector)
    raise KeyError(name)


def _read(name: str) -> bytes:
    return (files("fairlead.mock") / "vectors" / name).read_bytes()


def data_of(vector: dict[str, Any]) -> bytes | str:
    """The data of an invalid vector, as one WebSocket message: text or bytes."""
    data = str(vector["data"])
    for mark in ("fill", "llif"):
        if mark in vector:
            unit, count = vector[mark]
            data = data.replace(f"«{mark}»", unit * count)
    return data if vector["websocket"] == "text" else bytes.fromhex(data)


def with_fresh_ids(conversation: Conversation, randomness: Sequence[str]) -> Conversation:
    """The same script with other ids of commands, since an agent remembers those that it has run. `randomness` has at
    least as many strings of 12 hexadecimal digits as there are ids.
    """
    text = msgspec.json.encode(conversation).decode()
    spare = iter(randomness)
    for old in dict.fromkeys(_ids(conversation)):
        text = text.replace(old, re.sub(r"[0-9a-f]{12}$", next(spare), old))
    return msgspec.json.decode(text, type=Conversation)


def _ids(conversation: Conversation) -> Iterator[str]:
    for step in conversation.steps:
        for message in (step.agent, step.gateway):
            if message is not None and "id" in message and message["t"] != EVENT:
                yield message["id"]
