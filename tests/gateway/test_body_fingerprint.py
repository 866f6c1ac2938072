"""Bodies with the same meaning have the same fingerprint, others have different ones."""

from __future__ import annotations

import json
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.app.api.body_fingerprint import fingerprint, number

TERMS = ("web-1", "exec", 60_000)
texts = st.text(st.characters(codec="utf-8"), max_size=8)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)


def of(payload: str) -> str:
    return fingerprint(TERMS, payload.encode())


def shuffled(value: object, data: st.DataObject) -> object:
    """The same value with the members of its objects in another order."""
    if isinstance(value, dict):
        names = data.draw(st.permutations(list(value)))
        return {name: shuffled(value[name], data) for name in names}
    return [shuffled(one, data) for one in value] if isinstance(value, list) else value


@given(values, st.data())
def test_order_whitespace_and_escapes_make_no_difference(value: object, data: st.DataObject) -> None:
    plain = json.dumps(value, ensure_ascii=False)
    other = json.dumps(shuffled(value, data), ensure_ascii=True, indent=3, separators=(" ,", " : "))
    assert of(plain) == of(other)


@given(values, values)
def test_bodies_with_another_meaning_differ(one: object, other: object) -> None:
    first, second = json.dumps(one), json.dumps(other)
    alike = exact(first) == exact(second)
    assert (of(first) == of(second)) is alike


def exact(text: str) -> str:
    """A value that compares as JSON does: numbers exactly, and true is not 1."""

    def read(digits: str) -> list[str]:
        return ["number", str(Fraction(digits))]

    return json.dumps(json.loads(text, parse_int=read, parse_float=read), sort_keys=True)


@given(st.from_regex(r"\A-?(0|[1-9][0-9]{0,12})(\.[0-9]{1,12})?([eE][+-]?[0-9]{1,3})?\Z"))
def test_numbers_are_compared_by_their_exact_value(text: str) -> None:
    assert Fraction(bytes(number(text)).decode()) == Fraction(text)


@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [
        ("1", "1.0", True),
        ("100", "1e2", True),
        ("0.10", "1E-1", True),
        ("-0", "0", True),
        ("9007199254740992", "9007199254740993", False),
        ("1", '"1"', False),
        ("1", "true", False),
        ('{"a":1,"a":2}', '{"a":2,"a":1}', False),
        ('{"a":1,"a":2}', '{"a":2}', False),
        ('{"b":0,"a":1,"a":2}', '{"a":1, "b":0, "a":2}', True),
        ("[1,2]", "[2,1]", False),
        ("null", "{}", False),
        ("1e" + "9" * 5000, "1e" + "9" * 4999, False),
        ('"\\ud800"', '"\\ud800"', True),
        ("[" * 5000 + "]" * 5000, "[" * 5000 + "]" * 5000, True),
    ],
)
def test_examples_of_equal_and_different_bodies(one: str, other: str, alike: bool) -> None:
    assert (of(one) == of(other)) is alike


def test_agent_method_and_deadline_count_too() -> None:
    assert fingerprint(TERMS, b"{}") != fingerprint(("web-2", "exec", 60_000), b"{}")
