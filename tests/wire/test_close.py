"""Close codes: the range says what an agent does next, and the documentation lists them all."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fairlead.wire.close import MEANING, Close, describe, may_reconnect
from fairlead.wire.framing import close_payload, is_close_code

PROTOCOL = Path(__file__).resolve().parent.parent.parent / "docs" / "protocol.md"
COMEBACK = {
    Close.RESTART, Close.REBALANCE, Close.AGE, Close.BUS_AWAY, Close.DISCONNECTED, Close.SUPERSEDED, Close.SILENT,
    Close.SLOW_READER, Close.RATE, Close.FULL,
}  # fmt: skip
FINAL = {
    Close.PROTOCOL, Close.ENCODING, Close.VERSION_RETIRED, Close.TOKEN_REFUSED, Close.IDENTITY_CONFLICT,
    Close.REVOKED, Close.TOO_BIG, Close.REPLACED,
}  # fmt: skip


def test_every_code_of_ours_is_in_one_range() -> None:
    assert {code for code in Close if code >= 4000} == COMEBACK | FINAL
    assert all(4000 <= code < 4500 and may_reconnect(code) for code in COMEBACK)
    assert all(4500 <= code < 5000 and not may_reconnect(code) for code in FINAL)


@pytest.mark.parametrize("code", [1000, 1001, 1006, 1009, 1011, 1012, 1013, 3000, 4499])
def test_codes_of_others_mean_come_back(code: int) -> None:
    assert may_reconnect(code)


@pytest.mark.parametrize("code", [4500, 4599, 4999])
def test_unknown_codes_follow_their_range(code: int) -> None:
    assert not may_reconnect(code)


def test_every_code_has_its_words() -> None:
    assert set(MEANING) == set(Close)
    assert describe(4008) == "4008 (nothing was heard for 2.5 heartbeats)"
    assert describe(4321) == "4321 (unknown close code)"


def test_what_we_send_is_legal_on_the_wire() -> None:
    for code in Close:
        if code not in (Close.NO_STATUS, Close.ABNORMAL):
            assert is_close_code(code)
            assert len(close_payload(code, MEANING[code])) <= 125


def test_the_documentation_lists_every_code_of_ours() -> None:
    rows = re.findall(r"^\| (4\d\d\d) \|.*\| (yes|no)\b[^|]*\|$", PROTOCOL.read_text(encoding="utf-8"), re.MULTILINE)
    assert {int(code): word == "yes" for code, word in rows} == {
        code.value: may_reconnect(code) for code in COMEBACK | FINAL
    }
