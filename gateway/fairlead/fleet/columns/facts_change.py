"""The facts that an agent has by now, and what they were before: the arguments of `change_facts.lua`.

`ChangedFacts` makes them and the `Directory` sends them. What differs is found here, in the node, because a Redis has
one processor for the whole fleet. This module decides nothing: the script compares the row with `before`, and finds out
by itself what differs if the row has something else.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

_decode = msgspec.json.Decoder(dict[str, str]).decode


class FactsChange(NamedTuple):
    agent: str
    sid: str
    before: bytes
    """As JSON: the facts that the agent's row has, as far as its node knows."""
    facts: bytes
    """As JSON: all facts that it has by now."""

    def arguments(self) -> list[str | bytes]:
        """The script's arguments: both texts, then for each fact that differs its key and its values before and now,
        '-' for no value and otherwise '+VALUE'."""
        old, new = _decode(self.before), _decode(self.facts)
        arguments: list[str | bytes] = [self.sid, self.facts, self.before]
        for key in old | new:
            before, now = old.get(key), new.get(key)
            if before != now:
                arguments += key, "-" if before is None else "+" + before, "-" if now is None else "+" + now
        return arguments
