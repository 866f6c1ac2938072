"""Selectors of agents by labels and facts, such as `env in (prod,dev),os.version<12,!retired`.

The API parses them from a query or a body. The platform sets labels, and an agent reports facts about itself.
`label.env` and `fact.os` name one of them; a bare key means the label, or the fact if the agent has no such label. As
in Kubernetes, `!=` and `notin` also match agents that lack the key. `<` and its like compare as versions are compared.
This module is pure.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from fairlead.errors import InvalidRequest

EVERY = "*"
"""The selector that every agent matches, in words that cannot be left out by mistake, as an empty one can."""
LENGTH_LIMIT = 1_024
TERM_LIMIT = 32
"""Each term costs a look-up for every agent that is examined."""

_KEY = r"(?:(?P<of>label|fact)\.)?(?P<key>[A-Za-z0-9][A-Za-z0-9._/-]{0,63})"
_VALUE = r"[^\s,()=!]+"
_BOUND = r"[^\s,()=!<>]+"
COMPARISONS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
_SPACE = r"\s*+"
"""Possessive: two stretches would be tried in every way to share one gap, which takes the square of its length."""
_TERM = re.compile(
    rf"{_SPACE}(?:(?P<absent>!){_SPACE})?{_KEY}{_SPACE}"
    rf"(?:(?P<equals>==?|!=){_SPACE}(?![<>])(?P<value>(?:{_VALUE})?)"
    rf"|(?P<comparison>[<>]=?){_SPACE}(?P<bound>{_BOUND})"
    rf"|\b(?P<set>in|notin){_SPACE}\((?P<values>[^()]*)\))?{_SPACE}(?:,|$)"
)


@dataclass(frozen=True, slots=True)
class Key:
    """A label or a fact. `of` is label, fact, or "" for the label, and the fact if there is no such label."""

    of: str
    key: str

    def find(self, labels: Mapping[str, str], facts: Mapping[str, str]) -> str | None:
        """Its value; None if the agent lacks it."""
        if self.of == "fact":
            return facts.get(self.key)
        found = labels.get(self.key)
        return facts.get(self.key) if found is None and not self.of else found


@dataclass(frozen=True, slots=True)
class Term(Key):
    """One condition. `values` is None if only the presence of the key matters. With a `comparison`, one of COMPARISONS,
    it has the one value to compare with."""

    values: frozenset[str] | None
    negated: bool
    comparison: str = ""

    def holds(self, labels: Mapping[str, str] | None, facts: Mapping[str, str]) -> bool | None:
        """Whether the agent matches; None if that is unknown because `labels` is None and the key is not a fact."""
        found = self.find(labels or {}, facts)
        if labels is None and self.of != "fact" and (self.of or found is None):
            return None
        if found is None or self.values is None:
            return (found is not None) is not self.negated
        if self.comparison:
            (bound,) = self.values
            return bool(COMPARISONS[self.comparison](version(found), version(bound)))
        return (found in self.values) is not self.negated


@lru_cache(4_096)
def version(text: str) -> tuple[tuple[int, int, str], ...]:
    """The parts of a version in an order: numbers by their value, letters as text and before any number, and what has
    more parts after what it begins with. So `1.9` < `1.10` < `1.10.1`, and `12` is a version too."""
    return tuple(
        (1, int(part), "") if part.isdigit() else (0, 0, part) for part in re.findall(r"[0-9]+|[A-Za-z]+", text)
    )


@dataclass(frozen=True, slots=True)
class Selector:
    """A conjunction of terms; without terms it matches every agent."""

    terms: tuple[Term, ...]

    def matches(self, labels: Mapping[str, str] | None, facts: Mapping[str, str]) -> bool | None:
        """Whether the agent matches; None if that depends on labels that were lost (`labels` is None)."""
        holds = [term.holds(labels, facts) for term in self.terms]
        return False if False in holds else None if None in holds else True


def parse(text: str) -> Selector:
    """Parse a selector; `*` alone, like an empty one, is every agent. Raises InvalidRequest, which names the position
    of the error."""
    if text.strip() == EVERY:
        return Selector(())
    if len(text) > LENGTH_LIMIT:
        raise _fault(f"selector of {len(text)} characters: expected at most {LENGTH_LIMIT}")
    terms: list[Term] = []
    at, end = 0, len(text.rstrip())
    while at < end:
        found = _TERM.match(text, at)
        if found is None:
            raise _fault(
                f"invalid selector {text!r} at position {at}, {text[at : at + 20]!r}: expected "
                "`key`, `!key`, `key=value`, `key!=value`, `key in (a,b)`, `key notin (a,b)` or `key<value` (also <=, "
                ">, >=), separated by commas"
            )
        terms.append(_term(found, text))
        at = found.end()
    if text.rstrip().endswith(","):
        raise _fault(f"invalid selector {text!r}: expected a term after the comma at its end")
    if len(terms) > TERM_LIMIT:
        raise _fault(f"selector of {len(terms)} terms: expected at most {TERM_LIMIT}")
    return Selector(tuple(terms))


def parse_key(text: str, field: str) -> Key:
    """Parse the key of a term by itself, such as `label.zone`. Raises InvalidRequest, which names `field`."""
    found = re.fullmatch(_KEY, text)
    if found is None:
        raise InvalidRequest(
            f"invalid key {text[:80]!r}: expected that of a label or fact, such as zone or label.zone", field=field
        )
    return Key(found["of"] or "", found["key"])


def _term(found: re.Match[str], text: str) -> Term:
    of, key = found["of"] or "", found["key"]
    if found["absent"]:
        if found["equals"] or found["set"] or found["comparison"]:
            raise _fault(
                f"invalid selector {text!r}: `!{key}` takes no value; write `{key}!=value` or `{key} notin (…)`"
            )
        return Term(of, key, None, True)
    if found["equals"]:
        return Term(of, key, frozenset([found["value"]]), found["equals"] == "!=")
    if found["comparison"]:
        return Term(of, key, frozenset([found["bound"]]), False, found["comparison"])
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
