"""Selectors of agents by labels and facts, such as `env in (prod,dev),os=linux,!retired`.

The API parses them from a query or a body. The platform sets labels, and an agent reports facts about itself.
`label.env` and `fact.os` name one of them; a bare key means the label, or the fact if the agent has no such label. As
in Kubernetes, `!=` and `notin` also match agents that lack the key. This module is pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from fairlead.errors import InvalidRequest

LENGTH_LIMIT = 1_024
TERM_LIMIT = 32
"""Each term costs a look-up for every agent that is examined."""

_KEY = r"(?:(?P<of>label|fact)\.)?(?P<key>[A-Za-z0-9][A-Za-z0-9._/-]{0,63})"
_VALUE = r"[^\s,()=!]+"
_TERM = re.compile(
    rf"\s*(?:(?P<absent>!)\s*)?{_KEY}\s*"
    rf"(?:(?P<equals>==?|!=)\s*(?P<value>(?:{_VALUE})?)|\b(?P<set>in|notin)\s*\((?P<values>[^()]*)\))?\s*(?:,|$)"
)


@dataclass(frozen=True, slots=True)
class Term:
    """One condition. `values` is None if only the presence of the key matters."""

    of: str
    key: str
    values: frozenset[str] | None
    negated: bool

    def holds(self, labels: Mapping[str, str] | None, facts: Mapping[str, str]) -> bool | None:
        """Whether the agent matches; None if that is unknown because `labels` is None and the key is not a fact."""
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
    """A conjunction of terms; without terms it matches every agent."""

    terms: tuple[Term, ...]

    def matches(self, labels: Mapping[str, str] | None, facts: Mapping[str, str]) -> bool | None:
        """Whether the agent matches; None if that depends on labels that were lost (`labels` is None)."""
        holds = [term.holds(labels, facts) for term in self.terms]
        return False if False in holds else None if None in holds else True


def parse(text: str) -> Selector:
    """Parse a selector. Raises InvalidRequest, which names the position of the error."""
    if len(text) > LENGTH_LIMIT:
        raise _fault(f"selector of {len(text)} characters: expected at most {LENGTH_LIMIT}")
    terms: list[Term] = []
    at, end = 0, len(text.rstrip())
    while at < end:
        found = _TERM.match(text, at)
        if found is None:
            raise _fault(
                f"invalid selector {text!r} at position {at}, {text[at : at + 20]!r}: expected "
                "`key`, `!key`, `key=value`, `key!=value`, `key in (a,b)` or `key notin (a,b)`, separated by commas"
            )
        terms.append(_term(found, text))
        at = found.end()
    if text.rstrip().endswith(","):
        raise _fault(f"invalid selector {text!r}: expected a term after the comma at its end")
    if len(terms) > TERM_LIMIT:
        raise _fault(f"selector of {len(terms)} terms: expected at most {TERM_LIMIT}")
    return Selector(tuple(terms))


def _term(found: re.Match[str], text: str) -> Term:
    of, key = found["of"] or "", found["key"]
    if found["absent"]:
        if found["equals"] or found["set"]:
            raise _fault(
                f"invalid selector {text!r}: `!{key}` takes no value; write `{key}!=value` or `{key} notin (…)`"
            )
        return Term(of, key, None, True)
    if found["equals"]:
        return Term(of, key, frozenset([found["value"]]), found["equals"] == "!=")
    if found["set"]:
        values = [value.strip() for value in found["values"].split(",")]
        if not all(re.fullmatch(_VALUE, value) for value in values):
            raise _fault(
                f"invalid selector {text!r}: expected the values of `{key} {found['set']}` in ( ), separated by commas"
            )
        return Term(of, key, frozenset(values), found["set"] == "notin")
    return Term(of, key, None, False)


def _fault(message: str) -> InvalidRequest:
    return InvalidRequest(message, field="selector")
