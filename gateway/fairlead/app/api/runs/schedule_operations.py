"""The operations on schedules: runs that begin again and again."""

from __future__ import annotations

from fairlead.app.api.operation import KNOWN, LATER, Operation
from fairlead.app.api.runs import schedule_schemas
from fairlead.authorization.policy import Verb

SCHEDULE_OPERATIONS = (
    Operation(
        "post", "/v1/schedules", "createSchedule",
        "Have a run begin again and again, on the agents that match its selector at each start.",
        "The schedule is stored, and says when it is due.",
        201, schedule_schemas.ShownSchedule, takes=schedule_schemas.NewSchedule, faults=(400, 413, *LATER),
        needs=(Verb.RUN,),
    ),
    Operation(
        "get", "/v1/schedules", "listSchedules", "List the schedules that the caller may see.",
        "All of them, with when they are due and how the last start went.",
        200, schedule_schemas.ScheduleList, faults=LATER, needs=(Verb.RUN, Verb.RESULTS),
    ),
    Operation(
        "delete", "/v1/schedules/{schedule}", "removeSchedule",
        "Remove a schedule: no further run begins. One that has begun goes on.",
        "The schedule is removed.", 204, None, faults=KNOWN, needs=(Verb.RUN, Verb.CANCEL),
    ),
)  # fmt: skip
