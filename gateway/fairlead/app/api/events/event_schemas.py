"""The documents of groups of readers of events. `schemas` says how they are used."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

Offset = Annotated[
    str,
    Meta(pattern=r"^[0-9]{1,15}-[0-9]{1,15}\Z", description="the `offset` of an event, such as 1767225600000-0"),
]


class EventsToAcknowledge(Struct, forbid_unknown_fields=True):
    """The events that a reader of a group has dealt with."""

    offsets: Annotated[list[Offset], Meta(min_length=1, max_length=1_000)]


class AcknowledgedEvents(Struct):
    """How many of the events waited to be acknowledged. Others were acknowledged before, or are not of this group."""

    acknowledged: int


class EventGroup(Struct):
    """A group of readers that share the events. Times are RFC 3339."""

    name: str
    owner: Annotated[str, Meta(description="The caller that has made it.")]
    agent: Annotated[str, Meta(description="Only events of this agent are for the group; empty for all.")]
    type: Annotated[str, Meta(description="Only events of this type; empty for all.")]
    selector: Annotated[str, Meta(description="Only events of agents that match; empty for all.")]
    offset: Annotated[str, Meta(description="How far the group has come.")]
    pending: Annotated[int, Meta(description="Events that its readers have and have not acknowledged.")]
    lag: Annotated[int, Meta(description="Events after its offset that are kept, at most, whether for it or not.")]
    lost: Annotated[
        str | None, Meta(description="The last offset at which events were removed before it had come so far, or null.")
    ]
    lost_at: Annotated[str | None, Meta(description="When that was found out, or null.")]
    began: str
    used: Annotated[str, Meta(description="When it was read last. After 7 days without a reader it is removed.")]


class EventGroupList(Struct):
    """Groups, ordered by name."""

    groups: list[EventGroup]


class EventSink(Struct):
    """An HTTP endpoint to which events are delivered. Times are RFC 3339."""

    name: str
    host: Annotated[str, Meta(description="The host and port of its URL.")]
    type: Annotated[str, Meta(description="Only events of this type; empty for all.")]
    selector: Annotated[str, Meta(description="Only events of agents that match; empty for all.")]
    node: Annotated[str, Meta(description="The node that delivers to it now.")]
    offset: Annotated[str | None, Meta(description="How far it has come, or null if it has not begun.")]
    pending: Annotated[int, Meta(description="Events that are under way, or wait for another attempt.")]
    lag: Annotated[int, Meta(description="Events after its offset that are kept, at most, whether for it or not.")]
    lost: Annotated[
        str | None, Meta(description="The last offset at which events were removed before it had come so far, or null.")
    ]
    lost_at: Annotated[str | None, Meta(description="When that was found out, or null.")]
    dead_letters: Annotated[int, Meta(description="Events that could not be delivered in time and are kept.")]
    error: Annotated[str | None, Meta(description="Why an attempt has failed last, or null.")]
    error_at: Annotated[str | None, Meta(description="When that was, or null.")]


class EventSinkList(Struct):
    """All sinks of the tenant."""

    sinks: list[EventSink]


class ListedDeadLetter(Struct):
    """An event that a sink could not deliver, without its payload."""

    id: Annotated[str, Meta(description="The id of this dead letter.")]
    agent: str
    type: str
    event: Annotated[str, Meta(description="The agent's own id of the event.")]
    offset: str
    attempts: int
    error: Annotated[str, Meta(description="Why the last attempt has failed.")]
    size: Annotated[int, Meta(description="Bytes of its payload.")]


class DeadLetterPage(Struct):
    """Dead letters, the oldest first."""

    dead_letters: list[ListedDeadLetter]
    cursor: str | None


class DeadLettersToRetry(Struct, forbid_unknown_fields=True):
    """The dead letters to send again."""

    ids: Annotated[list[Offset], Meta(min_length=1, max_length=16)]


class RetriedDeadLetter(Struct):
    """What became of one of them."""

    id: str
    delivered: bool
    error: Annotated[str | None, Meta(description="Why it was not delivered, or null.")]


class RetriedDeadLetters(Struct):
    """Those that there were, in the order in which they had failed."""

    results: list[RetriedDeadLetter]
