"""The operations on events of agents. `operations` has the others, and joins them."""

from __future__ import annotations

from fairlead.app.api.events import event_schemas
from fairlead.app.api.operation import AGENT_ID, FLAG, KNOWN, LATER, POSITION, TEXT, WHOLE_NUMBER, Operation, Param
from fairlead.authorization.policy import Verb

GROUP = "^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"

EVENT_OPERATIONS = (
    Operation(
        "get", "/v1/events", "listEvents",
        "Get the events of agents as lines, each a CloudEvent (1.0) with its `offset`; with `follow`, those that come "
        "later too.",
        "A stream of lines in the format that the request accepts.",
        200, None, streams=True, faults=LATER, needs=(Verb.EVENTS,),
        params=(
            Param("agent", "Only events of this agent.", {**TEXT, "pattern": AGENT_ID}),
            Param("type", "Only events of this type; `disk.*` for all whose type begins with `disk.`.",
                  {**TEXT, "minLength": 1, "maxLength": 128}),
            Param(
                "selector", "Only events of agents whose labels and facts match now.", {**TEXT, "maxLength": 1024},
            ),
            Param("after", "Begin after the event with this `offset`. Events that were lost since are told.",
                  {**TEXT, "pattern": POSITION}),
            Param("since", "Begin this many seconds ago. Without `after` and `since`: with the oldest event.",
                  {**WHOLE_NUMBER, "maximum": 1 << 31}),
            Param("follow", "Wait for further events until the caller disconnects.", FLAG),
            Param(
                "group", "Share the events with all readers of this group: each takes some, and acknowledges them. "
                "`after` and `since` say where a group begins that there is not yet.",
                {**TEXT, "pattern": GROUP},
            ),
            Param(
                "window", "With `group`: most events that this reader has and has not acknowledged.",
                {"type": "integer", "minimum": 1, "maximum": 1000, "default": 100},
            ),
            Param(
                "ack_within", "With `group`: seconds after which an event that was not acknowledged goes to a reader "
                "of the group again.",
                {"type": "integer", "minimum": 1, "maximum": 3600, "default": 60},
            ),
            Param("Last-Event-ID", "For server-sent events: the last offset that was received.",
                  {**TEXT, "pattern": POSITION}, "header"),
        ),
    ),
    Operation(
        "get", "/v1/event-groups", "listEventGroups",
        "List the groups of readers that the caller has made, with how far each has come; an administrator gets all.",
        "The groups.", 200, event_schemas.EventGroupList, faults=LATER, needs=(Verb.EVENTS,),
    ),
    Operation(
        "post", "/v1/event-groups/{group}/acknowledgements", "acknowledgeEvents",
        "Acknowledge events of a group: no reader gets them again.",
        "How many of them waited for it.",
        200, event_schemas.AcknowledgedEvents, takes=event_schemas.EventsToAcknowledge, faults=(400, 413, *KNOWN),
        needs=(Verb.EVENTS,),
    ),
    Operation(
        "delete", "/v1/event-groups/{group}", "deleteEventGroup",
        "Remove a group of readers, with what it has not acknowledged. A reader that asks for it later makes it anew.",
        "The group is removed.", 204, None, faults=KNOWN, needs=(Verb.EVENTS,),
    ),
    Operation(
        "get", "/v1/event-sinks", "listEventSinks",
        "List the sinks of the tenant, to which events are delivered, with how far each has come.",
        "The sinks.", 200, event_schemas.EventSinkList, faults=LATER, needs=(Verb.EVENTS,),
    ),
    Operation(
        "get", "/v1/event-sinks/{sink}/dead-letters", "listDeadLetters",
        "List the events that a sink could not deliver in time, the oldest first, as far as the caller may read them.",
        "One page of them, with the cursor of the next page.",
        200, event_schemas.DeadLetterPage, faults=KNOWN, needs=(Verb.EVENTS,),
        params=(
            Param(
                "limit", "Maximum number of dead letters in the page.",
                {"type": "integer", "minimum": 1, "maximum": 100, "default": 100},
            ),
            Param("cursor", "The cursor of the page before.", {**TEXT, "pattern": POSITION}),
        ),
    ),
    Operation(
        "post", "/v1/event-sinks/{sink}/dead-letters/retry", "retryDeadLetters",
        "Send some dead letters again. Those that the receiver accepts are dead letters no more.",
        "What became of each.",
        200, event_schemas.RetriedDeadLetters, takes=event_schemas.DeadLettersToRetry, faults=(400, 413, *KNOWN),
        needs=(Verb.EVENTS,),
    ),
    Operation(
        "delete", "/v1/event-sinks/{sink}/dead-letters/{letter}", "deleteDeadLetter", "Discard a dead letter.",
        "It is gone.", 204, None, faults=KNOWN, needs=(Verb.EVENTS,),
    ),
)  # fmt: skip
