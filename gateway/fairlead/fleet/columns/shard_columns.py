"""The columns of one shard of the fleet, as they were at one moment, and which of its agents match a selector.

`AgentColumns` reads them. What is read is a snapshot: a row and its columns change in one step. This module is pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from fairlead.fleet.columns.column import Column, Matches, every
from fairlead.fleet.selector import Selector, Term
from fairlead.store.reply import Reply, integer, items, octets

TENANT: Final = "t"
LOST: Final = "x"


def needed(selectors: Iterable[Selector]) -> list[str]:
    """The names of the columns that decide these selectors."""
    names = [TENANT, LOST]
    for term in (term for selector in selectors for term in selector.terms):
        names += [f"l.{term.key}"] * (term.of != "fact") + [f"f.{term.key}"] * (term.of != "label")
    return list(dict.fromkeys(names))


class ShardColumns:
    """`size` is the number of positions. Of the columns, only those exist that were asked for."""

    def __init__(self, size: int, columns: dict[str, Column]) -> None:
        self.size = size
        self._columns = columns
        self._lost = columns[LOST].filled

    @classmethod
    def parse(cls, names: list[str], reply: Reply) -> ShardColumns | None:
        """Parse the reply of read_columns.lua; None if the columns are incomplete."""
        ready, count, *rest = items(reply)
        if not octets(ready):
            return None
        size = integer(count)
        refused = {"f": bool(octets(rest[0])), "l": bool(octets(rest[1]))}
        columns = {}
        for name, at in zip(names, range(2, len(rest), 4), strict=True):
            if rest[at] is None:
                columns[name] = Column.missing(size, refused=refused.get(name[0], False))
            else:
                codes, cells, firsts, seconds = map(octets, rest[at : at + 4])
                columns[name] = Column(size, codes, cells, firsts, seconds)
        return cls(size, columns)

    def of_tenant(self, tenant: str) -> Matches:
        """All agents of a tenant."""
        return self._columns[TENANT].matching(Term("fact", TENANT, frozenset([tenant]), False))

    def matching(self, tenant: str, selector: Selector) -> Matches:
        """The agents of a tenant that match a selector."""
        found = self.of_tenant(tenant)
        for term in selector.terms:
            found = found.both(self._term(term))
        return found

    def matching_any(self, tenant: str, selectors: Iterable[Selector]) -> Matches:
        """The agents of a tenant that match at least one of the selectors."""
        found = Matches(0, 0)
        for selector in selectors:
            found = found.either(self.matching(tenant, selector))
        return found

    def _term(self, term: Term) -> Matches:
        if term.of == "fact":
            return self._columns[f"f.{term.key}"].matching(term)
        labels = self._columns[f"l.{term.key}"]
        found = labels.matching(term)
        if term.of == "label":
            return found.opened(self._lost)
        if found.open == every(self.size):
            return found  # whether an agent has the label is not known, and without it the fact decides
        facts, labelled = self._columns[f"f.{term.key}"], labels.filled & ~self._lost
        by_fact = facts.matching(term).opened(self._lost & ~facts.filled)
        return found.among(labelled).either(by_fact.without(labelled))
