"""What is signed: no two different commands, and no command and input, are ever the same octets."""

from __future__ import annotations

from dataclasses import astuple, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.signing.command_signature import (
    ENVELOPE_BYTES,
    INPUTS,
    SIGNATURE_BYTES,
    CommandSignature,
    CommandTerms,
    unpack,
)
from fairlead.signing.errors import SignatureRejected
from fairlead.signing.input_signature import input_to_sign, pack_input, unpack_input
from fairlead.signing.signed_octets import signed_octets

# Few letters, among them those of the encoding itself: equal prefixes and moved borders are then common.
TEXT = st.text(st.sampled_from("a\x00\x01b"), max_size=6)
OCTETS = st.text(st.sampled_from("a\x00\x01b"), max_size=6).map(str.encode)
TIMES = st.integers(0, 300) | st.integers(0, (1 << 53) - 1)
KEYS = st.binary(min_size=16, max_size=16)
TERMS = st.builds(CommandTerms, TEXT, TEXT, TEXT, OCTETS, TEXT, TEXT, st.sampled_from(INPUTS), TIMES, TIMES)
FIELDS = st.lists(TEXT | OCTETS | TIMES, max_size=5)


def decoded(octets: bytes) -> list[bytes]:
    """The fields, by the description in docs/protocol.md alone."""
    fields = []
    while octets:
        size = int.from_bytes(octets[:4], "big")
        fields.append(octets[4 : 4 + size])
        assert len(fields[-1]) == size
        octets = octets[4 + size :]
    return fields


@given(TEXT, FIELDS)
def test_the_fields_can_be_read_back_so_no_two_encodings_are_equal(kind: str, fields: list[bytes | str | int]) -> None:
    expected = [
        one if isinstance(one, bytes) else one.encode() if isinstance(one, str) else one.to_bytes(8, "big")
        for one in fields
    ]
    assert decoded(signed_octets(kind, *fields)) == [kind.encode(), *expected]


@given(TERMS, TERMS, KEYS, KEYS)
def test_two_commands_have_the_same_octets_only_if_they_are_the_same(
    one: CommandTerms, other: CommandTerms, key: bytes, other_key: bytes
) -> None:
    same = astuple(one) == astuple(other) and key == other_key
    assert (one.to_sign(key) == other.to_sign(other_key)) is same
    assert one.to_sign(key) == replace(one).to_sign(key)


@given(TERMS, KEYS, st.data())
def test_each_term_is_covered(terms: CommandTerms, key: bytes, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(CommandTerms.__slots__))
    before = getattr(terms, name)
    if name == "input":
        after: Any = INPUTS[1 - INPUTS.index(before)]
    else:
        after = before + {int: 1, bytes: b"a", str: "a"}[type(before)]
    assert replace(terms, **{name: after}).to_sign(key) != terms.to_sign(key)


@given(TERMS, KEYS, KEYS, TEXT, TEXT, st.integers(0, 9), st.booleans(), OCTETS)
def test_input_is_never_a_command(
    terms: CommandTerms, key: bytes, other: bytes, agent: str, command: str, n: int, last: bool, data: bytes
) -> None:
    assert terms.to_sign(key) != input_to_sign(other, agent, command, n, last, data)


@given(KEYS, st.sampled_from(INPUTS), TIMES, TIMES, st.binary(min_size=SIGNATURE_BYTES, max_size=SIGNATURE_BYTES))
def test_the_envelope_is_read_as_it_was_written(
    key: bytes, input: str, issued: int, expires: int, signature: bytes
) -> None:
    made = CommandSignature(key, input, issued, expires, signature)  # type: ignore[arg-type]
    assert len(made.pack()) == ENVELOPE_BYTES == 98
    assert unpack(made.pack()) == made


@given(st.binary(max_size=120))
def test_other_octets_are_rejected_and_nothing_else_happens(octets: bytes) -> None:
    if len(octets) == ENVELOPE_BYTES and octets[0] == 1 and octets[1] <= 1:
        assert unpack(octets).pack() == octets
        return
    with pytest.raises(SignatureRejected) as caught:
        unpack(octets)
    assert caught.value.rejection == "signature_invalid"


@given(st.booleans(), st.binary(min_size=SIGNATURE_BYTES, max_size=SIGNATURE_BYTES), st.binary(max_size=9))
def test_input_is_read_as_it_was_written(last: bool, signature: bytes, data: bytes) -> None:
    assert unpack_input(pack_input(last, signature, data)) == (last, signature, data)


@pytest.mark.parametrize("payload", [b"", b"\x00" * 64, b"\x02" * 65, b"ls\n"])
def test_input_without_a_signature_is_rejected(payload: bytes) -> None:
    with pytest.raises(SignatureRejected, match="the input is not signed: expected 65 octets or more"):
        unpack_input(payload)
