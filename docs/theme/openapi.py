"""The reference of the HTTP API as a page, made of the OpenAPI document that the gateway serves."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

INTRODUCTION = """# HTTP reference

Every operation and type of the platform API, made from the document that each node serves at `/v1/openapi.json`
([the same document as a file](openapi.json)). [HTTP API](../api.md) explains how they are used.
An answer with a status of 400 or above is a [Problem](#problem) as `application/problem+json`.
"""

JSON = dict[str, Any]


def reference(document: bytes) -> str:
    """The page as Markdown."""
    api = json.loads(document)
    lines = [INTRODUCTION]
    for path, operations in api["paths"].items():
        for method, operation in operations.items():
            lines += _operation(path, method, operation, api)
    lines.append("## Types\n")
    for name, schema in sorted(api["components"]["schemas"].items()):
        lines += _schema(name, schema)
    return "\n".join(lines)


def _operation(path: str, method: str, operation: JSON, api: JSON) -> Iterator[str]:
    yield f"## {operation['operationId']}\n\n```http\n{method.upper()} {path}\n```\n\n{operation['summary']}\n"
    rows = [
        (f"`{one['name']}`", one["in"], _type(one["schema"]), one.get("description", ""))
        for one in operation.get("parameters", ())
    ]
    yield from _table(("parameter", "in", "type", "meaning"), rows)
    if body := operation.get("requestBody"):
        yield f"Body: {_content(body)}\n"
    answers = []
    for status, answer in sorted(operation["responses"].items()):
        ref = answer.get("$ref", "").rpartition("/")[2]
        meant = api["components"]["responses"][ref] if ref else answer
        body = "" if int(status) >= 400 else f"{_content(meant)}: "
        answers.append((status, body + meant["description"]))
    yield from _table(("status", "answer"), answers)


def _content(part: JSON) -> str:
    shapes = [f"{_type(media['schema'])} as `{kind}`" for kind, media in part.get("content", {}).items()]
    return " or ".join(shapes) or "no body"


def _schema(name: str, schema: JSON) -> Iterator[str]:
    yield f"### {name}\n\n{' '.join(schema.get('description', '').split())}\n"
    if "properties" not in schema:
        yield f"{_type(schema)}\n"
    required = schema.get("required", ())
    rows = [
        (
            f"`{member}`",
            _type(one) + _limits(one) + ("" if member in required else ", optional"),
            " ".join(one.get("description", "").split()),
        )
        for member, one in schema.get("properties", {}).items()
    ]
    yield from _table(("member", "type", "meaning"), rows)


def _type(schema: JSON) -> str:
    if ref := schema.get("$ref"):
        name = ref.rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(_type(one) for one in schema["anyOf"])
    if "enum" in schema:
        return ", ".join(f"`{one}`" for one in schema["enum"])
    kind = schema.get("type", "any JSON")
    if kind == "array":
        return f"array of {_type(schema.get('items', {}))}"
    if kind == "object" and isinstance(values := schema.get("additionalProperties"), dict):
        return f"object of {_type(values)}"
    return str(kind)


def _limits(schema: JSON) -> str:
    words = {
        "minimum": "at least",
        "exclusiveMinimum": "above",
        "maximum": "at most",
        "maxLength": "at most (characters)",
        "maxItems": "at most (items)",
        "default": "default",
    }
    return "".join(f", {word} {json.dumps(schema[key])}" for key, word in words.items() if key in schema)


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    rows = list(rows)
    if rows:
        lines = [head, ("---",) * len(head), *rows]
        yield "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in lines) + "\n"
