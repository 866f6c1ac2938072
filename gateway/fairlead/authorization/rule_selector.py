"""How rules of the file of roles name methods, ids and agents: names with a `*` at their end, and selectors.

`policy` and `approval_rule` ask it, and `policy_file` reads selectors with it. It is pure.
"""

from __future__ import annotations

from dataclasses import replace

from fairlead.fleet import selector
from fairlead.fleet.selector import Selector, Term

EVERY = "*"
"""Every method, every verb on agents, or every agent."""


def covers_name(pattern: str, name: str) -> bool:
    """Whether `pattern`, a name or the beginning of names followed by `*`, stands for `name`. Case matters."""
    return name.startswith(pattern[:-1]) if pattern.endswith(EVERY) else name == pattern


def overlap(one: str, other: str) -> bool:
    """Whether some name is covered by both patterns."""
    return covers_name(one, other.rstrip(EVERY)) or covers_name(other, one.rstrip(EVERY))


def rule_selector(text: str) -> Selector:
    """The selector of a rule: `*` for every agent. A bare key means the label. Raises InvalidRequest."""
    if text == EVERY:
        return Selector(())
    return Selector(tuple(replace(term, of=term.of or "label") for term in selector.parse(text).terms))


def selector_text(of: Selector) -> str:
    """A selector of rules as text that `rule_selector` reads."""
    return ",".join(map(_term_text, of.terms)) or EVERY


def _term_text(term: Term) -> str:
    key = f"fact.{term.key}" if term.of == "fact" else f"label.{term.key}" if "." in term.key else term.key
    if term.values is None:
        return f"!{key}" if term.negated else key
    values = sorted(term.values)
    if term.comparison:
        return f"{key}{term.comparison}{values[0]}"
    if len(values) == 1:
        return f"{key}{'!=' if term.negated else '='}{values[0]}"
    return f"{key} {'notin' if term.negated else 'in'} ({','.join(values)})"


def implies(asked: Selector, allowed: Selector) -> bool:
    """Whether every agent that matches `asked` surely matches `allowed`, whatever its labels. Both are selectors of
    rules."""
    return all(any(_implies_term(given, term) for given in asked.terms) for term in allowed.terms)


def excludes(asked: Selector, other: Selector) -> bool:
    """Whether surely no agent that matches `asked` matches `other`. Both are selectors of rules."""
    return any(_excludes_term(given, term) for given in asked.terms for term in other.terms)


def _excludes_term(given: Term, term: Term) -> bool:
    if (given.of, given.key) != (term.of, term.key) or given.comparison or term.comparison:
        return False
    if given.negated and term.negated:
        return False
    if not given.negated and not term.negated:
        return given.values is not None and term.values is not None and given.values.isdisjoint(term.values)
    present, absent = (term, given) if given.negated else (given, term)
    if absent.values is None:
        return True
    return present.values is not None and present.values <= absent.values


def _implies_term(given: Term, term: Term) -> bool:
    if (given.of, given.key) != (term.of, term.key):
        return False
    if term.comparison:
        return given == term  # it may imply it otherwise too: then the rule has to say so in the same words
    if given.comparison:
        return term.values is None and not term.negated
    if not given.negated:  # the key is there, with one of the values if there are any
        if term.values is None:
            return not term.negated
        if given.values is None:
            return False
        return given.values.isdisjoint(term.values) if term.negated else given.values <= term.values
    if given.values is None:  # the key is absent
        return term.negated
    return term.negated and term.values is not None and term.values <= given.values
