"""Every message through both encodings, and arbitrary other data through the decoder."""

from __future__ import annotations

import gc
import json
import tracemalloc
from typing import TypeVar, cast, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.errors import ProtocolViolation
from fairlead.wire import messages
from fairlead.wire.close_codes import CloseCode
from fairlead.wire.codec import Codec, agent_codec, gateway_codec
from fairlead.wire.messages import (
    MESSAGE_LIMIT,
    SUBPROTOCOL_JSON,
    SUBPROTOCOL_MSGPACK,
    SUBPROTOCOLS,
    Chunk,
    FromAgent,
    FromGateway,
    Hb,
    Message,
)

T = TypeVar("T")
AnyCodec = Codec[FromAgent] | Codec[FromGateway]

FROM_AGENT = cast("tuple[type[Message], ...]", get_args(FromAgent))
FROM_GATEWAY = cast("tuple[type[Message], ...]", get_args(FromGateway))
CODECS: list[AnyCodec] = [make(name) for make in (gateway_codec, agent_codec) for name in SUBPROTOCOLS]
CODEC_IDS = ["gateway-msgpack", "gateway-json", "agent-msgpack", "agent-json"]

# What UTF-8 can carry: a lone surrogate cannot be in a WebSocket text message.
CHARACTERS = st.characters(exclude_categories=["Cs"])
text = st.text(CHARACTERS)


def words(least: int, most: int) -> st.SearchStrategy[str]:
    return st.text(CHARACTERS, min_size=least, max_size=most)


ids = words(1, 64)
counts = st.integers(0, (1 << 53) - 1)
payloads = st.binary(max_size=512)
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)  # what JSON can say
scalars = st.none() | st.booleans() | st.integers(-(1 << 53), 1 << 53) | NUMBERS | words(0, 20)
errors = st.builds(
    messages.Error, code=ids, message=words(0, 200), temporary=st.booleans(),
    details=st.dictionaries(ids, scalars, max_size=16),
)  # fmt: skip
caps = st.builds(messages.Caps, journal=words(0, 64))
retries = st.builds(messages.Retry, first=counts, base=counts, cap=counts)
have = st.dictionaries(ids, counts, max_size=8)
rtts = st.none() | NUMBERS

STRATEGIES: dict[type[Message], st.SearchStrategy[Message]] = {
    messages.Hello: st.builds(
        messages.Hello, agent=words(0, 256), boot=ids, conn=st.integers(1, messages.CONN_LIMIT), sdk=words(0, 64),
        caps=caps, facts=st.dictionaries(ids, words(0, 256), max_size=8),
        resume=st.none() | st.builds(messages.Resume, sid=ids), have=have,
    ),
    messages.Welcome: st.builds(
        messages.Welcome, sid=ids, gen=counts, now=counts, hb=counts, resumed=st.booleans(), have=have,
        limits=st.builds(messages.Limits, message=counts, chunk=counts, window=counts, queue=counts),
        retry=retries, caps=caps,
    ),
    messages.Hb: st.builds(messages.Hb, ts=counts, echo=st.none() | counts, rtt=rtts),
    messages.Cmd: st.builds(
        messages.Cmd, id=ids, method=ids, payload=payloads, deadline=counts,
        lane=st.sampled_from(get_args(messages.Lane)), credit=counts, attempt=counts,
        traceparent=words(0, 64), sig=st.binary(max_size=1024),
        retry=st.sampled_from(get_args(messages.CommandRetry)),
    ),
    messages.Ack: st.builds(
        messages.Ack, id=ids, state=st.sampled_from(("accepted", "duplicate", "refused")),
        error=st.none() | errors,
    ),
    messages.Chunk: st.builds(messages.Chunk, id=ids, n=counts, kind=ids, payload=payloads),
    messages.End: st.builds(
        messages.End, id=ids, total=counts, state=st.sampled_from(get_args(messages.EndState)),
        payload=payloads, error=st.none() | errors, digest=st.binary(max_size=64),
    ),
    messages.Credit: st.builds(messages.Credit, id=ids, bytes=counts),
    messages.Cancel: st.builds(messages.Cancel, id=ids, why=words(1, 64)),
    messages.Event: st.builds(
        messages.Event, id=ids, type=words(1, 128), payload=payloads, time=counts,
        qos=st.sampled_from((0, 1)), traceparent=words(0, 64),
    ),
    messages.Rx: st.builds(messages.Rx, s=counts),
    messages.Auth: st.builds(messages.Auth, token=words(0, 200)) | st.builds(messages.Auth, needed=counts),
    messages.Drain: st.builds(
        messages.Drain, why=st.sampled_from(("shutdown", "rebalance", "scale", "age")), slot=counts,
        retry=st.none() | retries,
    ),
    messages.Bye: st.builds(messages.Bye, code=counts, why=words(0, 200), retry=st.none() | counts),
    messages.Facts: st.builds(
        messages.Facts, changes=st.dictionaries(ids, st.none() | words(0, 256), max_size=8)
    ),
}  # fmt: skip


def test_every_message_has_a_strategy() -> None:
    assert set(STRATEGIES) == set(FROM_AGENT) | set(FROM_GATEWAY)
    tags = [kind.__struct_config__.tag for kind in STRATEGIES]
    assert sorted(cast("list[int]", tags)) == list(range(1, 16))


def readers(message: Message) -> list[AnyCodec]:
    makes = [gateway_codec] if type(message) in FROM_AGENT else []
    both: list[AnyCodec] = [make(name) for make in makes for name in SUBPROTOCOLS]
    if type(message) in FROM_GATEWAY:
        both += [agent_codec(name) for name in SUBPROTOCOLS]
    return both


@pytest.mark.parametrize("kind", STRATEGIES, ids=lambda kind: kind.__name__)
@given(data=st.data())
def test_messages_are_decoded_as_they_were_encoded(kind: type[Message], data: st.DataObject) -> None:
    message = data.draw(STRATEGIES[kind])
    for codec in readers(message):
        encoded = codec.encode(message)
        assert isinstance(encoded, bytes if codec.binary else str)
        assert codec.decode(encoded) == message


@given(st.one_of(*STRATEGIES.values()))
def test_json_and_messagepack_carry_the_same_message(message: Message) -> None:
    """A JSON text and its MessagePack differ in how octets are written, and in nothing else."""
    binary, plain = readers(message)[:2]
    packed, written = binary.encode(message), plain.encode(message)
    assert isinstance(packed, bytes)
    assert msgspec.to_builtins(msgspec.msgpack.decode(packed), builtin_types=()) == json.loads(written)


@pytest.mark.parametrize("codec", CODECS, ids=CODEC_IDS)
@given(data=st.data())
def test_garbage_is_a_violation_and_nothing_else(codec: AnyCodec, data: st.DataObject) -> None:
    accepts_or_refuses(codec, data.draw(st.binary(max_size=200)) if codec.binary else data.draw(text))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(text, inner, max_size=4),
    max_leaves=12,
)
keys = st.sampled_from(["id", "n", "kind", "payload", "state", "total", "error", "s", "boot", "conn", "have", "rtt"])
near_misses = st.fixed_dictionaries(
    {"t": st.integers(-1, 20) | json_values}, optional={"id": json_values, "n": json_values}
).flatmap(lambda head: st.dictionaries(keys, json_values, max_size=5).map(lambda rest: rest | head))


@given(near_misses)
def test_near_misses_are_a_message_or_a_violation(value: dict[str, object]) -> None:
    for codec in CODECS:
        if not codec.binary:
            accepts_or_refuses(codec, json.dumps(value))
        elif all(-(1 << 63) <= n < 1 << 64 for n in integers(value)):
            accepts_or_refuses(codec, msgspec.msgpack.encode(value))


def integers(value: object) -> list[int]:
    if isinstance(value, dict):
        return [n for inner in value.values() for n in integers(inner)]
    if isinstance(value, list):
        return [n for inner in value for n in integers(inner)]
    return [value] if isinstance(value, int) else []


def accepts_or_refuses(codec: AnyCodec, data: bytes | str) -> None:
    """Random input is hardly ever a message; if it is one, it must be a sound one."""
    violation, message = None, None
    try:
        message = codec.decode(data)
    except ProtocolViolation as e:
        violation = e
    if violation is not None:
        assert violation.close_code == CloseCode.PROTOCOL
        assert len(violation.message) <= 200
    elif message is not None and not (isinstance(message, Hb) and message.rtt != message.rtt):
        assert codec.decode(codec.encode(message)) == message


@given(data=st.data())
def test_a_damaged_message_is_a_message_or_a_violation(data: st.DataObject) -> None:
    message = data.draw(st.one_of(*STRATEGIES.values()))
    codec = data.draw(st.sampled_from(readers(message)))
    encoded = codec.encode(message)
    at = data.draw(st.integers(0, len(encoded) - 1))
    if isinstance(encoded, bytes):
        accepts_or_refuses(codec, encoded[:at] + data.draw(st.binary(max_size=3)) + encoded[at + 1 :])
    else:
        accepts_or_refuses(codec, encoded[:at] + data.draw(text) + encoded[at + 1 :])


DEPTH = 100_000


@pytest.mark.parametrize("t", [3, 64])
@pytest.mark.parametrize("codec", CODECS, ids=CODEC_IDS)
def test_deep_nesting_is_a_violation(codec: AnyCodec, t: int) -> None:
    """Ignored keys are skipped by recursion; it must end as our error, not as Python's."""
    deep: bytes | str
    if codec.binary:
        deep = b"\x82\xa1t" + bytes([t]) + b"\xa1x" + b"\x91" * DEPTH + b"\x90"
    else:
        deep = f'{{"t":{t},"x":' + "[" * DEPTH + "]" * DEPTH + "}"
    with pytest.raises(ProtocolViolation, match=f"nested|value {t} ") as caught:
        codec.decode(deep)
    assert caught.value.close_code == CloseCode.PROTOCOL


@pytest.mark.parametrize("codec", CODECS, ids=CODEC_IDS)
@given(t=st.integers(64, (1 << 64) - 1), rest=st.dictionaries(ids, payloads, max_size=3))
def test_types_of_later_versions_are_ignored(codec: AnyCodec, t: int, rest: dict[str, bytes]) -> None:
    encode = msgspec.msgpack.encode if codec.binary else msgspec.json.encode
    data = encode({**rest, "t": t})
    assert codec.decode(data if codec.binary else data.decode()) is None


@pytest.mark.parametrize("codec", CODECS, ids=CODEC_IDS)
@pytest.mark.parametrize("t", [-1, 0, *range(16, 64)])
def test_unknown_types_of_this_version_are_violations(codec: AnyCodec, t: int) -> None:
    data = msgspec.msgpack.encode({"t": t}) if codec.binary else json.dumps({"t": t})
    with pytest.raises(ProtocolViolation, match=f"t={t}") as caught:
        codec.decode(data)
    assert caught.value.close_code == CloseCode.PROTOCOL


@given(st.one_of(*STRATEGIES.values()))
def test_a_message_of_the_other_direction_is_a_violation(message: Message) -> None:
    encoder = readers(message)[0]
    for codec, accepted in ((CODECS[0], FROM_AGENT), (CODECS[2], FROM_GATEWAY)):
        if type(message) in accepted:
            continue
        with pytest.raises(ProtocolViolation, match=f"t={message.__struct_config__.tag}") as caught:
            codec.decode(encoder.encode(message))
        assert caught.value.close_code == CloseCode.PROTOCOL


@pytest.mark.parametrize("codec", CODECS, ids=CODEC_IDS)
def test_the_wrong_kind_of_websocket_message_is_a_violation(codec: AnyCodec) -> None:
    other = '{"t":3}' if codec.binary else b'{"t":3}'
    with pytest.raises(ProtocolViolation, match="send binary" if codec.binary else "send text") as caught:
        codec.decode(other)
    assert caught.value.close_code == CloseCode.ENCODING


@pytest.mark.parametrize("subprotocol", SUBPROTOCOLS)
def test_a_message_above_the_limit_is_a_violation(subprotocol: str) -> None:
    codec = gateway_codec(subprotocol, limit=1000)
    room = 1000 - len(codec.encode(Chunk(id="c", n=0, kind="k", payload=b"x" * 600))) + 600
    if not codec.binary:
        room -= 200 + (room - 800) // 4 + 4
    fits = Chunk(id="c", n=0, kind="k", payload=b"x" * room)
    assert len(codec.encode(fits)) <= 1000
    assert codec.decode(codec.encode(fits)) == fits
    with pytest.raises(ProtocolViolation, match="exceeds max 1000") as caught:
        codec.decode(codec.encode(Chunk(id="c", n=0, kind="k", payload=b"x" * 1000)))
    assert caught.value.close_code == CloseCode.FRAME_TOO_BIG


@pytest.mark.parametrize("subprotocol", SUBPROTOCOLS)
def test_a_full_chunk_fits_the_least_message_limit(subprotocol: str) -> None:
    """128 KiB is the least that settings allow."""
    full = Chunk(id="c" * 64, n=(1 << 53) - 1, kind="k" * 64, payload=b"\xff" * messages.CHUNK_LIMIT)
    codec = gateway_codec(subprotocol, limit=128 << 10)
    assert codec.decode(codec.encode(full)) == full


def test_an_unknown_subprotocol_is_a_programming_error() -> None:
    with pytest.raises(ValueError, match=r"fairlead\.v9"):
        gateway_codec("fairlead.v9.cbor")


@pytest.mark.parametrize("subprotocol", SUBPROTOCOLS)
def test_a_payload_does_not_keep_the_buffer_alive(subprotocol: str) -> None:
    """1,000 small payloads out of messages of 100 KB each: kept are the payloads, not 100 MB."""
    codec = gateway_codec(subprotocol)
    ballast = "x" * 100_000

    def received(n: int) -> bytes | str:
        encode = msgspec.msgpack.encode if codec.binary else msgspec.json.encode
        data = encode({"t": 6, "id": "c", "n": n, "kind": "k", "payload": b"small", "later": ballast})
        return data if codec.binary else data.decode()

    tracemalloc.start()
    try:
        kept = [codec.decode(received(n)) for n in range(1000)]
        gc.collect()
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert all(isinstance(chunk, Chunk) and chunk.payload == b"small" for chunk in kept)
    assert held < 2_000_000


def test_messages_are_not_tracked_by_the_garbage_collector() -> None:
    """`gc=False` on the base must hold in every message: a queue of 1,000 messages is not scanned."""
    codec = CODECS[0]
    assert codec.subprotocol == SUBPROTOCOL_MSGPACK
    message = codec.decode(codec.encode(Hb(ts=1)))
    assert not gc.is_tracked(message)
    for kind in STRATEGIES:
        assert kind.__struct_config__.gc is False
        assert kind.__struct_config__.frozen is True


def test_defaults_are_not_encoded() -> None:
    assert gateway_codec(SUBPROTOCOL_JSON).encode(Hb()) == '{"t":3}'
    assert gateway_codec(SUBPROTOCOL_JSON).encode(messages.Ack(id="c")) == '{"t":5,"id":"c"}'


def test_the_default_limit_is_the_protocols() -> None:
    assert {codec.limit for codec in CODECS} == {MESSAGE_LIMIT}
