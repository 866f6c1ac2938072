"""The OpenAPI 3.1 document of the API, generated from `operations` and from the types that the handlers use.

It is served at `/v1/openapi.json`. One test compares it with the routes, and another sends generated requests to a real
server and validates the answers against it.
"""

from __future__ import annotations

from typing import Any

import msgspec

from fairlead.app.api import schemas
from fairlead.app.api.events.event_operations import GROUP
from fairlead.app.api.operation import NDJSON, POSITION, SSE, Operation
from fairlead.app.api.operations import OPERATIONS
from fairlead.version import __version__

PATH_PARAMS = {
    "command": {"type": "string", "format": "uuid", "pattern": "^[0-9a-f-]{36}$"},
    "run": {"type": "string", "format": "uuid", "pattern": "^[0-9a-f-]{36}$"},
    "agent": {"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$"},
    "token": {"type": "string", "pattern": "^[0-9a-f]{12}$"},
    "approval": {"type": "string", "pattern": "^[0-9a-f]{16}$"},
    "schedule": {"type": "string", "format": "uuid", "pattern": "^[0-9a-f-]{36}$"},
    "digest": {"type": "string", "pattern": "^[0-9a-f]{64}$"},
    "group": {"type": "string", "pattern": GROUP},
    "sink": {"type": "string", "pattern": GROUP},
    "letter": {"type": "string", "pattern": POSITION},
}
FOLLOW = ("getCommand", "cancelCommand", "getResults", "postInput")
"""The operations on a command that was accepted."""
CREDENTIALS = (
    "The platform token, a service token (`fl_…`), or a JWT of an OpenID Connect issuer that the gateway trusts: an ID "
    "token or an access token, signed with an asymmetric algorithm, for the audience of the gateway's file of issuers."
)
ALWAYS = (400, 401, 403, 405, 422, 429)
"""400, at least for a path with a forbidden encoding; 422, at least for an unknown query parameter."""
FAULTS = {
    400: "The body is not JSON or has a duplicate member; or (as text) the path encodes a slash, a backslash or a "
    "character that needs no encoding.",
    401: "The credential is missing, wrong or expired.",
    403: "The Host or Origin of the request is not allowed, or no role of the caller allows what it asks for; `detail` "
    "says which rule is missing.",
    404: "The agent, the command, the service token or the path does not exist.",
    405: "The path does not support this method; `Allow` lists those that it does.",
    409: "The agent is offline, or online where it must not be; or the input chunk was stored before with different "
    "bytes.",
    410: "The results have been read and removed, or the record of the earlier command has expired.",
    413: "The body is larger than the operation accepts.",
    422: "A member of the body, a header or a query parameter is invalid or unknown; `field` names it.",
    429: "This address has sent too many wrong credentials. The right one is still accepted at once.",
    503: "Temporarily unavailable: Redis does not answer, the agent is overloaded, or the node is draining. Repeat the "
    "request later. With the code `outcome_unknown` the request may have been carried out.",
}


def document() -> bytes:
    """The document as JSON."""
    types = [t for o in OPERATIONS for t in (o.gives, o.takes, o.instead) if t not in (None, dict)]
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
                "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer", "description": CREDENTIALS}},
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
    """The response to a request that is refused before the application sees it: a line of text."""
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
    answers = {str(operation.status): {"description": operation.answer, **({"content": content} if content else {})}}
    if operation.gives is schemas.AcceptedCommand:
        answers[str(operation.status)]["links"] = {name: _link(name) for name in FOLLOW}
    if operation.streams:
        lines = {kind: {"schema": {"type": "string"}} for kind in (NDJSON, SSE)}
        answers["200"] = {"description": "A stream of lines in the format that the request accepts.", "content": lines}
    if operation.instead is not None:
        json_answer = {"application/json": {"schema": _ref(operation.instead)}}
        answers["200"] = {"description": "Nothing was done, as the request asked.", "content": json_answer}
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
