"""Enrolment tokens: who may enrol, when, and how often; and what a caller without the secret learns."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.errors import InvalidRequest, Unauthorized
from fairlead.identity.enrolment_token import EnrolmentToken, check_enrolment, check_pattern, new_token, split_token

DRAW = bytes(range(38))
ID, DIGEST, TEXT = new_token(DRAW)
SECRET = TEXT.removeprefix(f"fl_enrol_{ID}_")
TOKEN = EnrolmentToken(ID, DIGEST, created=1_000, expires=2_000, agents="web-*", uses=2)


def reason(token: EnrolmentToken | None, secret: str, agent: str = "web-1", used: int = 0, now: int = 1_500) -> object:
    with pytest.raises(Unauthorized) as refused:
        check_enrolment(token, secret, agent, used, now)
    return refused.value.details["reason"]


def test_a_token_enrols_until_it_expires_or_is_used_up() -> None:
    check_enrolment(TOKEN, SECRET, "web-1", 0, 1_000)
    check_enrolment(TOKEN, SECRET, "web-2", 1, 1_999)
    assert reason(TOKEN, SECRET, now=2_000) == "expired"
    assert reason(TOKEN, SECRET, used=2) == "used"
    assert reason(TOKEN, SECRET, used=3) == "used"


@pytest.mark.parametrize("agent", ["db-1", "Web-1", "xweb-1", "web", ""])
def test_a_token_enrols_ids_of_its_pattern_alone(agent: str) -> None:
    assert reason(TOKEN, SECRET, agent) == "agent"


def test_without_the_secret_nobody_learns_what_became_of_a_token() -> None:
    messages = set()
    for token, agent, used, now in ((None, "web-1", 0, 0), (TOKEN, "web-1", 0, 0), (TOKEN, "db-1", 9, 9_999)):
        with pytest.raises(Unauthorized) as refused:
            check_enrolment(token, "x" * 43, agent, used, now)
        messages.add((refused.value.message, refused.value.details["reason"]))
    assert len(messages) == 1


def test_no_secret_is_that_of_a_token_that_does_not_exist() -> None:
    assert reason(None, "") == "secret"


@given(st.binary(min_size=38, max_size=38))
def test_the_text_of_a_token_has_its_id_and_its_secret(draw: bytes) -> None:
    id, digest, text = new_token(draw)
    split = split_token(text)
    assert split is not None
    assert split[0] == id
    check_enrolment(EnrolmentToken(id, digest, 0, 1, "*", 1), split[1], "a", 0, 0)
    assert split[1] not in digest
    for other in (text + "A", text[:-1], text.upper(), " " + text, text + "\n", text.removeprefix("fl_enrol_")):
        assert split_token(other) is None


@given(st.text(max_size=80))
def test_any_other_text_is_no_token(text: str) -> None:
    assert split_token(text) is None


@pytest.mark.parametrize("pattern", ["*", "web-*", "web-??", "a.b_c-*", "*a*b*c*"])
def test_patterns(pattern: str) -> None:
    assert check_pattern(pattern) == pattern


@pytest.mark.parametrize("pattern", ["", "web[12]", "a b", "web-*\n", "*a*b*c*d*", "x" * 129, "ä*", "a{b}"])
def test_what_is_no_pattern_of_ids(pattern: str) -> None:
    with pytest.raises(InvalidRequest, match="invalid pattern of ids"):
        check_pattern(pattern)


def test_a_pattern_made_to_be_slow_is_not() -> None:
    """A comparison that tries all ways to split the id would not end before the deadline of the test."""
    token = EnrolmentToken(ID, DIGEST, 0, 10, check_pattern("*a*a*a*" + "a" * 100), 1)
    for _ in range(100):
        assert reason(token, SECRET, "a" * 106 + "b" * 22, now=1) == "agent"


@pytest.mark.parametrize("size", [0, 37, 39])
def test_randomness_of_another_size_makes_no_token(size: int) -> None:
    with pytest.raises(ValueError, match="takes 38 random bytes"):
        new_token(bytes(size))
