"""The fingerprint of a posted command. It is equal for two bodies with the same meaning, even if their bytes differ.

The handler of `POST /v1/commands` compares it when an Idempotency-Key is used again, because the body must be the same.
The order of members, whitespace, escapes in strings, the notation of numbers and explicit defaults make no difference;
the order of an array does. Numbers are compared exactly, not as doubles: 1, 1.0 and 1e0 are one number, and 2^53 and
2^53 + 1 are two. It does no I/O.
"""

from __future__ import annotations

import hashlib
import json

import msgspec
from msgspec import Raw

_encode = msgspec.json.Encoder(order="sorted").encode
EXPONENT_DIGITS = 18
"""A longer exponent is compared as text, because arithmetic with it would be too expensive."""


def fingerprint(terms: tuple[object, ...], payload: bytes) -> str:
    """`terms` are all members but the payload, with their defaults; `payload` is JSON as it was posted."""
    try:
        meaning = _encode(_read(payload.decode()))
    except (ValueError, RecursionError):  # nested too deeply, or half a surrogate pair: compare the bytes
        meaning = payload
    return hashlib.sha256(_encode(terms) + b"\n" + meaning).hexdigest()


def number(text: str) -> Raw:
    """A JSON number in its one canonical form: sign, digits without zeros at either end, exponent."""
    mantissa, _, power = text.lower().partition("e")
    if len(power) > EXPONENT_DIGITS:
        return Raw(text.encode())
    integer, _, fraction = mantissa.removeprefix("-").partition(".")
    digits = (integer + fraction).lstrip("0")
    if not digits:
        return Raw(b"0")
    kept = digits.rstrip("0")
    exponent = int(power or 0) - len(fraction) + len(digits) - len(kept)
    return Raw(f"{'-' if text.startswith('-') else ''}{kept}e{exponent}".encode())


def _object(pairs: list[tuple[str, object]]) -> object:
    """An object. If a member is duplicated, all members are kept: parsers do not agree on its meaning."""
    made = dict(pairs)
    if len(made) == len(pairs):
        return made
    pairs.sort(key=lambda pair: pair[0])
    return Raw(b"{" + b",".join(_encode(key) + b":" + _encode(value) for key, value in pairs) + b"}")


_read = json.JSONDecoder(object_pairs_hook=_object, parse_int=number, parse_float=number).decode
