"""Which agents are meant: `env in (prod,dev),os=linux,!retired`, over labels and facts.

Read by the API from a query or a body. Labels are set by the platform, facts are what an agent says of itself, and
neither can pass for the other: `label.env` and `fact.os` name one of them, a bare key means the label, or the fact
where there is no such label. As in Kubernetes, `!=` and `notin` also hold for agents that lack the key. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from fairlead.errors import InvalidRequest

LENGTH_LIMIT = 1_024
TERM_LIMIT = 32
"""Each term is a look-up for every agent that is gone through."""

_KEY = r"(?:(?P<of>label|fact)\.)?(?P<key>[A-Za-z0-9][A-Za-z0-9._/-]{0,63})"
_VALUE = r"[^\s,()=!]+"
_TERM = re.compile(
    rf"\s*(?:(?P<absent>!)\s*)?{_KEY}\s*"
    rf"(?:(?P<equals>==?|!=)\s*(?P<value>(?:{_VALUE})?)|\b(?P<set>in|notin)\s*\((?P<values>[^()]*)\))?\s*(?:,|$)"
)


@dataclass(frozen=True, slots=True)
class Term:
    """One condition. `values` is None where only the presence of the key matters."""

    of: str
    key: str
    values: frozenset[str] | None
    negated: bool

    def holds(self, labels: Mapping[str, str] | None, facts: Mapping[str, str]) -> bool | None:
        """None where that cannot be known: `labels` is None, and what is asked for is no fact."""
        found: str | None
        if self.of == "fact":
            found = facts.get(self.key)
        elif labels is None:
            found = None if self.of else facts.get(self.key)
            if found is None:
                return None
        elif self.of == "label":
            found = labels.get(self.key)
        else:
            found = labels.get(self.key, facts.get(self.key))
        holds = found is not None and (self.values is None or found in self.values)
        return holds is not self.negated


@dataclass(frozen=True, slots=True)
class Selector:
    """All terms must hold; none at all means everybody."""

    terms: tuple[Term, ...]

    def matches(self, labels: Mapping[str, str] | None, facts: Mapping[str, str]) -> bool | None:
        """None for an agent whose labels nobody knows any more (`labels` is None), and on which it depends."""
        told = [term.holds(labels, facts) for term in self.terms]
        return False if False in told else None if None in told else True


def parse(text: str) -> Selector:
    """Raises InvalidRequest that shows where the text stops being a selector."""
    if len(text) > LENGTH_LIMIT:
        raise _fault(f"a selector of {len(text)} characters exceeds max {LENGTH_LIMIT}")
    terms: list[Term] = []
    at, end = 0, len(text.rstrip())
    while at < end:
        found = _TERM.match(text, at)
        if found is None:
            raise _fault(
                f"selector {text!r} is not understood from position {at} on, at {text[at : at + 20]!r}: write "
                "`key`, `!key`, `key=value`, `key!=value`, `key in (a,b)` or `key notin (a,b)`, separated by commas"
            )
        terms.append(_term(found, text))
        at = found.end()
    if text.rstrip().endswith(","):
        raise _fault(f"selector {text!r} ends with a comma: a term is missing")
    if len(terms) > TERM_LIMIT:
        raise _fault(f"{len(terms)} terms exceed max {TERM_LIMIT}")
    return Selector(tuple(terms))


def _term(found: re.Match[str], text: str) -> Term:
    of, key = found["of"] or "", found["key"]
    if found["absent"]:
        if found["equals"] or found["set"]:
            raise _fault(f"selector {text!r}: `!{key}` takes no value; write `{key}!=value` or `{key} notin (…)`")
        return Term(of, key, None, True)
    if found["equals"]:
        return Term(of, key, frozenset([found["value"]]), found["equals"] == "!=")
    if found["set"]:
        values = [value.strip() for value in found["values"].split(",")]
        if not all(re.fullmatch(_VALUE, value) for value in values):
            raise _fault(f"selector {text!r}: the values of `{key} {found['set']}` must stand in ( ), with commas")
        return Term(of, key, frozenset(values), found["set"] == "notin")
    return Term(of, key, None, False)


def _fault(message: str) -> InvalidRequest:
    return InvalidRequest(message, field="selector")
