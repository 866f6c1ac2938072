"""The OpenAPI 3.1 document of the API, made of the types that its handlers use.

Served at `/v1/openapi.json`. The table below says for each operation what it takes and gives; a test holds it against
the routes, and another plays generated requests against a real server and the document.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from fairlead.app import shapes
from fairlead.routing.ranking import MOST
from fairlead.routing.sight import RANKS
from fairlead.version import __version__

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
    """`gives`: the type of the answer with `status`, None for no content. `faults`: the statuses of problems."""

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


WHOLE = {"type": "integer", "minimum": 0, "maximum": 1 << 53, "default": 0}
FLAG = {"type": "boolean", "default": False}
TEXT = {"type": "string"}
EVENT_ID = {**TEXT, "pattern": "^[0-9]{1,15}$"}
LATER = (422, 503)
KNOWN = (404, *LATER)

OPERATIONS = (
    Operation(
        "post", "/v1/commands", "postCommand",
        "Run a command on an agent. With `Accept: application/x-ndjson` or `text/event-stream` the answer is the "
        "stream of its results, after a first line with its id.",
        202, shapes.Accepted, takes=shapes.NewCommand, streams=True, faults=(400, 409, *KNOWN),
        params=(
            Param("Idempotency-Key", "Under one key a post may be repeated.", {**TEXT, "maxLength": 255}, "header"),
            Param("traceparent", "W3C trace context; what is none is ignored.", TEXT, "header"),
        ),
    ),
    Operation(
        "get", "/v1/commands/{command}", "getCommand", "A command as it stands.", 200, shapes.Command, faults=KNOWN
    ),
    Operation(
        "delete", "/v1/commands/{command}", "cancelCommand",
        "Ask for the end of a command. What is over stays as it is.", 202, shapes.Cancelled, faults=KNOWN,
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
        204, None, octets=True, faults=(400, *KNOWN),
        params=(
            Param("n", "Number of the chunk, from 0; a number may be repeated.", {**WHOLE, "maximum": 1 << 31}),
            Param("end", "This was the last.", FLAG),
        ),
    ),
    Operation(
        "get", "/v1/agents", "listAgents", "Agents page by page, ordered by shard and name.",
        200, shapes.AgentPage, faults=LATER,
        params=(
            Param("selector", "`env in (prod,dev),os=linux,!retired`: labels and facts.", {**TEXT, "maxLength": 1024}),
            Param("state", "Only those in this state.", {**TEXT, "enum": ["online", "away", "offline"]}),
            Param("limit", "Agents of one page.", {"type": "integer", "minimum": 1, "maximum": 1000, "default": 100}),
            Param("cursor", "That of the page before.", TEXT),
        ),
    ),
    Operation(
        "get", "/v1/agents/{agent}", "getAgent", "One agent, and why it is not online.",
        200, shapes.AgentDetail, faults=KNOWN,
    ),
    Operation(
        "patch", "/v1/agents/{agent}", "labelAgent", "Set or remove labels of an agent; gives all of them.",
        200, shapes.Labels, takes=shapes.Labels, faults=(400, *KNOWN),
    ),
    Operation(
        "get", "/v1/agents/{agent}/session", "getLink", "How the agent's link is doing, from the node that holds it.",
        200, shapes.Link, faults=(409, *KNOWN),
    ),
    Operation(
        "delete", "/v1/agents/{agent}/session", "disconnectAgent",
        "Close the agent's link. It connects again, and goes on with what it runs.",
        202, shapes.Disconnected, faults=(409, *KNOWN),
    ),
    Operation(
        "get", "/v1/sessions", "rankSessions", "The worst links of the fleet by a measure, as their nodes rank them.",
        200, shapes.Ranking, faults=LATER,
        params=(
            Param("by", "The measure: a p99 of latency, or a number.", {**TEXT, "enum": list(RANKS), "default": "rtt"}),
            Param("limit", "Links.", {"type": "integer", "minimum": 1, "maximum": MOST, "default": 20}),
        ),
    ),
    Operation("get", "/v1/openapi.json", "getOpenapi", "This document.", 200, dict),
)  # fmt: skip

PATH_PARAMS = {
    "command": {"type": "string", "format": "uuid", "pattern": "^[0-9a-f-]{36}$"},
    "agent": {"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$"},
}
FOLLOW = ("getCommand", "cancelCommand", "getResults", "postInput")
"""What may be done with a command that was accepted."""
FAULTS = {
    400: "The body is not JSON, or too large.",
    401: "No or a wrong credential.",
    404: "There is no such thing.",
    405: "The path knows other methods.",
    409: "The agent is offline.",
    410: "Results that were kept as a window have been read, and are gone.",
    422: "Something of the request is not as it must be; `field` names it.",
    503: "Not now: Redis is away, the agent is overloaded, or the node drains. Repeat it later.",
}


def document() -> bytes:
    """As JSON."""
    types = [t for o in OPERATIONS for t in (o.gives, o.takes) if t not in (None, dict)]
    _, components = msgspec.json.schema_components(
        [*types, shapes.Problem, shapes.End], ref_template="#/components/schemas/{name}"
    )
    paths: dict[str, dict[str, Any]] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method] = _operation(operation)
    made = msgspec.json.encode(
        {
            "openapi": "3.1.0",
            "info": {"title": "Fairlead platform API", "version": __version__},
            "security": [{"bearer": []}],
            "paths": paths,
            "components": {
                "schemas": components,
                "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
                "responses": {str(status): _problem(text) for status, text in FAULTS.items()},
            },
        }
    )
    # Python's `$` also matches before a final line end, so the types say `\\Z`, which no other dialect knows.
    return made.replace(rb"\\Z", b"$")


def _problem(text: str) -> dict[str, Any]:
    schema = {"$ref": "#/components/schemas/Problem"}
    return {"description": text, "content": {"application/problem+json": {"schema": schema}}}


def _operation(operation: Operation) -> dict[str, Any]:
    named = [part[1:-1] for part in operation.path.split("/") if part.startswith("{")]
    params = [{"name": name, "in": "path", "required": True, "schema": PATH_PARAMS[name]} for name in named]
    params += [{"name": p.name, "in": p.where, "description": p.text, "schema": p.schema} for p in operation.params]
    content: dict[str, Any] = {}
    if operation.gives is dict:
        content = {"application/json": {"schema": {"type": "object"}}}
    elif operation.gives is not None:
        content = {"application/json": {"schema": _ref(operation.gives)}}
    answers: dict[str, dict[str, Any]]
    answers = {str(operation.status): {"description": "As asked.", **({"content": content} if content else {})}}
    if operation.gives is shapes.Accepted:
        answers[str(operation.status)]["links"] = {name: _link(name) for name in FOLLOW}
    if operation.streams:
        lines = {kind: {"schema": {"type": "string"}} for kind in (NDJSON, SSE)}
        answers["200"] = {"description": "A stream of lines, as the caller accepts.", "content": lines}
    faults = sorted({401, 405, *operation.faults})
    made: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.text,
        "parameters": params,
        "responses": {
            **answers,
            **{str(fault): {"$ref": f"#/components/responses/{fault}"} for fault in faults},
        },
    }
    if operation.takes is not None:
        schema = _ref(operation.takes)
        made["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    elif operation.octets:
        schema = {"type": "string", "format": "binary"}
        made["requestBody"] = {"content": {"application/octet-stream": {"schema": schema}}}
    return made


def _link(name: str) -> dict[str, Any]:
    return {"operationId": name, "parameters": {"command": "$response.body#/id"}}


def _ref(kind: type) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{kind.__name__}"}
