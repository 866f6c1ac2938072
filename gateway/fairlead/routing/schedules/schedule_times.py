"""When a schedule is due: cron expressions of five fields in a time zone.

The API and the keeper of schedules call it. Where clocks are put forward, what falls into the missing hour is due right
after it; where they are put back, it is due once, as cron of Debian does. It reads no clock.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

from fairlead.errors import InvalidRequest

FIELDS: Final = 5
"""CronSim reads six too, of which the first one is for seconds: a schedule would select its agents every second."""


def next_start(cron: str, zone: str, after: int) -> int:
    """The first time after `after` (Unix ms). Raises InvalidRequest for what is no expression, no zone, or never."""
    try:
        place = ZoneInfo(zone)
    except (ZoneInfoNotFoundError, ValueError, OSError) as e:
        raise InvalidRequest(
            f"unknown time zone {zone[:64]!r}: expected one of the IANA database, such as Europe/Berlin", field="zone"
        ) from e
    try:
        if len(cron.split()) != FIELDS:
            raise CronSimError("Wrong number of fields")
        times = CronSim(cron, datetime.fromtimestamp(after / 1000, place))
    except CronSimError as e:
        raise InvalidRequest(
            f"invalid cron expression {cron[:80]!r} ({e}): expected minute, hour, day of the month, month and day of "
            "the week, such as `30 2 * * 1-5`",
            field="cron",
        ) from e
    try:
        # Where clocks are put back, the hour that comes twice is read as its first time, which may have passed.
        return next(start for one in times if (start := int(one.timestamp() * 1000)) > after)
    except StopIteration as e:
        raise InvalidRequest(
            f"the cron expression {cron!r} never holds: expected one that does, within 50 years", field="cron"
        ) from e
