"""The operations of the API: for each its path, what it takes and gives, and how it may fail.

The one declaration of them. `factory` makes the routes of it and refuses query parameters that are not in it, `openapi`
makes the document; so neither can know what the other does not. What a body holds is said by `schemas`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fairlead.app.api import schemas
from fairlead.routing.observability.link_stats import MEASURES
from fairlead.routing.observability.worst_links import MAX_LINKS

NDJSON = "application/x-ndjson"
SSE = "text/event-stream"


@dataclass(frozen=True, slots=True)
class Param:
    """A query parameter or header. `schema` is JSON Schema."""

    name: str
    text: str
    schema: dict[str, Any]
    where: str = "query"


@dataclass(frozen=True, slots=True)
class Operation:
    """`gives`: the type of the answer with `status`, None for no content. `faults`: the statuses of problems beside
    those that every operation knows."""

    method: str
    path: str
    name: str
    text: str
    status: int
    gives: type | None
    takes: type | None = None
    octets: bool = False
    """The body is octets, not JSON."""
    streams: bool = False
    """The answer is a stream of lines, as NDJSON or as server-sent events."""
    params: tuple[Param, ...] = ()
    faults: tuple[int, ...] = ()

    @property
    def query(self) -> tuple[str, ...]:
        """The names of its query parameters."""
        return tuple(param.name for param in self.params if param.where == "query")


WHOLE = {"type": "integer", "minimum": 0, "maximum": 1 << 53, "default": 0}
FLAG = {"type": "boolean", "default": False}
TEXT = {"type": "string"}
EVENT_ID = {**TEXT, "pattern": "^[0-9]{1,15}$"}
LATER = (503,)
KNOWN = (404, *LATER)

OPERATIONS = (
    Operation(
        "post", "/v1/commands", "postCommand",
        "Run a command on an agent. With `Accept: application/x-ndjson` or `text/event-stream` the answer is the "
        "stream of its results, after a first line with its id.",
        202, schemas.AcceptedCommand, takes=schemas.NewCommand, streams=True, faults=(400, 409, 410, 413, *KNOWN),
        params=(
            Param("Idempotency-Key", "Under one key a post may be repeated.", {**TEXT, "maxLength": 255}, "header"),
            Param("traceparent", "W3C trace context; a malformed one is ignored.", TEXT, "header"),
        ),
    ),
    Operation(
        "get", "/v1/commands/{command}", "getCommand", "A command as it stands.", 200, schemas.Command, faults=KNOWN
    ),
    Operation(
        "delete", "/v1/commands/{command}", "cancelCommand",
        "Ask for the end of a command. What is over stays as it is.", 202, schemas.CancelledCommand, faults=KNOWN,
    ),
    Operation(
        "get", "/v1/commands/{command}/results", "getResults",
        "Results from an offset on, as lines; with `follow` until the command has ended. The last line is its end.",
        200, None, streams=True, faults=(410, *KNOWN),
        params=(
            Param("from", "The first offset.", WHOLE),
            Param("follow", "Wait for what is still to come.", FLAG),
            Param("Last-Event-ID", "As `from` less 1, for server-sent events.", EVENT_ID, "header"),
        ),
    ),
    Operation(
        "post", "/v1/commands/{command}/input", "postInput", "Chunk `n` of the input, at most 64 KiB.",
        204, None, octets=True, faults=(400, 409, 413, *KNOWN),
        params=(
            Param("n", "Number of the chunk, from 0; a number may be repeated.", {**WHOLE, "maximum": 1 << 31}),
            Param("end", "This was the last.", FLAG),
        ),
    ),
    Operation(
        "get", "/v1/agents", "listAgents", "Agents page by page, ordered by shard and name.",
        200, schemas.AgentPage, faults=LATER,
        params=(
            Param("selector", "`env in (prod,dev),os=linux,!retired`: labels and facts.", {**TEXT, "maxLength": 1024}),
            Param("state", "Only those in this state.", {**TEXT, "enum": ["online", "away", "offline"]}),
            Param("limit", "Agents of one page.", {"type": "integer", "minimum": 1, "maximum": 1000, "default": 100}),
            Param("cursor", "That of the page before.", TEXT),
        ),
    ),
    Operation(
        "get", "/v1/agents/{agent}", "getAgent", "One agent, and why it is not online.",
        200, schemas.AgentDetail, faults=KNOWN,
    ),
    Operation(
        "patch", "/v1/agents/{agent}", "labelAgent", "Set or remove labels of an agent; gives all of them.",
        200, schemas.Labels, takes=schemas.Labels, faults=(400, 413, *KNOWN),
    ),
    Operation(
        "delete", "/v1/agents/{agent}", "deleteAgent",
        "Forget an agent that left: its row, labels and facts, what is open for it, its events.",
        200, schemas.DeletedAgent, faults=(409, *KNOWN),
    ),
    Operation(
        "get", "/v1/agents/{agent}/link", "getLink", "How the agent's link is doing, from the node that holds it.",
        200, schemas.Link, faults=(409, *KNOWN),
    ),
    Operation(
        "delete", "/v1/agents/{agent}/link", "disconnectAgent",
        "Close the agent's link. It connects again, and goes on with what it runs.",
        202, schemas.DisconnectedAgent, faults=(409, *KNOWN),
    ),
    Operation(
        "get", "/v1/links", "rankLinks", "The worst links of the fleet by a measure, as their nodes rank them.",
        200, schemas.LinkRanking, faults=LATER,
        params=(
            Param(
                "by", "The measure: a p99 of latency, or a number.", {**TEXT, "enum": list(MEASURES), "default": "rtt"}
            ),
            Param("limit", "Links.", {"type": "integer", "minimum": 1, "maximum": MAX_LINKS, "default": 20}),
        ),
    ),
    Operation("get", "/v1/openapi.json", "getOpenapi", "This document.", 200, dict),
)  # fmt: skip
