"""What JSON can say, written as YAML.

Used by `output`. A writer of one page in place of a library: what we write is plain data, and a base install of the
command line should need no more than it has. It reads nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_PLAIN = re.compile(r"[A-Za-z_/][A-Za-z0-9_./@+-]*")
_WORDS = frozenset({"true", "false", "yes", "no", "on", "off", "y", "n", "null"})
"""They mean something else than themselves, in one version of YAML or the other."""


def dump(value: object) -> str:
    """One document, without the line that begins it."""
    return "\n".join(_lines(value)) + "\n"


def _lines(value: object) -> Iterator[str]:
    if isinstance(value, dict) and value:
        for key, one in value.items():
            yield from _member(f"{_text(str(key))}:", one)
    elif isinstance(value, list | tuple) and value:
        for one in value:
            first = True
            for line in _lines(one):
                yield f"- {line}" if first else f"  {line}"
                first = False
    else:
        yield _scalar(value)


def _member(key: str, value: object) -> Iterator[str]:
    if isinstance(value, dict | list | tuple) and value:
        yield key
        for line in _lines(value):
            yield f"  {line}"
    else:
        yield f"{key} {_scalar(value)}"


def _scalar(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        digits, e, exponent = repr(value).partition("e")
        # Without a point a reader of YAML 1.1 takes 1e+16 for a word.
        return f"{digits}.0e{exponent}" if e and "." not in digits else f"{digits}{e}{exponent}"
    if isinstance(value, dict):
        return "{}"
    if isinstance(value, list | tuple):
        return "[]"
    return _text(str(value))


def _text(text: str) -> str:
    if _PLAIN.fullmatch(text) and text.lower() not in _WORDS:
        return text
    return '"' + "".join(map(_escaped, text)) + '"'


def _escaped(character: str) -> str:
    if character in '"\\':
        return f"\\{character}"
    if character.isprintable():
        return character
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
