"""The messages of the link protocol, version 1: one msgspec schema for both encodings, MessagePack and JSON.

Both link state machines, the codec and the SDK use it. Field names are the keys on the wire; `t` is the type number.
Payloads are bytes that no gateway ever parses: UTF-8 JSON in cmd, event and end, arbitrary bytes in chunks (base64 in
the JSON encoding). Durations are in milliseconds. Unknown keys are ignored, so that fields can be added later. Every
string, list and map has a limit here, so that a decoded message is safe to keep.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeAlias

from msgspec import UNSET, Meta, Struct, UnsetType, field

SUBPROTOCOL_MSGPACK = "fairlead.v1.msgpack"
SUBPROTOCOL_JSON = "fairlead.v1.json"
SUBPROTOCOLS = (SUBPROTOCOL_MSGPACK, SUBPROTOCOL_JSON)

MESSAGE_LIMIT = 1 << 20
"""The maximum size in bytes of one encoded message; the default of `limits.message`."""
CONN_LIMIT = (1 << 31) - 1
"""The largest number of a connection attempt: enough for one attempt a second for 68 years."""
MESSAGE_REST = 16 << 10
"""The bytes of a message that are reserved for everything except its payload. The error of an end may need most of
them.
"""
FACTS_LIMIT = 4 << 10
"""The maximum size in bytes of an agent's facts as JSON without whitespace. A gateway keeps them in memory while the
agent is linked."""
CHUNK_LIMIT = 64 << 10
"""The maximum size in bytes of one chunk's payload: small enough that a command never waits long behind a file."""
WINDOW = 256 << 10
"""The maximum number of bytes of one stream that may be in flight and not yet stored; the default of `cmd.credit`."""
LEAVE_GRACE = 10.0
"""Seconds after the slot of a `drain` in which the agent may still use the link. It opens its new link first and leaves
the old one once the new one is welcomed, which takes a round trip or two, and some seconds at a gateway that is short
of CPU. A link that is still open then is closed by the gateway with 4000."""

Scalar: TypeAlias = str | int | float | bool | None
Id = Annotated[str, Meta(min_length=1, max_length=64)]
Word = Annotated[str, Meta(min_length=1, max_length=64)]
Text = Annotated[str, Meta(max_length=1024)]
Count = Annotated[int, Meta(ge=0, le=(1 << 53) - 1)]
"""An integer that a double represents exactly, so that JSON implementations in all languages agree on it."""
Octets = Annotated[bytes, Meta(max_length=MESSAGE_LIMIT)]
FACT_COUNT = 64
"""The maximum number of an agent's facts."""
FactName = Annotated[str, Meta(min_length=1, max_length=64)]
FactValue = Annotated[str, Meta(max_length=256)]
FactMap = Annotated[dict[FactName, FactValue], Meta(max_length=FACT_COUNT)]
FactChanges = Annotated[dict[FactName, FactValue | None], Meta(max_length=2 * FACT_COUNT)]
"""New values of facts; None for a fact that is gone. At most all facts are gone, and as many are new."""
NextByStream = Annotated[dict[Id, Count], Meta(max_length=1024)]

Lane: TypeAlias = Literal["control", "interactive", "bulk"]
EndState: TypeAlias = Literal["ok", "error", "cancelled", "timeout"]
MoveReason: TypeAlias = Literal["shutdown", "rebalance", "scale", "age"]
"""Why an agent is asked to move to another node."""
CommandRetry: TypeAlias = Literal["never", "safe"]
"""What happens to a command with an unknown outcome: with `never` it ends with that outcome; with `safe` it runs again
from the beginning."""


CANCELLED = "cancelled"
"""A reason of `cancel`: the platform cancelled the command."""
DEADLINE = "deadline"
"""A reason of `cancel`: the command's deadline has passed, and the gateway has recorded a timeout."""
OVER = "over"
"""A reason of `cancel`: the gateway has no open record of the command, because it ended elsewhere or its record is
gone.
"""


class Message(Struct, tag_field="t", omit_defaults=True, frozen=True, gc=False):
    """Base class of all messages. `gc=False` is safe because messages hold scalars, bytes and flat maps, never
    cycles."""


class Error(Struct, omit_defaults=True, frozen=True, gc=False):
    """An error: `code` and `temporary` are for programs, `message` is for people."""

    code: Word
    message: Text = ""
    temporary: bool = False
    details: Annotated[dict[Word, Scalar], Meta(max_length=16)] = {}

    @property
    def size(self) -> int:
        """The characters of its texts. Only the limit of a message bounds those of `details`."""
        texts = [value for value in self.details.values() if isinstance(value, str)]
        return len(self.message) + sum(map(len, self.details)) + sum(map(len, texts))


class Caps(Struct, omit_defaults=True, frozen=True, gc=False):
    """The capabilities of one end. `journal` is the id of the journal in which the agent keeps commands beyond its
    process, or "" if it has none. `facts` says that the gateway takes the message `facts`."""

    journal: Annotated[str, Meta(max_length=64)] = ""
    facts: bool = False


class Resume(Struct, frozen=True, gc=False):
    """An earlier session of the agent: the last one, or, if the agent has an identity, the last one that it has stored
    (see `fairlead.identity.proof`)."""

    sid: Id


class Limits(Struct, omit_defaults=True, frozen=True, gc=False):
    """Limits in bytes: of one message, of one chunk's payload, of a stream's window, and of the gateway's send queue
    for this agent."""

    message: Count = MESSAGE_LIMIT
    chunk: Count = CHUNK_LIMIT
    window: Count = WINDOW
    queue: Count = 1 << 20


class Retry(Struct, omit_defaults=True, frozen=True, gc=False):
    """The reconnect policy, in milliseconds; see `fairlead.wire.retry.RetryPolicy`."""

    first: Count = 1_000
    base: Count = 1_000
    cap: Count = 60_000


class Hello(Message, tag=1, frozen=True):
    """Agent → gateway: the first message, sent within 10 s of the upgrade.

    `boot` is a random id for each start of the agent; `conn` counts the connection attempts within the boot. The
    commands of a previous boot are lost unless `caps.journal` is the same. `have` holds, for each command that this
    boot still runs, the number of the next input chunk that the agent expects. `proof` shows, on a link that was opened
    with a credential, that the agent holds the key of it (see `fairlead.identity.proof`).
    """

    agent: Annotated[str, Meta(max_length=256)]
    boot: Id
    conn: Annotated[int, Meta(ge=1, le=CONN_LIMIT)]
    sdk: Annotated[str, Meta(max_length=64)] = ""
    caps: Caps = Caps()
    facts: FactMap = {}
    resume: Resume | None = None
    have: NextByStream = {}
    proof: Annotated[str, Meta(max_length=128)] = ""


class Welcome(Message, tag=2, frozen=True):
    """Gateway → agent: the answer to hello. This link now owns the agent.

    `have` holds every open command that may have reached the agent, with the number of the next output chunk to send.
    The gateway has ended every command that the agent still runs and that `have` does not contain.
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
    """Both ways: a heartbeat. `ts` is the sender's own clock and is returned as `echo`; `rtt` is the last round-trip
    time (ms)."""

    ts: Count = 0
    echo: Count | None = None
    rtt: float | None = None


class Cmd(Message, tag=4, frozen=True):
    """Gateway → agent: a command, which opens a stream. `deadline` is the time left; `credit` is the number of bytes
    that may be in flight.

    `retry` is what the platform allows if the outcome is unknown. The gateway applies it; an agent may ignore it.
    """

    id: Id
    method: Word
    payload: Octets = b""
    deadline: Count = 60_000
    lane: Lane = "interactive"
    credit: Count = WINDOW
    attempt: Count = 1
    traceparent: Annotated[str, Meta(max_length=64)] = ""
    sig: Annotated[bytes, Meta(max_length=1024)] = b""
    retry: CommandRetry = "never"


class Ack(Message, tag=5, frozen=True):
    """Agent → gateway: the command arrived. `duplicate` means that the agent already knew the command, which runs or
    has run once."""

    id: Id
    state: Literal["accepted", "duplicate", "refused"] = "accepted"
    error: Error | None = None


class Chunk(Message, tag=6, frozen=True):
    """Both ways: one part of a stream's data. `n` counts from 0 without gaps."""

    id: Id
    n: Count
    kind: Word
    payload: Octets = b""


class End(Message, tag=7, frozen=True):
    """Both ways: the last message of one direction of a stream. `total` is the number of chunks in that direction."""

    id: Id
    total: Count
    state: EndState = "ok"
    payload: Octets = b""
    error: Error | None = None
    digest: Annotated[bytes, Meta(max_length=64)] = b""


class Credit(Message, tag=8, frozen=True):
    """Both ways: the receiver of a stream grants credit for `bytes` more bytes."""

    id: Id
    bytes: Count


class Cancel(Message, tag=9, frozen=True):
    """Gateway → agent: end this command within 10 s.

    `why` is one of `CANCELLED`, `DEADLINE` and `OVER`; later versions may add values.
    """

    id: Id
    why: Word = "cancelled"


class Event(Message, tag=10, frozen=True):
    """Agent → gateway: an event. With `qos` 1 the agent repeats it until it is stored (at-least-once delivery). Its
    type does not begin with `OWN_EVENTS`."""

    id: Id
    type: Annotated[str, Meta(min_length=1, max_length=128)]
    payload: Octets = b""
    time: Count = 0
    qos: Literal[0, 1] = 1
    traceparent: Annotated[str, Meta(max_length=64)] = ""


OWN_EVENTS: Final = "fairlead."
"""What the types of the gateway's own events begin with."""


class Rx(Message, tag=11, frozen=True):
    """Gateway → agent: the first `s` numbered messages of this connection are stored.

    ack, chunk, end and event with qos 1 are numbered from 1, in the order in which they are written to the socket. The
    gateway has removed the `dropped` oldest events of this agent, because they were more than one agent may have.
    """

    s: Count
    dropped: Count = 0


class Auth(Message, tag=12, frozen=True):
    """Agent → gateway: a new `token`. Gateway → agent: a new token is `needed` within that number of milliseconds."""

    token: Annotated[str, Meta(max_length=8192)] | UnsetType = UNSET
    needed: Count | UnsetType = UNSET


class Drain(Message, tag=13, frozen=True):
    """Gateway → agent: close this link after `in` milliseconds, connect again, and finish the running commands."""

    why: MoveReason
    slot: Count = field(default=0, name="in")
    retry: Retry | None = None


class Bye(Message, tag=14, frozen=True):
    """Both ways, before the close frame: the close code that will follow, and when to reconnect (ms)."""

    code: Count
    why: Text = ""
    retry: Count | None = None


class Facts(Message, tag=15, frozen=True):
    """Agent → gateway: what has changed in the agent's facts since `hello`, or since the last of these messages. Sent
    only to a gateway that has said that it takes it."""

    changes: FactChanges


FromAgent: TypeAlias = Hello | Hb | Ack | Chunk | End | Credit | Event | Auth | Bye | Facts
FromGateway: TypeAlias = Welcome | Hb | Cmd | Chunk | End | Credit | Cancel | Rx | Auth | Drain | Bye
Numbered: TypeAlias = Ack | Chunk | End | Event


def payload_limit(subprotocol: str, message: int) -> int:
    """The largest payload of an end or an event on a link with `subprotocol` and messages of up to `message` bytes: the
    limit without MESSAGE_REST, and in the JSON encoding three quarters of that, because base64 adds a third.
    """
    left = message - MESSAGE_REST
    return left * 3 // 4 if subprotocol == SUBPROTOCOL_JSON else left


RESERVED = 64
"""Unknown type numbers from this one on are ignored; an unknown type number below it violates the protocol."""
