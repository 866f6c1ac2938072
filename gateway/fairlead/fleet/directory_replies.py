"""The replies to the calls of `Directory`, as values.

`Directory` alone calls these functions, and knows which call each reply answers; the scripts document the form of their
replies. Nothing here sends anything to Redis. A reply in another form is a bug in Fairlead and raises StoreError.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from fairlead.errors import FairleadError
from fairlead.fleet import lua
from fairlead.fleet.schema import AgentRow
from fairlead.store.reply import Reply, integer, items, octets, text


@dataclass(frozen=True, slots=True)
class Claimed:
    """This node holds the agent from `gen` on. `previous` is the lease that it replaces, "" if there was none."""

    gen: int
    now: int
    previous: str
    previous_boot: str
    previous_gen: int
    moved: int
    """When a rebalance last moved the agent (ms); 0 if it never has, or the agent had to move again since."""
    landed: bool
    """True if that move has led to this claim."""
    open: list[str]
    notice: str = ""
    """`cloned` if the agent's key was now found to have two holders, `broken` if the session that it showed is out of
    date, as that of a backup is; otherwise ""."""


@dataclass(frozen=True, slots=True)
class Overtaken:
    """The claim was refused. `why` is `older` (an older attempt of the same boot), `late` (its validity had ended),
    `lost` (another owner has the agent), `key` (the id is bound to another key), `cloned` (the key has two holders, and
    is revoked therefore) or `contested` (the other holder of the key has the link, for `wait_ms` at least). `noticed`
    says that the two holders were not known before, or that the key was revoked now."""

    why: str
    gen: int
    noticed: bool = False
    wait_ms: int = 0


@dataclass(frozen=True, slots=True)
class AgentOwner:
    """The lease that holds an agent, its generation, and the agent's boot. Empty if no lease holds it."""

    lease: str
    gen: int
    boot: str


@dataclass(frozen=True, slots=True)
class LastSeen:
    """The lease that holds an agent ("" for none), when its last link began, and when it was last seen (ms)."""

    lease: str
    up: int
    at: int


@dataclass(frozen=True, slots=True)
class LimitReached:
    """The agent has too many open commands, or too many labels."""

    count: int


@dataclass(frozen=True, slots=True)
class LabelsChanged:
    """The agent has other labels than those that the caller has checked, so nothing was changed."""


def parse_claim(reply: Reply) -> Claimed | Overtaken:
    answer = items(reply)
    if text(answer[0]) != "ok":
        notice, wait = (text(answer[2]), integer(answer[3])) if len(answer) > 2 else ("", 0)
        return Overtaken(text(answer[0]), integer(answer[1]), notice == "cloned", wait)
    return Claimed(
        integer(answer[1]),
        integer(answer[2]),
        text(answer[3]),
        text(answer[4]),
        integer(answer[5]),
        integer(answer[6]),
        text(answer[7]) == "1",
        [text(command) for command in answer[9:]],
        text(answer[8]),
    )


def parse_leases(answers: Sequence[Reply | FairleadError]) -> Sequence[str | FairleadError]:
    return [answer if isinstance(answer, FairleadError) else text(answer) for answer in answers]


def parse_owner(reply: Reply) -> AgentOwner:
    lease, gen, boot = values(items(reply))
    return AgentOwner((lease or b"").decode(), int(gen or 0), (boot or b"").decode())


def parse_rows(agents: Sequence[str], replies: Sequence[Reply | FairleadError]) -> list[AgentRow]:
    """The rows of those agents that have one. Raises the error that a reply holds in place of a row."""
    rows: list[AgentRow] = []
    for agent, reply in zip(agents, replies, strict=True):
        if isinstance(reply, FairleadError):
            raise reply
        if (row := AgentRow.parse(agent, values(items(reply)))) is not None:
            rows.append(row)
    return rows


def parse_last_seen(reply: Reply) -> LastSeen | None:
    gen, lease, up, seen = values(items(reply))
    return None if gen is None else LastSeen((lease or b"").decode(), int(up or 0), int(seen or 0))


def parse_dispatch(agent: str, reply: Reply) -> AgentRow | LimitReached | None:
    answer = items(reply)
    match text(answer[0]):
        case "ok":
            return AgentRow.parse(agent, values(answer[1:]))
        case "full":
            return LimitReached(integer(answer[1]))
        case "late":
            raise lua.late("dispatch")
    return None


def parse_labels(reply: Reply) -> dict[str, str] | LimitReached | LabelsChanged | None:
    answer = items(reply)
    match text(answer[0]):
        case "ok":
            return msgspec.json.decode(octets(answer[1]), type=dict[str, str])
        case "full":
            return LimitReached(integer(answer[1]))
        case "changed":
            return LabelsChanged()
    return None


def values(replies: list[Reply]) -> list[bytes | None]:
    return [reply if isinstance(reply, bytes) else None for reply in replies]
