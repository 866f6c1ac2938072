"""The operations on runs: one method on many agents. `operations` has the others, and joins them."""

from __future__ import annotations

from fairlead.app.api.operation import FLAG, KNOWN, TEXT, WHOLE_NUMBER, Operation, Param
from fairlead.app.api.runs import run_schemas
from fairlead.authorization.policy import Verb

RUN_OPERATIONS = (
    Operation(
        "post", "/v1/runs", "postRun",
        "Run a method on many agents: on those of a list, or on all that match a selector and that the caller may see "
        "and run the method on.",
        "The run is stored and begins.",
        202, run_schemas.AcceptedRun, takes=run_schemas.NewRun, faults=(400, 409, 413, *KNOWN), needs=(Verb.RUN,),
        instead=run_schemas.DryRun,
        params=(
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
        "post", "/v1/runs/{run}/resume", "resumeRun", "Resume a run that was paused.",
        "The request is stored; the answer is the current state.",
        202, run_schemas.Run, faults=KNOWN, needs=(Verb.RUN, Verb.CANCEL),
    ),
)  # fmt: skip
