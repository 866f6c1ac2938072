"""A line that repeats is loud once, and then quiet until it is due again."""

from __future__ import annotations

from logging import DEBUG, ERROR, INFO

from fairlead.repeated_lines import LINES, RepeatedLines


def test_a_line_is_loud_once_and_again_when_it_persists() -> None:
    lines = RepeatedLines(60.0)
    assert [lines.level("refused", ERROR, now) for now in (5, 6, 64, 65, 66, 125)] == [
        ERROR, DEBUG, DEBUG, ERROR, DEBUG, ERROR,
    ]  # fmt: skip
    assert lines.level("timeout", INFO, 126) == INFO, "another line is no repetition"
    assert lines.level("refused", ERROR, 127) == DEBUG
    lines.clear()
    assert lines.level("refused", ERROR, 128) == ERROR, "it had succeeded in between"


def test_other_parties_cannot_fill_the_memory() -> None:
    lines = RepeatedLines(60.0)
    assert {lines.level(f"{n}", ERROR, 0.0) for n in range(10 * LINES)} == {ERROR}
    assert lines.level("0", ERROR, 0.0) == ERROR, "the oldest are forgotten"


def test_many_lines_that_take_turns_are_quiet_where_so_many_are_expected() -> None:
    """Such as those of all schedules of a newer version, after a node went back to an older one."""
    lines = RepeatedLines(60.0, 2 * LINES)
    for now, level in ((0, ERROR), (5, DEBUG), (10, DEBUG)):
        assert {lines.level(f"{n}", ERROR, now) for n in range(2 * LINES)} == {level}
