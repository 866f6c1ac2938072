"""The OpenAPI 3.1 document of the API, made of its operations and of the types that its handlers use.

Served at `/v1/openapi.json`. A test holds it against the routes, and another plays generated requests against a real
server and the document.
"""

from __future__ import annotations

from typing import Any

import msgspec

from fairlead.app.api import schemas
from fairlead.app.api.operations import NDJSON, OPERATIONS, SSE, Operation
from fairlead.version import __version__

PATH_PARAMS = {
    "command": {"type": "string", "format": "uuid", "pattern": "^[0-9a-f-]{36}$"},
    "agent": {"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$"},
}
FOLLOW = ("getCommand", "cancelCommand", "getResults", "postInput")
"""What may be done with a command that was accepted."""
ALWAYS = (400, 401, 403, 405, 422, 429)
"""400: at least for a path that encodes what it must not; 422: at least for a query parameter that it does not know."""
FAULTS = {
    400: "The body is not JSON, or has a member twice; or (as text) the path encodes a slash, a backslash or what "
    "needs no encoding.",
    401: "No or a wrong credential.",
    403: "The Host or the Origin of the request is not served.",
    404: "There is no such thing.",
    405: "The path knows other methods.",
    409: "The agent is offline, or online where it must not be; or an input chunk came before, with other octets.",
    410: "It was there and is gone: results that have been read, or the record of a command that was posted before.",
    413: "The body is larger than the operation takes.",
    422: "Something of the request is not as it must be, or there is more in its query; `field` names it.",
    429: "Too many wrong credentials came from this address. A right one is accepted at once.",
    503: "Not now: Redis is away, the agent is overloaded, or the node drains. Repeat it later; `outcome_unknown`: it "
    "may have been done.",
}


def document() -> bytes:
    """As JSON."""
    types = [t for o in OPERATIONS for t in (o.gives, o.takes) if t not in (None, dict)]
    _, components = msgspec.json.schema_components(
        [*types, schemas.Problem, schemas.CommandEnd], ref_template="#/components/schemas/{name}"
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
                "responses": {
                    str(status): (_malformed if status == 400 else _problem)(text) for status, text in FAULTS.items()
                },
            },
        }
    )
    return made.replace(rb"\\Z", b"$")


def _problem(text: str) -> dict[str, Any]:
    schema = {"$ref": "#/components/schemas/Problem"}
    return {"description": text, "content": {"application/problem+json": {"schema": schema}}}


def _malformed(text: str) -> dict[str, Any]:
    """What is refused before the application has seen the request is told as a line of text."""
    made = _problem(text)
    made["content"]["text/plain"] = {"schema": {"type": "string"}}
    return made


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
    if operation.gives is schemas.AcceptedCommand:
        answers[str(operation.status)]["links"] = {name: _link(name) for name in FOLLOW}
    if operation.streams:
        lines = {kind: {"schema": {"type": "string"}} for kind in (NDJSON, SSE)}
        answers["200"] = {"description": "A stream of lines, as the caller accepts.", "content": lines}
    faults = sorted({*ALWAYS, *operation.faults})
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
