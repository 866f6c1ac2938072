"""The conversations of `vectors/conversations.json`, as types.

Read by the player, by the command that lists them, and by the tests that hold our own state machines to them. What each
member means is told in `vectors/README.md`.
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
"""Types from here on are of a later version."""

Raw: TypeAlias = dict[str, Any]
"""A message as its JSON twin shows it."""


class Close(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Who closes the connection, `agent` or `gateway`, and with which code."""

    by: str
    code: int


class Step(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One step. Exactly one of the members up to `away` is there."""

    agent: Raw | None = None
    gateway: Raw | None = None
    close: Close | None = None
    lost: bool = False
    restart: bool = False
    over: str = ""
    takes: str = ""
    writes: str = ""
    leaves: bool = False
    away: bool = False
    journal: bool = False
    """Of a restart: the process finds its journal again."""
    kind: str = ""
    payload: str = ""
    """Of `writes`."""
    drops: list[str] = []
    """Of a welcome: the commands that the agent stops and forgets."""
    after: int = 0
    within: int = 0
    """Of a hello: the earliest and the latest moment, in ms from the step before."""
    note: str = ""


class Needs(Enum):
    """What a conversation needs of the agent, beside the link."""

    NOTHING = "nothing"
    ORDERS = "orders on its stdin"
    RESTART = "a process that can be started anew"


class Conversation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A script. `section` is that of docs/protocol.md that it is about."""

    name: str
    section: str
    about: str
    steps: list[Step]
    for_: str = msgspec.field(default="", name="for")
    """`gateway` when an agent that does right would never say this."""

    @property
    def for_agents(self) -> bool:
        """Whether an agent can be tested by it: not where it is the agent's part to break a rule."""
        if self.for_ == "gateway":
            return False
        guilty = any(s.close is not None and s.close == Close("gateway", 4500) for s in self.steps)
        return not guilty

    @property
    def durable(self) -> bool:
        """Whether the agent must name a journal."""
        return any(step.agent is not None and "caps" in step.agent for step in self.steps)

    @property
    def needs(self) -> Needs:
        if any(step.restart or step.leaves or step.away for step in self.steps):
            return Needs.RESTART
        said = (step.agent["t"] for step in self.steps if step.agent is not None)
        commands = any(kind in (CHUNK, END, EVENT) for kind in said)
        accepted = any(s.agent is not None and s.agent["t"] == ACK and not s.agent.get("state") for s in self.steps)
        return Needs.ORDERS if commands or accepted or any(s.takes or s.writes for s in self.steps) else Needs.NOTHING


def load() -> list[Conversation]:
    """All of them, as they ship with this package."""
    return msgspec.json.decode(_read("conversations.json"), type=list[Conversation])


def load_messages() -> list[dict[str, Any]]:
    """The vectors of single messages: see `vectors/README.md`."""
    found: list[dict[str, Any]] = msgspec.json.decode(_read("messages.json"))
    return found


def _read(name: str) -> bytes:
    return (files("fairlead.mock") / "vectors" / name).read_bytes()


def data_of(vector: dict[str, Any]) -> bytes | str:
    """What an invalid vector sends as one WebSocket message: text, or octets."""
    data = str(vector["data"])
    for mark in ("fill", "llif"):
        if mark in vector:
            unit, count = vector[mark]
            data = data.replace(f"«{mark}»", unit * count)
    return data if vector["websocket"] == "text" else bytes.fromhex(data)


def with_fresh_ids(conversation: Conversation, randomness: Sequence[str]) -> Conversation:
    """The same script with other ids of commands, since an agent remembers those that it has run. `randomness`: as many
    strings of 12 hex digits as there are ids, and more.
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
