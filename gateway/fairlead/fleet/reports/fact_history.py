"""The last changes of an agent's facts, as the calls that brought them have noted them in its row.

The API calls it for one agent. An agent tells its facts with each link, and what changes while it lasts.
Raises BusUnavailable if Redis does not answer.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from fairlead.fleet import schema
from fairlead.store.answer import Answer
from fairlead.store.reply import Reply, text
from fairlead.store.store import Store

_decode = msgspec.json.Decoder(dict[str, tuple[str | None, str | None]]).decode


class NotedChange(NamedTuple):
    """What was told anew at once, at `at` (ms): for each fact its value before and after, None for no value. `more`
    counts the facts that were too long to be kept."""

    at: int
    facts: dict[str, tuple[str | None, str | None]]
    more: int


class FactHistory:
    def __init__(self, store: Store) -> None:
        self._store = store

    def read(self, agent: str) -> Answer[list[NotedChange]]:
        """The newest first."""
        return Answer(self._store.submit("HGET", schema.agent_key(agent), "fact_changes"), _parse)


def _parse(reply: Reply) -> list[NotedChange]:
    changes = []
    for line in text(reply).split("\n") if reply is not None else ():
        at, more, facts = line.split(" ", 2)
        changes.append(NotedChange(int(at), _decode(facts), int(more)))
    return changes
