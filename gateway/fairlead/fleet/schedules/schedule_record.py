"""A schedule as values: what runs, when, and how its last start went. It does no I/O."""

from __future__ import annotations

import msgspec

from fairlead.fleet.runs.run_record import RunTerms


class Schedule(msgspec.Struct, array_like=True, frozen=True):
    """`terms` are those of each of its runs, but for their times, which are relative: `created` is 0. `cron` is read in
    the time zone `zone`. A start that was missed, because no node was there, is made up for if `catches_up`."""

    id: str
    name: str
    cron: str
    zone: str
    catches_up: bool
    terms: RunTerms
    payload: bytes
    created: int


class LastStart(msgspec.Struct, array_like=True, frozen=True):
    """`due` is when it was due (ms). `outcome` is `started` with the id of its run, or why there is none: `missed`,
    `forbidden`, `no_agents`, or the code of an error."""

    due: int
    outcome: str
    run: str = ""


class ListedSchedule(msgspec.Struct, frozen=True):
    """A schedule with when it is due next (ms), and how its last start went."""

    schedule: Schedule
    due: int
    last: LastStart | None
