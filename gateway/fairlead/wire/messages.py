"""The messages of the link protocol, version 1: one msgspec schema for MessagePack and its JSON twin.

Read by both link state machines, the codec and the SDK. Field names are the wire's keys; `t` is the type number.
Payloads are bytes that no gateway ever parses: UTF-8 JSON in cmd, event and end, octets in chunks (base64 in the
JSON twin). Durations are milliseconds. Unknown keys are ignored, so that a field can be added; every string,
list and map has a bound here, so that a decoded message is safe to keep.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from msgspec import UNSET, Meta, Struct, UnsetType, field

SUBPROTOCOL_MSGPACK = "fairlead.v1.msgpack"
SUBPROTOCOL_JSON = "fairlead.v1.json"
SUBPROTOCOLS = (SUBPROTOCOL_MSGPACK, SUBPROTOCOL_JSON)

MESSAGE_LIMIT = 1 << 20
"""Bytes of one encoded message, the default of `limits.message`."""
CONN_LIMIT = (1 << 31) - 1
"""The largest number of a connection attempt: one a second for 68 years."""
MESSAGE_REST = 16 << 10
"""Bytes of a message that are not its payload: the error of an end may take most of them."""
FACTS_LIMIT = 4 << 10
"""Bytes of an agent's facts, as JSON without blanks: a gateway keeps them for as long as the agent is linked."""
CHUNK_LIMIT = 64 << 10
"""Bytes of one chunk's payload: small enough that a command never waits long behind a file."""
WINDOW = 256 << 10
"""Bytes of one stream that may be under way and not yet stored, the default of `cmd.credit`."""

Scalar: TypeAlias = str | int | float | bool | None
Id = Annotated[str, Meta(min_length=1, max_length=64)]
Word = Annotated[str, Meta(min_length=1, max_length=64)]
Text = Annotated[str, Meta(max_length=1024)]
Count = Annotated[int, Meta(ge=0, le=(1 << 53) - 1)]
"""Within a double's exact integers, so that JSON implementations in any language agree."""
Octets = Annotated[bytes, Meta(max_length=MESSAGE_LIMIT)]
Facts = Annotated[
    dict[Annotated[str, Meta(min_length=1, max_length=64)], Annotated[str, Meta(max_length=256)]],
    Meta(max_length=64),
]
NextByStream = Annotated[dict[Id, Count], Meta(max_length=1024)]

Lane: TypeAlias = Literal["control", "interactive", "bulk"]
EndState: TypeAlias = Literal["ok", "error", "cancelled", "timeout"]
CommandRetry: TypeAlias = Literal["never", "safe"]
"""What becomes of a command whose outcome nobody knows: it ends so, or is run once more from its beginning."""


CANCELLED = "cancelled"
"""Why a command is cancelled: the platform asked for its end."""
DEADLINE = "deadline"
"""Its deadline has passed and the gateway has recorded a timeout."""
OVER = "over"
"""The gateway has no open record of it any more: it was ended elsewhere, or the record is gone."""


class Message(Struct, tag_field="t", omit_defaults=True, frozen=True, gc=False):
    """Base of all messages. `gc=False`: they hold only scalars, bytes and flat maps of them, never a cycle."""


class Error(Struct, omit_defaults=True, frozen=True, gc=False):
    """What went wrong, for a program (`code`, `temporary`) and for a person (`message`)."""

    code: Word
    message: Text = ""
    temporary: bool = False
    details: Annotated[dict[Word, Scalar], Meta(max_length=16)] = {}


class Caps(Struct, omit_defaults=True, frozen=True, gc=False):
    """What a side can do. `journal`: the id of a memory that outlives the agent's process; "" when it has none."""

    journal: Annotated[str, Meta(max_length=64)] = ""


class Resume(Struct, frozen=True, gc=False):
    """The session that the agent had before, of the same boot."""

    sid: Id


class Limits(Struct, omit_defaults=True, frozen=True, gc=False):
    """Bytes: one message; one chunk's payload; the window of a stream; the gateway's send queue for this agent."""

    message: Count = MESSAGE_LIMIT
    chunk: Count = CHUNK_LIMIT
    window: Count = WINDOW
    queue: Count = 1 << 20


class Retry(Struct, omit_defaults=True, frozen=True, gc=False):
    """The reconnect policy, in milliseconds: see RetryPolicy."""

    first: Count = 1_000
    base: Count = 1_000
    cap: Count = 60_000


class Hello(Message, tag=1, frozen=True):
    """Agent → gateway, the first message, within 10 s of the upgrade.

    `boot` is random per start of the agent, `conn` counts its connection attempts within the boot. The commands of
    a former boot are gone unless `caps.journal` is the same.
    `have` names, for each command that this boot still runs, the next input chunk that it expects.
    """

    agent: Annotated[str, Meta(max_length=256)]
    boot: Id
    conn: Annotated[int, Meta(ge=1, le=CONN_LIMIT)]
    sdk: Annotated[str, Meta(max_length=64)] = ""
    caps: Caps = Caps()
    facts: Facts = {}
    resume: Resume | None = None
    have: NextByStream = {}


class Welcome(Message, tag=2, frozen=True):
    """Gateway → agent, the answer to hello: this link now owns the agent.

    `have` names every open command of the agent that may have reached it, with the next output chunk to send;
    what the agent still runs and does not find here was ended by the gateway.
    """

    sid: Id
    gen: Count
    now: Count
    hb: Count
    resumed: bool = False
    have: NextByStream = {}
    limits: Limits = Limits()
    retry: Retry = Retry()
    caps: Caps = Caps()


class Hb(Message, tag=3, frozen=True):
    """Both ways. `ts` is the sender's own clock and comes back as `echo`; `rtt` reports the last round trip (ms)."""

    ts: Count = 0
    echo: Count | None = None
    rtt: float | None = None


class Cmd(Message, tag=4, frozen=True):
    """Gateway → agent: opens a stream. `deadline` is the time left; `credit` the bytes that may be under way.

    `retry` is what the platform allows when the outcome is unknown; the gateway acts on it, an agent need not.
    """

    id: Id
    method: Word
    payload: Octets = b""
    deadline: Count = 60_000
    lane: Lane = "interactive"
    credit: Count = WINDOW
    attempt: Count = 1
    traceparent: Annotated[str, Meta(max_length=64)] = ""
    sig: Annotated[bytes, Meta(max_length=256)] = b""
    retry: CommandRetry = "never"


class Ack(Message, tag=5, frozen=True):
    """Agent → gateway: the command arrived. `duplicate`: it was known already and runs or ran once."""

    id: Id
    state: Literal["accepted", "duplicate", "refused"] = "accepted"
    error: Error | None = None


class Chunk(Message, tag=6, frozen=True):
    """Both ways: number `n` of a stream's data, from 0 without gaps."""

    id: Id
    n: Count
    kind: Word
    payload: Octets = b""


class End(Message, tag=7, frozen=True):
    """Both ways: the last of a stream's direction. `total` is the number of its chunks."""

    id: Id
    total: Count
    state: EndState = "ok"
    payload: Octets = b""
    error: Error | None = None
    digest: Annotated[bytes, Meta(max_length=64)] = b""


class Credit(Message, tag=8, frozen=True):
    """Both ways: the receiver allows `bytes` more of this stream."""

    id: Id
    bytes: Count


class Cancel(Message, tag=9, frozen=True):
    """Gateway → agent: end this command within 10 s.

    `why` is one of `CANCELLED`, `DEADLINE` and `OVER`; a later version may know more words.
    """

    id: Id
    why: Word = "cancelled"


class Event(Message, tag=10, frozen=True):
    """Agent → gateway: something happened. With `qos` 1 it is repeated until stored: at least once."""

    id: Id
    type: Annotated[str, Meta(min_length=1, max_length=128)]
    payload: Octets = b""
    time: Count = 0
    qos: Literal[0, 1] = 1
    traceparent: Annotated[str, Meta(max_length=64)] = ""


class Rx(Message, tag=11, frozen=True):
    """Gateway → agent: the first `s` numbered messages of this connection are stored.

    Numbered are ack, chunk, end and event of qos 1, from 1, as they are written to the socket.
    """

    s: Count


class Auth(Message, tag=12, frozen=True):
    """Agent → gateway: a fresh `token`. Gateway → agent: one is `needed` within so many milliseconds."""

    token: Annotated[str, Meta(max_length=8192)] | UnsetType = UNSET
    needed: Count | UnsetType = UNSET


class Drain(Message, tag=13, frozen=True):
    """Gateway → agent: leave after `in` milliseconds, connect anew, and finish what you run."""

    why: Literal["shutdown", "rebalance", "scale", "age"]
    slot: Count = field(default=0, name="in")
    retry: Retry | None = None


class Bye(Message, tag=14, frozen=True):
    """Both ways, before the close frame: the code that will follow, and when to come back (ms)."""

    code: Count
    why: Text = ""
    retry: Count | None = None


FromAgent: TypeAlias = Hello | Hb | Ack | Chunk | End | Credit | Event | Auth | Bye
FromGateway: TypeAlias = Welcome | Hb | Cmd | Chunk | End | Credit | Cancel | Rx | Auth | Drain | Bye
Numbered: TypeAlias = Ack | Chunk | End | Event


def payload_limit(subprotocol: str, message: int) -> int:
    """The largest payload of an end or an event on a link of `subprotocol` that takes messages of `message` bytes:
    what is left of it, and on JSON three quarters of that, since base64 adds a third.
    """
    left = message - MESSAGE_REST
    return left * 3 // 4 if subprotocol == SUBPROTOCOL_JSON else left


RESERVED = 64
"""Type numbers from here on are ignored when unknown; below, an unknown number breaks the protocol."""
