"""RFC 6455 §5 to §7 as a raw client sees it: for each way to accept a link, on both paths through the carrier, and on
both event loops.

It plays what chapters 1 to 7, 9 and 10 of Autobahn's test suite play, with messages up to our limit instead of 16 MiB.
Chapter 8 is empty there, and `test_deflate` plays compression.
"""

from __future__ import annotations

import asyncio
import itertools

import pytest

from support.carrier.raw_client import RawClient
from support.carrier.servers import Dial

FIN = 0x80
TEXT, BINARY, CONT, CLOSE, PING, PONG = 0x1, 0x2, 0x0, 0x8, 0x9, 0xA

pytestmark = pytest.mark.asyncio(loop_scope="module")


def closing(code: int) -> bytes:
    return code.to_bytes(2, "big")


async def ends_with(raw: RawClient, code: int) -> None:
    """The server sends a close frame with `code` and ends the stream; nothing else."""
    frames = await raw.frames()
    assert [first for first, _ in frames] == [FIN | CLOSE]
    assert int.from_bytes(frames[0][1][:2], "big") == code


@pytest.mark.parametrize("size", [0, 1, 124, 125, 126, 127, 128, 65535, 65536, 65537, 300_000])
@pytest.mark.parametrize("opcode", [TEXT, BINARY])
async def test_messages_of_any_size_are_echoed(echo_port: int, dial: Dial, size: int, opcode: int) -> None:
    raw = await dial(echo_port)
    payload = (b"*" * size) if opcode == TEXT else bytes(i * 7 % 256 for i in range(size))
    raw.send(FIN | opcode, payload)
    assert await raw.frame() == (FIN | opcode, payload)


@pytest.mark.parametrize("size", [0, 1, 125, 126, 300])
async def test_frames_may_arrive_byte_by_byte(echo_port: int, dial: Dial, size: int) -> None:
    raw = await dial(echo_port)
    for byte in raw.encode(FIN | BINARY, bytes(size)) + raw.encode(FIN | PING, b"p"):
        raw.write(bytes([byte]))
        await asyncio.sleep(0)
    assert {await raw.frame(), await raw.frame()} == {(FIN | BINARY, bytes(size)), (FIN | PONG, b"p")}


async def test_many_frames_in_one_segment_keep_their_order(echo_port: int, dial: Dial) -> None:
    raw = await dial(echo_port)
    sent = [b"%d" % i * (i % 200) for i in range(300)]
    raw.write(b"".join(raw.encode(FIN | BINARY, payload) for payload in sent))
    assert [(await raw.expect_frame())[1] for _ in sent] == sent


# Control frames.


@pytest.mark.parametrize("payload", [b"", b"Hello", bytes(range(256))[:125]])
async def test_a_ping_is_answered_with_its_payload(echo_port: int, dial: Dial, payload: bytes) -> None:
    raw = await dial(echo_port)
    raw.send(FIN | PING, payload)
    assert await raw.frame() == (FIN | PONG, payload)


async def test_pongs_are_ignored(echo_port: int, dial: Dial) -> None:
    raw = await dial(echo_port)
    raw.send(FIN | PONG, b"unasked")
    raw.send(FIN | PING, b"x")
    assert await raw.frame() == (FIN | PONG, b"x")


@pytest.mark.parametrize("in_one_write", [True, False])
async def test_many_pings_are_answered_in_order(echo_port: int, dial: Dial, in_one_write: bool) -> None:
    raw = await dial(echo_port)
    pings = [b"payload-%d" % i for i in range(10)]
    sent = b"".join(raw.encode(FIN | PING, payload) for payload in pings)
    for part in [sent] if in_one_write else [sent[i : i + 1] for i in range(len(sent))]:
        raw.write(part)
        await asyncio.sleep(0)
    assert [await raw.frame() for _ in pings] == [(FIN | PONG, payload) for payload in pings]


@pytest.mark.parametrize("gaps", list(itertools.product([None, PING, PONG], repeat=4)), ids=str)
async def test_control_frames_between_fragments_are_handled(
    echo_port: int, dial: Dial, gaps: tuple[int | None, ...]
) -> None:
    raw = await dial(echo_port)
    fragments = [(TEXT, "Zähl".encode()[:3]), (CONT, b""), (CONT, "Zähl".encode()[3:]), (CONT | FIN, b"!")]
    for (first, part), control in zip(fragments, gaps, strict=True):
        if control is not None:
            raw.send(FIN | control, b"c")
        raw.send(first, part)
    for _ in range(gaps.count(PING)):
        assert await raw.frame() == (FIN | PONG, b"c")
    assert await raw.frame() == (FIN | TEXT, "Zähl!".encode())


@pytest.mark.parametrize("chunk", [1, 997])
async def test_a_message_may_have_many_fragments(echo_port: int, dial: Dial, chunk: int) -> None:
    raw = await dial(echo_port)
    payload = bytes(range(256)) * 8
    parts = [payload[i : i + chunk] for i in range(0, len(payload), chunk)]
    for number, part in enumerate(parts):
        first = BINARY if number == 0 else CONT
        raw.send(first | (FIN if number == len(parts) - 1 else 0), part)
    assert await raw.frame() == (FIN | BINARY, payload)


@pytest.mark.parametrize("chunk", [1_300, 64 << 10, 1 << 20])
@pytest.mark.parametrize("opcode", [TEXT, BINARY])
async def test_the_largest_message_is_echoed(echo_port: int, dial: Dial, opcode: int, chunk: int) -> None:
    raw = await dial(echo_port)
    payload = b"0123456789abcdef" * (1 << 16)
    for start in range(0, len(payload), chunk):
        last = FIN if start + chunk >= len(payload) else 0
        raw.write(raw.encode((CONT if start else opcode) | last, payload[start : start + chunk], bytes(4)))
    assert await raw.frame() == (FIN | opcode, payload)


# Violations.

VIOLATIONS: dict[str, tuple[list[tuple[int, bytes]], int]] = {
    **{f"rsv {bit:#x}": ([(FIN | bit | BINARY, b"x")], 1002) for bit in (0x40, 0x20, 0x10, 0x70)},
    **{f"rsv {bit:#x} on a ping": ([(FIN | bit | PING, b"x")], 1002) for bit in (0x40, 0x20, 0x10)},
    **{f"opcode {op}": ([(FIN | op, b"x")], 1002) for op in (3, 4, 5, 6, 7, 11, 12, 13, 14, 15)},
    "ping of 126 bytes": ([(FIN | PING, bytes(126))], 1002),
    "close of 126 bytes": ([(FIN | CLOSE, closing(1000) + bytes(124))], 1002),
    "fragmented ping": ([(PING, b""), (CONT | FIN, b"")], 1002),
    "fragmented pong": ([(PONG, b"")], 1002),
    "continuation first": ([(CONT | FIN, b"x")], 1002),
    "open continuation first": ([(CONT, b"x")], 1002),
    "text inside a message": ([(TEXT, b"x"), (TEXT | FIN, b"y")], 1002),
    "fragment inside a message": ([(BINARY, b"x"), (BINARY, b"y")], 1002),
    "close of one byte": ([(FIN | CLOSE, b"\x03")], 1002),
    "close reason not UTF-8": ([(FIN | CLOSE, closing(1000) + b"\xce\xba\xff")], 1007),
    "text not UTF-8": (
        [(FIN | TEXT, b"\xce\xba\xe1\xbd\xb9\xcf\x83\xce\xbc\xce\xb5\xed\xa0\x80edited")],
        1007,
    ),
    "fragmented text not UTF-8": ([(TEXT, b"\xce\xba"), (CONT | FIN, b"\xff")], 1007),
    "text cut inside a character": ([(TEXT, b"a"), (CONT | FIN, b"\xf0\x9f\x98")], 1007),
}


@pytest.mark.parametrize("name", VIOLATIONS)
async def test_violations_close_with_their_code(echo_port: int, dial: Dial, name: str, no_errors: None) -> None:
    frames, code = VIOLATIONS[name]
    raw = await dial(echo_port)
    for first, payload in frames:
        raw.send(first, payload)
    await ends_with(raw, code)


@pytest.mark.parametrize("first", [FIN | 0x40 | TEXT, FIN | 0x3, FIN | 0xB, FIN | CONT, PING])
async def test_messages_before_a_violation_are_answered_and_later_ones_are_not(
    echo_port: int, dial: Dial, first: int
) -> None:
    raw = await dial(echo_port)
    raw.send(FIN | TEXT, b"Hello")
    assert await raw.frame() == (FIN | TEXT, b"Hello")
    raw.write(raw.encode(first, b"") + raw.encode(FIN | PING, b"later"))
    await ends_with(raw, 1002)


async def test_an_unmasked_frame_is_a_violation(echo_port: int, dial: Dial) -> None:
    raw = await dial(echo_port)
    raw.write(b"\x82\x05Hello")
    await ends_with(raw, 1002)


@pytest.mark.parametrize(
    "head", [b"\x82\xfe\x00\x05", b"\x82\xff" + (5).to_bytes(8, "big"), b"\x82\xff\x80" + bytes(7)]
)
async def test_lengths_not_in_the_shortest_form_are_a_violation(echo_port: int, dial: Dial, head: bytes) -> None:
    raw = await dial(echo_port)
    raw.write(head + bytes(4) + b"Hello")
    await ends_with(raw, 1002)


async def test_a_too_large_message_is_refused_while_the_peer_still_writes(echo_port: int, dial: Dial) -> None:
    """The close frame must arrive although megabytes that nobody reads are under way: no reset."""
    raw = await dial(echo_port)
    raw.write(raw.encode(FIN | BINARY, b"")[:1] + b"\xff" + (8 << 20).to_bytes(8, "big") + bytes(4))
    raw.write(bytes(8 << 20))
    await ends_with(raw, 1009)


async def test_fragments_that_are_too_large_together_are_refused(echo_port: int, dial: Dial) -> None:
    raw = await dial(echo_port)
    part = bytes(300_000)
    raw.write(raw.encode(BINARY, part, bytes(4)) + raw.encode(CONT, part, bytes(4)) * 3)
    await ends_with(raw, 1009)


async def test_frames_after_a_violation_are_not_read(echo_port: int, dial: Dial) -> None:
    raw = await dial(echo_port)
    raw.write(raw.encode(FIN | 0x3, b"x") + raw.encode(FIN | BINARY, b"later") + raw.encode(FIN | PING, b"later"))
    await ends_with(raw, 1002)


# UTF-8.

GOOD_TEXTS = [
    "",
    "Hello-µ@ßöäüàá-UTF-8!!",
    "κόσμε",
    "\x00",
    "\x7f",
    "\u07ff",
    "\uffff",
    "\U00010000",
    "\U0010ffff",
]
BAD_TEXTS = [
    b"\x80",
    b"\xbf",
    b"\xc0\xaf",
    b"\xc1\xbf",
    b"\xe0\x80\xaf",
    b"\xed\xa0\x80",
    b"\xed\xbf\xbf",
    b"\xf0\x80\x80\xaf",
    b"\xf4\x90\x80\x80",
    b"\xf5\x80\x80\x80",
    b"\xfe",
    b"\xff",
    b"\xc3",
    b"\xe2\x82",
    b"\xf0\x9f\x98",
]


@pytest.mark.parametrize("text", GOOD_TEXTS)
@pytest.mark.parametrize("fragmented", [False, True])
async def test_valid_utf8_text_is_delivered(echo_port: int, dial: Dial, text: str, fragmented: bool) -> None:
    raw = await dial(echo_port)
    payload = text.encode()
    if fragmented:
        raw.send(TEXT)
        for byte in payload:
            raw.send(CONT, bytes([byte]))
        raw.send(CONT | FIN)
    else:
        raw.send(FIN | TEXT, payload)
    assert await raw.frame() == (FIN | TEXT, payload)


@pytest.mark.parametrize("payload", BAD_TEXTS, ids=bytes.hex)
async def test_invalid_utf8_text_is_refused_with_1007(echo_port: int, dial: Dial, payload: bytes) -> None:
    raw = await dial(echo_port)
    raw.send(FIN | TEXT, b"fine until here" + payload)
    await ends_with(raw, 1007)


# Closing.


@pytest.mark.parametrize("code", [1000, 1001, 1002, 1003, *range(1007, 1015), 3000, 3999, 4000, 4999])
async def test_a_valid_close_is_echoed(echo_port: int, dial: Dial, code: int) -> None:
    raw = await dial(echo_port)
    raw.send(FIN | CLOSE, closing(code) + b"reason")
    await ends_with(raw, code)


async def test_a_close_without_a_code_is_echoed_without_one(echo_port: int, dial: Dial) -> None:
    raw = await dial(echo_port)
    raw.send(FIN | CLOSE)
    assert await raw.frames() == [(FIN | CLOSE, b"")]


@pytest.mark.parametrize("code", [0, 999, 1004, 1005, 1006, 1015, 1016, 1100, 2000, 2999, 5000, 65535])
async def test_an_invalid_close_code_is_a_violation(echo_port: int, dial: Dial, code: int) -> None:
    raw = await dial(echo_port)
    raw.send(FIN | CLOSE, closing(code))
    await ends_with(raw, 1002)


async def test_a_close_may_have_the_longest_reason(echo_port: int, dial: Dial) -> None:
    raw = await dial(echo_port)
    raw.send(FIN | CLOSE, closing(1000) + b"*" * 123)
    await ends_with(raw, 1000)


async def test_a_close_inside_a_fragmented_message_is_answered(echo_port: int, dial: Dial) -> None:
    raw = await dial(echo_port)
    raw.send(TEXT, b"never finished")
    raw.send(FIN | CLOSE, closing(1000))
    await ends_with(raw, 1000)


async def test_frames_after_a_close_are_not_read(echo_port: int, dial: Dial) -> None:
    raw = await dial(echo_port)
    raw.write(raw.encode(FIN | CLOSE, closing(1000)) + raw.encode(FIN | PING, b"x") + raw.encode(FIN | TEXT, b"x"))
    await ends_with(raw, 1000)


async def test_frames_that_arrive_with_the_request_are_read(echo_port: int, dial: Dial) -> None:
    """Illegal (a client waits for the answer), and yet not lost."""
    raw = await dial(echo_port, upgrade=False)
    raw.write(raw.request() + raw.encode(FIN | BINARY, b"early"))
    raw.send(FIN | BINARY, b"later")
    assert await raw.answer() == 101
    assert await raw.frame() == (FIN | BINARY, b"early")
    assert await raw.frame() == (FIN | BINARY, b"later")
