"""The bodies of requests and answers about schedules, as `run_schemas` has those about runs."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from fairlead.app.api.runs.run_schemas import NewRun, RunId

ScheduleId = RunId


class NewSchedule(Struct, forbid_unknown_fields=True):
    """A run of a selector that begins again and again. Its agents are selected at each start, with the rights that the
    caller has then."""

    name: Annotated[str, Meta(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9][A-Za-z0-9._ -]*\Z",
                              description="a name (1 to 64 characters of A-Z a-z 0-9 . _ - and spaces)")]  # fmt: skip
    cron: Annotated[
        str,
        Meta(max_length=200, description="Minute, hour, day of the month, month and day of the week: `30 2 * * 1-5`."),
    ]
    run: NewRun
    zone: Annotated[str, Meta(max_length=64, description="The time zone of `cron`, such as Europe/Berlin.")] = "UTC"
    missed: Annotated[
        Literal["skip", "run"],
        Meta(
            description="What becomes of a start that no node began within a minute: it is left out, or one run begins "
            "for all that were missed."
        ),
    ] = "skip"


class ShownStart(Struct):
    """How the last start of a schedule went. `outcome` is started, missed, forbidden (its caller may not run the method
    any more), no_agents, or the code of an error."""

    due: str | None
    outcome: str
    run: RunId | None


class ShownSchedule(Struct):
    """A schedule. `next` is when its next run begins."""

    id: ScheduleId
    name: str
    cron: str
    zone: str
    missed: Literal["skip", "run"]
    method: str
    selector: str
    subject: str
    created: str | None
    next: str | None
    last: ShownStart | None


class ScheduleList(Struct):
    """The schedules that the caller may see, the oldest first."""

    schedules: list[ShownSchedule]
