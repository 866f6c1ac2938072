"""Input at the agent's end of a link: it waits for the handler, is granted when it is taken, and asked for again."""

from __future__ import annotations

import pytest

from fairlead.errors import ProtocolViolation
from fairlead.wire.messages import Chunk, Cmd, Credit, End
from fairlead.wire.outbox import Outbox

from support.wire.agent_memory import WINDOW, greeted, linked, welcomed


def test_input_waits_for_the_handler_and_its_credit_is_granted_when_taken(outbox: Outbox) -> None:
    link, stream = linked(outbox), outbox.streams["A"]
    for n in range(4):
        assert list(link.receive(Chunk(id="A", n=n, kind="stdin", payload=bytes([n]) * 10))) == ["A"]
    assert stream.input_size == 40
    granted = [stream.take() for _ in range(4)]
    assert [data for data, _ in granted] == [bytes([n]) * 10 for n in range(4)]
    assert [credit for _, credit in granted] == [None, None, None, Credit(id="A", bytes=40)]
    assert stream.settle() is None


def test_owed_credit_is_granted_before_the_handler_waits(outbox: Outbox) -> None:
    link, stream = linked(outbox), outbox.streams["A"]
    link.receive(Chunk(id="A", n=0, kind="stdin", payload=b"xyz"))
    assert stream.take() == (b"xyz", None)
    assert stream.settle() == Credit(id="A", bytes=3)
    assert stream.settle() is None


@pytest.mark.parametrize(
    "message", [Chunk(id="A", n=2, kind="stdin"), Chunk(id="A", n=0, kind="stdin"), End(id="A", total=2)]
)
def test_input_out_of_order_is_a_violation(outbox: Outbox, message: Chunk | End) -> None:
    link = linked(outbox)
    link.receive(Chunk(id="A", n=0, kind="stdin", payload=b"x"))
    with pytest.raises(ProtocolViolation, match="out of order: expected 1") as caught:
        link.receive(message)
    assert caught.value.close_code == 4500


def test_input_beyond_the_window_is_a_violation(outbox: Outbox) -> None:
    link = linked(outbox)
    link.receive(Chunk(id="A", n=0, kind="stdin", payload=bytes(WINDOW)))
    with pytest.raises(ProtocolViolation, match="exceeds the window of 64 bytes"):
        link.receive(Chunk(id="A", n=1, kind="stdin", payload=b"x"))


def test_input_after_its_end_is_a_violation(outbox: Outbox) -> None:
    link = linked(outbox)
    link.receive(Chunk(id="A", n=0, kind="stdin", payload=b"x"))
    link.receive(End(id="A", total=1))
    assert outbox.streams["A"].input_ended
    with pytest.raises(ProtocolViolation, match="out of order"):
        link.receive(Chunk(id="A", n=1, kind="stdin", payload=b"x"))


def test_input_for_an_unknown_command_is_ignored(outbox: Outbox) -> None:
    link = linked(outbox)
    outbox.streams["A"].end("ok")
    for id in ("A", "unknown"):
        assert list(link.receive(Chunk(id=id, n=7, kind="stdin", payload=bytes(1000)))) == []
        assert list(link.receive(End(id=id, total=99))) == []
    assert not outbox.streams["A"].input


def test_hello_asks_for_input_that_was_not_taken(outbox: Outbox) -> None:
    outbox.opened(Cmd(id="B", method="m")).end("ok")
    link, stream = linked(outbox), outbox.streams["A"]
    for n in range(3):
        link.receive(Chunk(id="A", n=n, kind="stdin", payload=b"x"))
    link.receive(End(id="A", total=3))
    stream.take()
    assert outbox.have() == {"A": 1}, "B has ended and takes no more input"
    again = greeted(outbox)
    assert len(stream.input) == 2, "it can still be taken"
    welcomed(again, {"A": 0, "B": 0})
    assert not stream.input
    assert not stream.input_ended
    again.receive(Chunk(id="A", n=1, kind="stdin", payload=b"x"))
    again.receive(End(id="A", total=2))
    assert stream.input_ended


def test_input_that_was_taken_between_hello_and_welcome_is_skipped_and_granted(outbox: Outbox) -> None:
    link, stream = linked(outbox), outbox.streams["A"]
    link.receive(Chunk(id="A", n=0, kind="stdin", payload=b"one"))
    again = greeted(outbox)
    assert again.input_from == {"A": 0}
    link.receive(Chunk(id="A", n=1, kind="stdin", payload=b"two"))  # on the old link, which is still in use
    assert [stream.take()[0], stream.take()[0]] == [b"one", b"two"]
    welcomed(again, {"A": 0})
    for n, payload in enumerate((b"one", b"two", b"three")):
        again.receive(Chunk(id="A", n=n, kind="stdin", payload=payload))
    assert stream.settle() == Credit(id="A", bytes=6)
    assert stream.take()[0] == b"three"
    assert not stream.input


def test_the_input_of_a_command_that_hello_did_not_name_comes_from_its_beginning(outbox: Outbox) -> None:
    link, again = linked(outbox), greeted(outbox)
    stream = outbox.opened(Cmd(id="late", method="m"))
    link.receive(Chunk(id="late", n=0, kind="stdin", payload=b"one"))
    stream.take()
    welcomed(again, {"A": 0, "late": 0})
    again.receive(Chunk(id="late", n=0, kind="stdin", payload=b"one"))
    again.receive(Chunk(id="late", n=1, kind="stdin", payload=b"two"))
    assert [payload for payload, _ in (stream.take(),)] == [b"two"]
