"""The digest of an output is the same, however it was cut into chunks and whoever makes it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.fleet import commands
from fairlead.fleet.command_record import StoredEnd
from fairlead.fleet.schema import TargetState
from fairlead.routing.commands.output_digest import OutputDigest, exit_code, output_of_steps
from fairlead.store.reply import Arg

chunks = st.lists(st.tuples(st.sampled_from(["stdout", "stderr"]), st.binary(max_size=20)), max_size=8)


def steps_of(output: list[tuple[str, bytes]], ending: StoredEnd) -> list[Arg]:
    steps: list[Arg] = [*commands.accepted()]
    for n, (kind, payload) in enumerate(output):
        steps += commands.data(n, kind, payload)
    return [*steps, *commands.ending(len(output), TargetState.OK, ending)]


@given(chunks, st.none() | st.binary(min_size=1, max_size=20))
def test_what_was_sent_and_what_was_stored_have_one_digest(
    output: list[tuple[str, bytes]], payload: bytes | None
) -> None:
    stored = OutputDigest()
    for kind in sorted({kind for kind, _ in output}):  # as one chunk for each kind
        stored.add(kind, b"".join(part for one, part in output if one == kind))
    ending = StoredEnd(payload=payload)
    sent = output_of_steps(steps_of(output, ending))
    assert sent is not None
    assert sent.digest == stored.digest(ending)
    assert (stored.digest(ending) == "") is (not output and not payload)


def test_a_part_of_what_was_sent_has_no_digest() -> None:
    steps = steps_of([("stdout", b"one"), ("stdout", b"two")], StoredEnd(payload=b"{}"))
    assert output_of_steps(steps[:5]) is None  # no end
    assert output_of_steps([*steps[5:]]) is None  # its beginning was sent before
    assert output_of_steps(steps_of([("stdout", bytes(70_000)), ("stdout", b"")], StoredEnd())) is None
    assert output_of_steps(steps) is not None


@pytest.mark.parametrize(
    ("payload", "code"),
    [
        (b'{"exit_code": 3}', "exit_3"),
        (b'{"more":{"exit_code":1},"exit_code":255}', "exit_255"),
        (b'{"signal":9}', "signal_9"),
        (b'{"exit_code":0}', ""),
        (b'{"exit_code":"three"}', ""),
        (b'["exit_code"]', ""),
        (b'"exit_code"', ""),
        (b'{"exit_code":1', ""),
        (b"{}", ""),
        (None, ""),
    ],
)
def test_how_a_program_exited_is_read_from_what_its_method_returned(payload: bytes | None, code: str) -> None:
    assert exit_code(payload) == code
    sent = output_of_steps(steps_of([("stdout", b"text")], StoredEnd(payload=payload)))
    assert sent is not None
    assert sent.exit == code
