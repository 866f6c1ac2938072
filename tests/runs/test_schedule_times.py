"""When schedules are due, over changes of clocks too; and the places of spread starts."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from fairlead.errors import InvalidRequest
from fairlead.routing.runs.batches import spread_order
from fairlead.routing.schedules.schedule_times import next_start


def at(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp() * 1000)


def starts(cron: str, zone: str, after: str, count: int) -> list[str]:
    found, last = [], at(after)
    for _ in range(count):
        last = next_start(cron, zone, last)
        found.append(datetime.fromtimestamp(last / 1000, UTC).strftime("%m-%dT%H:%M"))
    return found


def test_an_expression_is_read_in_its_zone() -> None:
    assert starts("30 2 * * *", "UTC", "2026-01-01T00:00:00+00:00", 2) == ["01-01T02:30", "01-02T02:30"]
    assert starts("30 2 * * 1-5", "Asia/Tokyo", "2026-01-01T00:00:00+00:00", 2) == ["01-01T17:30", "01-04T17:30"]
    assert next_start("* * * * *", "UTC", at("2026-01-01T00:00:59.999+00:00")) == at("2026-01-01T00:01:00+00:00")
    assert next_start("0 0 * * *", "UTC", at("2026-01-01T00:00:00+00:00")) == at("2026-01-02T00:00:00+00:00")


def test_what_is_due_in_a_missing_hour_is_due_after_it_and_in_a_double_one_once() -> None:
    spring = starts("30 2 * * *", "Europe/Berlin", "2026-03-28T12:00:00+00:00", 2)
    assert spring == ["03-29T01:00", "03-30T00:30"]  # 02:30 is missing: at 03:00, and on the next day as ever
    autumn = starts("30 2 * * *", "Europe/Berlin", "2026-10-24T12:00:00+00:00", 2)
    assert [start[:5] for start in autumn] == ["10-25", "10-26"]


@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Antarctica/Troll"])
@pytest.mark.parametrize("cron", ["30 2 * * *", "30 1,2 * * *", "45 1 * * *", "*/7 1-3 * * *", "* * * * *"])
def test_a_start_is_never_before_the_moment_after_which_it_is_looked_for(cron: str, zone: str) -> None:
    place, day = ZoneInfo(zone), at("2026-01-01T00:00:00+00:00")
    for _ in range(365):
        before, day = day, day + 86_400_000
        if (
            datetime.fromtimestamp(before / 1000, place).utcoffset()
            == datetime.fromtimestamp(day / 1000, place).utcoffset()
        ):
            continue
        for moment in range(before, day, 7 * 60_000 + 13):
            assert next_start(cron, zone, moment) > moment


@pytest.mark.parametrize(
    ("cron", "zone", "field"),
    [
        ("", "UTC", "cron"), ("* * * *", "UTC", "cron"), ("61 * * * *", "UTC", "cron"), ("@daily", "UTC", "cron"),
        ("0 0 30 2 *", "UTC", "cron"), ("* * * * *", "Mars/Olympus", "zone"), ("* * * * *", "../etc/passwd", "zone"),
        ("* * * * *", "", "zone"), ("* * * * * *", "UTC", "cron"), ("*/1 0 0 1 1 *", "UTC", "cron"),
    ],
)  # fmt: skip
def test_what_is_no_time_is_refused_with_the_member_at_fault(cron: str, zone: str, field: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        next_start(cron, zone, 0)
    assert refused.value.details["field"] == field


def test_an_agent_has_the_same_place_whoever_else_is_there() -> None:
    many = spread_order([f"web-{n}" for n in range(100)])
    few = spread_order([f"web-{n}" for n in range(0, 100, 7)])
    assert few == [agent for agent in many if agent in few]
    assert many != sorted(many)
