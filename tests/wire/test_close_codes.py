"""Close codes: the range says what an agent does next, and the documentation lists them all."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fairlead.wire.close_codes import MEANING, CloseCode, describe, may_reconnect
from fairlead.wire.framing import close_payload, is_close_code

PROTOCOL = Path(__file__).resolve().parent.parent.parent / "docs" / "protocol.md"
COMEBACK = {
    CloseCode.RESTART, CloseCode.REBALANCE, CloseCode.AGE, CloseCode.BUS_AWAY, CloseCode.DISCONNECTED,
    CloseCode.SUPERSEDED, CloseCode.SILENT, CloseCode.SLOW_READER, CloseCode.RATE, CloseCode.FULL,
}  # fmt: skip
FINAL = {
    CloseCode.PROTOCOL, CloseCode.ENCODING, CloseCode.VERSION_RETIRED, CloseCode.TOKEN_REFUSED,
    CloseCode.IDENTITY_CONFLICT, CloseCode.REVOKED, CloseCode.TOO_BIG, CloseCode.REPLACED,
}  # fmt: skip


def test_every_code_of_ours_is_in_one_range() -> None:
    assert {code for code in CloseCode if code >= 4000} == COMEBACK | FINAL
    assert all(4000 <= code < 4500 and may_reconnect(code) for code in COMEBACK)
    assert all(4500 <= code < 5000 and not may_reconnect(code) for code in FINAL)


@pytest.mark.parametrize("code", [1000, 1001, 1006, 1009, 1011, 1012, 1013, 3000, 4499])
def test_codes_of_others_mean_come_back(code: int) -> None:
    assert may_reconnect(code)


@pytest.mark.parametrize("code", [4500, 4599, 4999])
def test_unknown_codes_follow_their_range(code: int) -> None:
    assert not may_reconnect(code)


def test_every_code_has_its_words() -> None:
    assert set(MEANING) == set(CloseCode)
    assert describe(4008) == "4008 (nothing was heard for 2.5 heartbeats)"
    assert describe(4321) == "4321 (unknown close code)"


def test_what_we_send_is_legal_on_the_wire() -> None:
    for code in CloseCode:
        if code not in (CloseCode.NO_STATUS, CloseCode.ABNORMAL):
            assert is_close_code(code)
            assert len(close_payload(code, MEANING[code])) <= 125


def test_the_documentation_lists_every_code_of_ours() -> None:
    rows = re.findall(r"^\| (4\d\d\d) \|.*\| (yes|no)\b[^|]*\|$", PROTOCOL.read_text(encoding="utf-8"), re.MULTILINE)
    assert {int(code): word == "yes" for code, word in rows} == {
        code.value: may_reconnect(code) for code in COMEBACK | FINAL
    }
