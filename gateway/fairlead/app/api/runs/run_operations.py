"""The operations on runs: one method on many agents. `operations` has the others, and joins them."""

from __future__ import annotations

from fairlead.app.api.operation import APPROVAL, FLAG, KNOWN, LATER, TEXT, WHOLE_NUMBER, Operation, Param
from fairlead.app.api.runs import run_schemas
from fairlead.authorization.policy import Verb
from fairlead.fleet.runs.run_record import RunState

RUN_OPERATIONS = (
    Operation(
        "post", "/v1/runs", "postRun",
        "Run a method on many agents: on those of a list, or on all that match a selector and that the caller may see "
        "and run the method on.",
        "The run is stored and begins.",
        202, run_schemas.AcceptedRun, takes=run_schemas.NewRun, faults=(400, 409, 410, 413, *KNOWN), needs=(Verb.RUN,),
        instead=run_schemas.DryRun,
        params=(
            APPROVAL,
            Param(
                "Idempotency-Key", "A request that is repeated with the same key returns the first run.",
                {**TEXT, "maxLength": 255}, "header",
            ),
            Param("traceparent", "W3C trace context. Invalid values are ignored.", TEXT, "header"),
        ),
    ),
    Operation(
        "get", "/v1/runs", "listRuns", "List the runs that the caller may see, the newest first, page by page.",
        "One page of runs, with the cursor of the next page.",
        200, run_schemas.RunList, faults=LATER, needs=(Verb.RUN, Verb.RESULTS),
        params=(
            Param("state", "Only runs in this state.", {**TEXT, "enum": [state.value for state in RunState]}),
            Param(
                "limit", "Maximum number of runs in the page.",
                {"type": "integer", "minimum": 1, "maximum": 1000, "default": 100},
            ),
            Param("cursor", "The cursor of the page before.", TEXT),
        ),
    ),
    Operation(
        "post", "/v1/runs/{run}/retry", "retryRun",
        "Run the method of a run again, with its payload and pace, on those of its targets that ended in some states.",
        "The new run is stored and begins.",
        202, run_schemas.AcceptedRun, takes=run_schemas.RetriedRun, faults=(400, 409, 410, 413, *KNOWN),
        needs=(Verb.RUN,),
        params=(
            APPROVAL,
            Param(
                "Idempotency-Key", "A request that is repeated with the same key returns the first run.",
                {**TEXT, "maxLength": 255}, "header",
            ),
            Param("traceparent", "W3C trace context. Invalid values are ignored.", TEXT, "header"),
        ),
    ),
    Operation(
        "get", "/v1/runs/{run}", "getRun",
        "Get the state of a run, with its targets counted by state and grouped by outcome and output.",
        "The current state of the run.", 200, run_schemas.Run, faults=KNOWN, needs=(Verb.RUN, Verb.RESULTS),
    ),
    Operation(
        "get", "/v1/runs/{run}/results", "getRunResults",
        "Get how the targets of a run ended, from an offset on, as lines in the order of their ends; with `follow`, "
        "wait for further ones until the run ends. A line `progress` has the counts so far, a line `end` is the last.",
        "A stream of lines in the format that the request accepts.",
        200, None, streams=True, faults=KNOWN, needs=(Verb.RUN, Verb.RESULTS),
        params=(
            Param("from", "The first offset to return.", WHOLE_NUMBER),
            Param("follow", "Wait for further results until the run ends.", FLAG),
            Param("output", "Include what the targets returned.", {**FLAG, "default": True}),
            Param("progress", "Include lines with the counts so far, a few times a second.", FLAG),
        ),
    ),
    Operation(
        "delete", "/v1/runs/{run}", "cancelRun",
        "Cancel a run: no further target starts, and those under way are cancelled. A run that has ended is not "
        "changed.",
        "Cancellation was requested; the answer is the current state.",
        202, run_schemas.Run, faults=KNOWN, needs=(Verb.RUN, Verb.CANCEL),
    ),
    Operation(
        "post", "/v1/runs/{run}/pause", "pauseRun",
        "Pause a run: no further target starts until it is resumed. Those under way go on.",
        "A pause was requested; the answer is the current state.",
        202, run_schemas.Run, faults=KNOWN, needs=(Verb.RUN, Verb.CANCEL),
    ),
    Operation(
        "post", "/v1/runs/{run}/resume", "resumeRun",
        "Resume a run that was paused. What has not started needs an approval if a rule asks for one by now.",
        "The request is stored; the answer is the current state.",
        202, run_schemas.Run, faults=KNOWN, needs=(Verb.RUN, Verb.CANCEL), params=(APPROVAL,),
    ),
)  # fmt: skip
