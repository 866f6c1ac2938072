"""Request bodies: read whole, up to a limit, and decoded as the type that the OpenAPI document promises.

The handlers call it. A body that msgspec rejects becomes an InvalidRequest that names the member, its value and the
rule in words. The message of msgspec itself shows a regular expression, and for a map not even the key. Therefore a
body that was rejected, and only such a body, is validated a second time, member by member, to find the member at fault.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

import msgspec
from msgspec import Meta, Raw, Struct, UnsetType
from msgspec.structs import FieldInfo
from starlette.requests import Request

from fairlead.app.api.headers import find_header
from fairlead.app.api.problems import BodyTooLarge, MalformedBody
from fairlead.errors import InvalidRequest

SHOWN = 80
"""Characters of an invalid value that the error repeats."""

SHORT = 512
"""Bytes up to which a body is searched for all names at once."""

S = TypeVar("S", bound=Struct)


async def read_body(request: Request, limit: int) -> bytes:
    """Read the whole body. The carrier enforces the deadline for its arrival.

    Raises BodyTooLarge above `limit` bytes, before anything is read if the request has a Content-Length.
    """
    declared = find_header(request, b"content-length") or ""
    if declared.isdecimal() and len(declared) < 20 and int(declared) > limit:
        raise BodyTooLarge(f"body of {declared} bytes exceeds the maximum of {limit}", limit=limit)
    body = b""
    more = True
    while more:
        # Not `request.stream()`, an asynchronous generator, which costs twice as much for a body in one message.
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise MalformedBody("the caller disconnected before the body was complete")
        body += message.get("body", b"")
        if len(body) > limit:
            raise BodyTooLarge(f"the body exceeds the maximum of {limit} bytes", limit=limit)
        more = message.get("more_body", False)
    return body


def decoded(decoder: msgspec.json.Decoder[S], raw: bytes) -> S:
    """Decode the body. Raises InvalidRequest, which names the member, and MalformedBody if the body is not JSON or has
    a duplicate member."""
    if not raw:
        raise MalformedBody("the body is empty: expected a JSON object, `{}` if there is nothing to say")
    try:
        try:
            made = decoder.decode(raw)
        except msgspec.ValidationError as e:
            raise _blame(msgspec.json.decode(raw), decoder.type) from e
        if _may_repeat(raw, decoder.type):
            _check_repeated(_pairs(raw.decode()), decoder.type)
        return made
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as e:
        raise MalformedBody(f"invalid JSON in the body: {e}") from e


class _Object(list[tuple[str, object]]):
    """A JSON object with all its members, duplicates included, in the order of the text."""


_pairs = json.JSONDecoder(object_pairs_hook=_Object, parse_int=str, parse_float=str).decode
"""Only the names matter here, and an integer of more digits than Python reads would raise ValueError."""


def _may_repeat(raw: bytes, kind: Any) -> bool:
    """Whether the body may have a duplicate of one of our members.

    This is a quick test for every body. False is certain: the body has no escapes, and none of our names appears twice
    in quotes.
    """
    names = _names(kind)
    if names is None or b"\\u" in raw:
        return True
    if len(raw) <= SHORT:
        found = _finder(kind)(raw)
        return len(set(found)) < len(found)
    return any(raw.count(name) > 1 for name in names)


@cache
def _names(kind: Any) -> tuple[bytes, ...] | None:
    """The names of all members of a type, in quotes; None if the type allows arbitrary names."""
    found: list[bytes] = []
    for one in _choices(kind):
        if _is_struct(one):
            for field in _members(one):
                inner = _names(field.type)
                if inner is None:
                    return None
                found += [f'"{field.encode_name}"'.encode(), *inner]
        elif _is_map(one):
            return None
    return tuple(found)


@cache
def _finder(kind: Any) -> Callable[[bytes], list[bytes]]:
    """Finds all names of members of a type, in quotes: for a short body in half the time of a count for each."""
    return re.compile(b"|".join(map(re.escape, _names(kind) or ()))).findall


@cache
def _members(kind: type[Struct]) -> tuple[FieldInfo, ...]:
    """Each look at a type would leave a reference cycle of msgspec's own."""
    return msgspec.structs.fields(kind)


def _check_repeated(value: object, kind: Any, path: str = "") -> None:
    """Raise MalformedBody for a duplicate member. Values that are passed on unchanged (Raw) are not checked."""
    inner = next((one for one in _choices(kind) if _is_map(one)), None)
    if not isinstance(value, _Object) or inner is None:
        return
    seen: set[str] = set()
    for name, _ in value:
        if name in seen:
            raise MalformedBody(f"duplicate member {_shown(name)} of {path or 'the body'}: give it once")
        seen.add(name)
    if _is_struct(inner):
        kinds = {field.encode_name: field.type for field in _members(inner)}
        for name, one in value:
            _check_repeated(one, kinds[name], _under(path, name))


def _blame(value: object, kind: Any, path: str = "") -> InvalidRequest:
    """The error for `value`, which does not fit `kind`: it names the first member at fault, or the whole value."""
    inner = next((one for one in _choices(kind) if _is_map(one)), None)
    if isinstance(value, dict) and inner is not None:
        fault = _blame_member(value, inner, path) if _is_struct(inner) else _blame_entry(value, inner, path)
        if fault is not None:
            return fault
    return InvalidRequest(f"invalid {path or 'body'} {_shown(value)}: expected {_rule(kind)}", field=path or "body")


def _blame_member(value: dict[str, object], kind: type[Struct], path: str) -> InvalidRequest | None:
    members = {field.encode_name: field for field in _members(kind)}
    for name in value:
        if name not in members:
            text = f"unknown member {_shown(name)} of {path or 'the body'}: expected {', '.join(members)}"
            return InvalidRequest(text, field=_under(path, name))
    for name, field in members.items():
        if field.required and name not in value:
            return InvalidRequest(f"missing member {name} of {path or 'the body'}", field=_under(path, name))
        if name in value and not _fits(value[name], field.type):
            return _blame(value[name], field.type, _under(path, name))
    return None


def _blame_entry(value: dict[str, object], kind: Any, path: str) -> InvalidRequest | None:
    of_keys, of_values = get_args(_bare(kind))
    for key, one in value.items():
        if not _fits(key, of_keys):
            return InvalidRequest(f"invalid key {_shown(key)} of {path}: expected {_rule(of_keys)}", field=path)
        if not _fits(one, of_values):
            return _blame(one, of_values, f"{path}[{key}]")
    return None


def _rule(kind: Any) -> str:
    """The expected value in words. For a string with a pattern, it is the description of the type."""
    choices = _choices(kind)
    if len(choices) > 1:
        return " or ".join(map(_rule, choices))
    kind = choices[0]
    bare = _bare(kind)
    limits = next((one for one in get_args(kind) if isinstance(one, Meta)), Meta())
    if limits.pattern is not None and limits.description is not None:
        return limits.description
    if get_origin(bare) is Literal:
        return " or ".join(map(_shown, get_args(bare)))
    if _is_struct(bare):
        return f"an object with {', '.join(field.encode_name for field in _members(bare))}"
    if _is_map(bare):
        return "an object" + (f" of at most {limits.max_length} members" if limits.max_length is not None else "")
    if get_origin(bare) is list:
        most = "" if limits.max_length is None else f" of at most {limits.max_length} members"
        return f"a list{most}, each {_rule(get_args(bare)[0])}"
    bounds = ((">", limits.gt), (">=", limits.ge), ("<=", limits.le))
    limits_text = " and ".join(f"{sign} {bound:.15g}" for sign, bound in bounds if bound is not None)
    return f"{_NAMES.get(bare, 'JSON')} {limits_text}".rstrip()


_NAMES = {str: "a string", float: "a number", int: "a whole number", bool: "true or false", NoneType: "null"}


def _choices(kind: Any) -> tuple[Any, ...]:
    """The alternatives of a union, or the type itself. That a member may be absent is no alternative."""
    bare = _bare(kind)
    if get_origin(bare) not in (Union, UnionType):
        return (kind,)
    return tuple(one for one in get_args(bare) if one is not UnsetType)


def _bare(kind: Any) -> Any:
    """The type without its metadata (Meta)."""
    return get_args(kind)[0] if get_origin(kind) is Annotated else kind


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Struct)


def _is_map(kind: Any) -> bool:
    """Whether values of this type are JSON objects."""
    bare = _bare(kind)
    return _is_struct(bare) or get_origin(bare) is dict


def _fits(value: object, kind: Any) -> bool:
    if _bare(kind) is Raw:
        return True
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError:
        return False
    return True


def _under(path: str, name: str) -> str:
    return f"{path}.{name[:SHOWN]}" if path else name[:SHOWN]


def _shown(value: object) -> str:
    """The value as JSON, shortened to `SHOWN` characters."""
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"
