"""Close codes: the number says what an agent does next, the table has each code once, and the documentation agrees."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fairlead.wire.close_codes import (
    CloseCode,
    CloseKind,
    describe,
    find_close_code,
    may_reconnect,
    meaning_of,
    was_orderly,
)
from fairlead.wire.websocket.frames import close_payload, is_close_code

DOCS = Path(__file__).resolve().parent.parent.parent / "docs"
PROTOCOL = DOCS / "protocol.md"


def documented() -> dict[int, tuple[str, bool]]:
    """The rows of the table in docs/protocol.md: each code with its name and whether the agent reconnects."""
    rows = re.findall(
        r"^\| (\d{4}(?:, \d{4})*) \| ([^|]+) \|.*\| (yes|no)\b[^|]*\|$",
        PROTOCOL.read_text(encoding="utf-8"),
        re.MULTILINE,
    )
    return {
        int(code): (name, word == "yes")
        for codes, names, word in rows
        for code, name in zip(codes.split(", "), names.split(", "), strict=True)
    }


def test_the_documentation_has_every_code_with_its_name_and_what_the_agent_does() -> None:
    found = {code: (re.sub(r"[ -]", "", name).lower(), again) for code, (name, again) in documented().items()}
    assert found == {c.value: (c.name.replace("_", "").lower(), may_reconnect(c)) for c in CloseCode}


def test_the_runbook_of_lost_links_names_the_codes_that_count_as_lost() -> None:
    page = (DOCS / "runbooks" / "FairleadLostLinksFast.md").read_text(encoding="utf-8")
    meaning = page.split("**Meaning.**")[1].split("**First.**")[0]
    named = {int(code) for code in re.findall(r"\b[14]\d{3}\b", meaning)}
    assert named == {code.value for code in CloseCode if code.kind is CloseKind.LOST}


@pytest.mark.parametrize("code", [1000, 1001, 1006, 1009, 1011, 1012, 1013, 3000, 4000, 4321, 4499])
def test_codes_below_4500_mean_reconnect_known_or_not(code: int) -> None:
    assert may_reconnect(code)


@pytest.mark.parametrize("code", [4500, 4507, 4599, 4999])
def test_codes_from_4500_on_mean_do_not_reconnect_known_or_not(code: int) -> None:
    assert not may_reconnect(code)


def test_codes_below_4500_are_those_after_which_a_link_may_come_back() -> None:
    """A link that was lost or moved comes back, so these kinds have no code from 4500 on."""
    assert all(may_reconnect(code) for code in CloseCode if code.kind in (CloseKind.LOST, CloseKind.MOVED))


def test_each_code_is_in_the_table_once() -> None:
    assert len(CloseCode.__members__) == len({code.value for code in CloseCode})
    assert {find_close_code(code.value) for code in CloseCode} == set(CloseCode)
    assert find_close_code(4321) is None


def test_a_code_is_described_with_its_meaning() -> None:
    assert describe(4008) == "4008 (nothing was heard for 2.5 heartbeats)"
    assert describe(4321) == "4321 (unknown close code)"
    assert meaning_of(4321, "no reason") == "no reason"


def test_intended_closes_are_orderly() -> None:
    orderly = {code.value for code in CloseCode if was_orderly(code)}
    assert orderly == {1000, 1001, 1012, 4000, 4004, 4006, 4007, 4507}
    assert not was_orderly(4321)


def test_unintended_closes_are_lost() -> None:
    assert {code.value for code in CloseCode if code.kind is CloseKind.LOST} == {1006, 1011, 4003, 4008, 4408}


def test_codes_that_are_sent_are_legal_in_rfc_6455() -> None:
    for code in CloseCode:
        if code not in (CloseCode.NO_STATUS, CloseCode.ABNORMAL):
            assert is_close_code(code)
            assert len(close_payload(code, code.meaning)) <= 125
