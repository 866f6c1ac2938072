"""The facts that an agent has by now, and what they were before: the arguments of `change_facts.lua`.

`ChangedFacts` makes them and the `Directory` sends them. What differs is found here, in the node, because a Redis has
one processor for the whole fleet. This module decides nothing: the script compares the row with `before`, and finds out
by itself what differs if the row has something else.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

import msgspec

_decode = msgspec.json.Decoder(dict[str, str]).decode
_encode = msgspec.json.Encoder().encode
_SELECTABLE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,63}")
"""The keys that a selector can name, as in columns.lua."""
NOTED: Final = 512
"""Bytes of keys and values that the line of one change has room for, as in facts.lua."""


class FactsChange(NamedTuple):
    agent: str
    sid: str
    before: bytes
    """As JSON: the facts that the agent's row has, as far as its node knows."""
    facts: bytes
    """As JSON: all facts that it has by now."""
    at: int
    """Redis TIME in ms, as far as the node knows it: the script does without a call for it."""

    def arguments(self) -> list[str | bytes]:
        """The script's arguments: both texts, the line of the history, then for each fact that differs its column and
        its value now."""
        old, new = _decode(self.before), _decode(self.facts)
        noted: dict[str, tuple[str | None, str | None]] = {}
        columns: list[str | bytes] = []
        size = left = 0
        for key in old | new:
            before, now = old.get(key), new.get(key)
            if before == now:
                continue
            if _SELECTABLE.fullmatch(key):
                columns += f"f.{key}", _cell(now)
            length = sum(len(part.encode()) for part in (key, before or "", now or ""))
            if size + length > NOTED:
                left += 1
            else:
                size += length
                noted[key] = before, now
        return [self.sid, self.facts, self.before, b"%d %d %b" % (self.at, left, _encode(noted)), *columns]


def _cell(value: str | None) -> str:
    """A value as the columns have it, if it can be there."""
    if value is None:
        return "-"
    return f"+{value}" if "\0" in value or "\1" in value else f"\1{value}\0"
