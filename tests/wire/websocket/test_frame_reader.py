"""The reader of RFC 6455 frames without a socket: both roles, any chunking, and no input that raises."""

from __future__ import annotations

import os
import tracemalloc
import zlib
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.wire.websocket import frames
from fairlead.wire.websocket.frame_reader import FrameReader
from fairlead.wire.websocket.frames import BINARY, CLOSE, CONTINUATION, FIN, PING, PONG, RSV1, TEXT

MASK = b"\x37\xfa\x21\x3d"

HookCall = tuple[str, object]


class ServerReader(FrameReader):
    """Records what it is told."""

    def __init__(self, limit: int = 1 << 20, deflate: bool = False) -> None:
        super().__init__(deflate)
        self.limit = limit
        self.calls: list[HookCall] = []

    @property
    def max_message(self) -> int:
        return self.limit

    def message_received(self, message: bytes | str) -> None:
        self.calls.append(("message", message))

    def ping_received(self, payload: bytes) -> None:
        self.calls.append(("ping", payload))

    def pong_received(self, payload: bytes) -> None:
        self.calls.append(("pong", payload))

    def close_received(self, code: int, reason: str) -> None:
        self.calls.append(("close", (code, reason)))

    def violated(self, code: int, reason: str) -> None:
        self.calls.append(("violation", code))


class ClientReader(ServerReader):
    MASKED = False


def read(data: bytes, *, limit: int = 1 << 20, deflate: bool = False) -> list[HookCall]:
    reader = ServerReader(limit, deflate)
    reader.feed(data)
    return reader.calls


# RFC 6455 §5.7, byte for byte.


def test_example_unmasked_text() -> None:
    reader = ClientReader()
    reader.feed(bytes.fromhex("810548656c6c6f"))
    assert reader.calls == [("message", "Hello")]
    assert frames.encode(FIN | TEXT, b"Hello").hex() == "810548656c6c6f"


def test_example_masked_text() -> None:
    data = bytes.fromhex("818537fa213d7f9f4d5158")
    assert read(data) == [("message", "Hello")]
    assert frames.encode(FIN | TEXT, b"Hello", MASK) == data


def test_example_fragmented_text() -> None:
    reader = ClientReader()
    reader.feed(bytes.fromhex("010348656c80026c6f"))
    assert reader.calls == [("message", "Hello")]


def test_example_ping_and_masked_pong() -> None:
    assert frames.encode(FIN | PING, b"Hello").hex() == "890548656c6c6f"
    assert read(bytes.fromhex("8a8537fa213d7f9f4d5158")) == [("pong", b"Hello")]


def test_example_lengths() -> None:
    assert frames.encode(FIN | BINARY, bytes(256))[:4].hex() == "827e0100"
    assert frames.encode(FIN | BINARY, bytes(65536))[:10].hex() == "827f0000000000010000"


# Round trips.

messages = st.one_of(st.binary(max_size=300), st.text(max_size=100))
fragments = st.lists(st.integers(0, 300), max_size=6)


@given(
    sent=st.lists(st.tuples(messages, fragments, st.booleans()), max_size=6),
    cuts=st.lists(st.integers(0, 5000), max_size=30),
    to_server=st.booleans(),
    deflate=st.booleans(),
)
def test_any_messages_in_any_fragments_in_any_chunks(
    sent: list[tuple[bytes | str, list[int], bool]], cuts: list[int], to_server: bool, deflate: bool
) -> None:
    mask = MASK if to_server else b""
    wire, expected = b"", list[HookCall]()
    for message, splits, ping in sent:
        payload = message.encode() if isinstance(message, str) else message
        first = TEXT if isinstance(message, str) else BINARY
        if deflate and len(payload) > 125:
            payload, first = frames.deflate(payload), first | RSV1
        edges = sorted({0, len(payload), *(s for s in splits if s < len(payload))})
        parts = [payload[a:b] for a, b in pairwise(edges)] or [b""]
        for number, part in enumerate(parts):
            head = (first if number == 0 else CONTINUATION) | (FIN if number == len(parts) - 1 else 0)
            wire += frames.encode(head, part, mask)
            if ping and number < len(parts) - 1:
                wire += frames.encode(FIN | PING, b"between", mask)
                expected.append(("ping", b"between"))
        expected.append(("message", message))
    reader = (ServerReader if to_server else ClientReader)(deflate=deflate)
    for a, b in pairwise(sorted({0, len(wire), *(c for c in cuts if c < len(wire))})):
        reader.feed(wire[a:b])
    assert reader.calls == expected
    assert reader._partial is None, "a reader between messages keeps nothing"


@pytest.mark.parametrize("size", [0, 1, 4, 125, 126, 127, 128, 65535, 65536, 65537, 300_000])
@pytest.mark.parametrize("reader", [ServerReader, ClientReader])
def test_every_length_form_byte_by_byte_at_the_edges(size: int, reader: type[ServerReader]) -> None:
    payload = os.urandom(size)
    data = frames.encode(FIN | BINARY, payload, MASK if reader.MASKED else b"")
    whole, split = reader(), reader()
    whole.feed(data)
    for byte in data[:20]:
        split.feed(bytes([byte]))
    split.feed(data[20:])
    assert whole.calls == split.calls == [("message", payload)]


@given(
    opcode=st.integers(0, 15), flags=st.sampled_from([FIN, 0, FIN | RSV1]), form=st.sampled_from([7, 16, 64]),
    size=st.one_of(st.integers(0, 300), st.integers(65_530, 65_540)), limit=st.sampled_from([125, 130, 200, 1 << 20]),
    masked=st.booleans(), reader=st.sampled_from([ServerReader, ClientReader]), missing=st.integers(-2, 2),
)  # fmt: skip
def test_a_frame_that_comes_alone_is_read_as_one_that_comes_in_pieces(
    opcode: int, flags: int, form: int, size: int, limit: int, masked: bool, reader: type[ServerReader], missing: int
) -> None:
    """Whole messages have a way of their own through the reader, which must not be laxer than the other."""
    bit = 0x80 if masked else 0
    forms = {7: bytes([bit | min(size, 125)]), 16: bytes([bit | 126]), 64: bytes([bit | 127])}
    length = {7: b"", 16: (size & 0xFFFF).to_bytes(2, "big"), 64: size.to_bytes(8, "big")}
    frame = bytes([flags | opcode]) + forms[form] + length[form] + (MASK if masked else b"") + b"a" * (size - missing)
    whole, pieces = reader(limit), reader(limit)
    whole.feed(frame)
    for position in range(0, len(frame), 7):
        pieces.feed(frame[position : position + 7])
    assert whole.calls == pieces.calls
    assert whole.kept == pieces.kept


@given(data=st.binary(max_size=200), deflate=st.booleans(), cut=st.integers(0, 200))
def test_arbitrary_bytes_never_raise_and_a_violation_is_last(data: bytes, deflate: bool, cut: int) -> None:
    reader = ServerReader(limit=1000, deflate=deflate)
    reader.feed(data[:cut])
    reader.feed(data[cut:])
    kinds = [kind for kind, _ in reader.calls]
    assert all(kind not in ("violation", "close") for kind in kinds[:-1])
    if kinds and kinds[-1] in ("violation", "close"):
        before = list(reader.calls)
        reader.feed(frames.encode(FIN | BINARY, b"more", MASK))
        assert reader.calls == before


@given(payload=st.binary(max_size=300), first=st.sampled_from([0xC1, 0xC2]))
def test_arbitrary_deflate_never_raises(payload: bytes, first: int) -> None:
    calls = read(frames.encode(first, payload, MASK), limit=1000, deflate=True)
    assert len(calls) == 1
    assert calls[0][0] in ("message", "violation")


# Violations.


def masked(first: int, payload: bytes = b"") -> bytes:
    return frames.encode(first, payload, MASK)


VIOLATIONS: dict[str, tuple[bytes, int]] = {
    "rsv1": (masked(0xC2, b"x"), 1002),
    "rsv2": (masked(0xA2, b"x"), 1002),
    "rsv3": (masked(0x92, b"x"), 1002),
    **{f"reserved opcode {op}": (masked(FIN | op, b"x"), 1002) for op in (3, 4, 5, 6, 7, 11, 12, 13, 14, 15)},
    "fragmented ping": (masked(PING, b"x"), 1002),
    "fragmented close": (masked(CLOSE, b"\x03\xe8"), 1002),
    "long ping": (masked(FIN | PING, bytes(126)), 1002),
    "long close": (masked(FIN | CLOSE, b"\x03\xe8" + bytes(124)), 1002),
    "unmasked": (frames.encode(FIN | BINARY, b"abcdef"), 1002),
    "continuation of nothing": (masked(FIN | CONTINUATION, b"x"), 1002),
    "unfinished continuation of nothing": (masked(CONTINUATION, b"x"), 1002),
    "text inside text": (masked(TEXT, b"a") + masked(FIN | TEXT, b"b"), 1002),
    "binary fragment inside text": (masked(TEXT, b"a") + masked(BINARY, b"b"), 1002),
    "16-bit length of 125": (b"\x82\xfe\x00\x7d" + MASK + bytes(125), 1002),
    "64-bit length of 65535": (b"\x82\xff" + (65535).to_bytes(8, "big") + MASK, 1002),
    "64-bit length with the top bit": (b"\x82\xff\x80" + bytes(7) + MASK, 1002),
    "one frame too big": (b"\x82\xff" + (1001 + 65536).to_bytes(8, "big") + MASK, 1009),
    "fragments too big": (masked(BINARY, bytes(600)) + masked(FIN | CONTINUATION, bytes(401)), 1009),
    "close of one byte": (masked(FIN | CLOSE, b"\x03"), 1002),
    "close reason not UTF-8": (masked(FIN | CLOSE, b"\x03\xe8\xff"), 1007),
    "text not UTF-8": (masked(FIN | TEXT, b"a\xff"), 1007),
    "text cut inside a character": (masked(FIN | TEXT, "€".encode()[:2]), 1007),
    "surrogate": (masked(FIN | TEXT, b"\xed\xa0\x80"), 1007),
}


@pytest.mark.parametrize("name", VIOLATIONS)
@pytest.mark.parametrize("chunk", [1, 1000])
def test_frames_that_violate_rfc_6455_are_refused(name: str, chunk: int) -> None:
    data, code = VIOLATIONS[name]
    reader = ServerReader(limit=1000)
    for start in range(0, len(data), chunk):
        reader.feed(data[start : start + chunk])
    assert reader.calls == [("violation", code)]


def test_a_continuation_after_the_end_of_its_message_is_a_violation() -> None:
    data = masked(TEXT, b"a") + masked(FIN | CONTINUATION) + masked(FIN | CONTINUATION)
    assert read(data) == [("message", "a"), ("violation", 1002)]


def test_a_server_that_masks_is_refused_by_a_client() -> None:
    reader = ClientReader()
    reader.feed(masked(FIN | BINARY, b"abcdef"))
    assert reader.calls == [("violation", 1002)]


@pytest.mark.parametrize("code", [0, 999, 1004, 1005, 1006, 1015, 1016, 1100, 2000, 2999, 5000, 65535])
def test_close_codes_that_may_not_be_sent_are_violations(code: int) -> None:
    assert read(masked(FIN | CLOSE, code.to_bytes(2, "big"))) == [("violation", 1002)]


@pytest.mark.parametrize(
    "code", [1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 1012, 1013, 1014, 3000, 3999, 4000, 4999]
)
def test_close_codes_that_may_be_sent_are_accepted(code: int) -> None:
    data = masked(FIN | CLOSE, frames.close_payload(code, "why"))
    assert read(data + masked(FIN | BINARY, b"after")) == [("close", (code, "why"))]


def test_close_may_have_no_code() -> None:
    assert read(masked(FIN | CLOSE)) == [("close", (1005, ""))]
    assert frames.close_payload(1005) == b""


@given(st.text(max_size=200))
def test_close_reasons_are_cut_between_characters(reason: str) -> None:
    payload = frames.close_payload(4000, reason)
    assert len(payload) <= 125
    assert reason.startswith(payload[2:].decode())
    assert len(payload) >= min(125 - 3, 2 + len(reason.encode())), "cut no more than a character requires"


# Limits.


def test_a_message_of_exactly_the_limit_is_accepted() -> None:
    assert read(masked(FIN | BINARY, bytes(1000)), limit=1000) == [("message", bytes(1000))]
    assert read(masked(BINARY, bytes(500)) + masked(FIN | CONTINUATION, bytes(500)), limit=1000) == [
        ("message", bytes(1000))
    ]


def test_a_too_large_message_is_refused_by_its_header() -> None:
    assert read(b"\x82\xfe\x03\xe9", limit=1000) == [("violation", 1009)]


def test_empty_fragments_take_no_memory() -> None:
    reader = ServerReader(limit=1000)
    reader.feed(masked(TEXT, b"a"))
    many = masked(CONTINUATION) * 10_000
    tracemalloc.start()
    try:
        for _ in range(20):
            reader.feed(many)
        grown, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert grown < 10_000, "200,000 empty fragments"
    reader.feed(masked(FIN | CONTINUATION, b"b"))
    assert reader.calls == [("message", "ab")]


def test_discard_ends_even_the_read_in_progress() -> None:
    class Once(ServerReader):
        def message_received(self, message: bytes | str) -> None:
            super().message_received(message)
            self.discard()

    reader = Once()
    reader.feed(masked(FIN | TEXT, b"one") + masked(FIN | TEXT, b"two"))
    assert reader.calls == [("message", "one")]


# permessage-deflate.


def test_deflate_round_trip_is_smaller() -> None:
    payload = b"the same words again and again " * 100
    packed = frames.deflate(payload)
    assert len(packed) < len(payload) / 10
    assert read(masked(0xC2, packed), deflate=True) == [("message", payload)]


def test_rsv1_belongs_to_the_first_fragment() -> None:
    packed = frames.deflate(b"x" * 500)
    assert read(masked(BINARY | RSV1, packed[:3]) + masked(FIN, packed[3:]), deflate=True) == [("message", b"x" * 500)]
    assert read(masked(BINARY | RSV1, packed[:3]) + masked(FIN | RSV1, packed[3:]), deflate=True) == [
        ("violation", 1002)
    ]


def test_an_inflate_bomb_is_refused_without_being_inflated() -> None:
    compressor = zlib.compressobj(9, zlib.DEFLATED, -15)
    bomb = (compressor.compress(bytes(50_000_000)) + compressor.flush(zlib.Z_SYNC_FLUSH))[:-4]
    tracemalloc.start()
    try:
        calls = read(masked(0xC2, bomb), limit=100_000, deflate=True)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert calls == [("violation", 1009)]
    assert peak < 1_000_000


def test_a_message_inflated_to_exactly_the_limit_is_accepted() -> None:
    packed = frames.deflate(bytes(1000))
    assert read(masked(0xC2, packed), limit=1000, deflate=True) == [("message", bytes(1000))]
    assert read(masked(0xC2, packed), limit=999, deflate=True) == [("violation", 1009)]


def test_data_that_is_not_deflate_is_refused() -> None:
    assert read(masked(0xC2, b"\xff\xff\xff\xff"), deflate=True) == [("violation", 1007)]


def test_masking_fallback_equals_the_compiled_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """An import without websockets.speedups, as on a platform without a wheel."""
    import importlib.util
    import sys

    monkeypatch.setitem(sys.modules, "websockets.speedups", None)
    spec = importlib.util.find_spec("fairlead.wire.websocket.frames")
    assert spec is not None
    assert spec.loader is not None
    plain = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(plain)
    for size in (0, 1, 3, 4, 5, 127, 40_001):
        data = os.urandom(size)
        assert plain.apply_mask(data, MASK) == frames.apply_mask(data, MASK)
    assert plain.apply_mask is not frames.apply_mask


def test_pong_constant_is_the_answer_to_ping() -> None:
    assert read(masked(FIN | PONG, b"late")) == [("pong", b"late")]


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just(FIN | BINARY), st.binary(max_size=300)),
            st.tuples(st.just(FIN | PING), st.binary(max_size=20)),
            st.tuples(st.just(BINARY), st.binary(max_size=40)),
        ),
        max_size=30,
    ),
    st.integers(1, 5),
    st.lists(st.integers(1, 90), min_size=1, max_size=10),
)
def test_a_reader_that_reads_some_frames_at_a_time_reads_the_same(
    sent: list[tuple[int, bytes]], most: int, cuts: list[int]
) -> None:
    data, count = b"", 0
    for first, payload in sent:
        data += frames.encode(first, payload, MASK)
        count += 1
        if not first & FIN:
            data += frames.encode(FIN | CONTINUATION, payload, MASK)
            count += 1
    reader, position, turn, read_frames = ServerReader(), 0, 0, 0
    while position < len(data) or reader.keeps_frames:
        piece = data[position : position + cuts[turn % len(cuts)]]
        position, turn = position + len(piece), turn + 1
        if reader.keeps_frames and turn % 2 and piece:
            before = reader.kept
            reader.keep(piece)  # it waits for its turn
            assert reader.kept == before + len(piece)
            continue
        now = reader.feed(piece, most)
        assert now <= most
        read_frames += now
        assert reader.unparsed <= reader.kept
    assert read_frames == count
    assert reader.calls == read(data)
    assert (reader.kept, reader.unparsed, reader.keeps_frames) == (0, 0, False)


def test_kept_bytes_are_counted() -> None:
    reader = ServerReader()
    assert reader.feed(frames.encode(BINARY, b"x" * 100, MASK)) == 1
    assert (reader.kept, reader.unparsed, reader.keeps_frames) == (100, 0, False)
    assert reader.feed(frames.encode(FIN | CONTINUATION, b"y" * 50, MASK)[:-1]) == 0
    assert (reader.kept, reader.unparsed, reader.keeps_frames) == (155, 55, False)
    reader.discard()
    assert (reader.kept, reader.keeps_frames, reader.feed(b"more")) == (0, False, 0)
    reader.keep(b"more")
    assert reader.kept == 0
