"""Reads the file of roles: YAML with `roles` and `bindings`, checked strictly.

    roles:
      deploy:
        - methods: [exec, file.*]
          agents: env=staging,team=web
        - verbs: [view, results]
          ids: [web-*]
    bindings:
      - tokens: [ci]
        groups: [company:web-team]
        roles: [deploy]

Every error names the file's line and the member, what is expected and what to do; all errors are reported at once.
`policy_watch` calls it. It does no I/O.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

import yaml

from fairlead.authorization.policy import AGENT_VERBS, EVERY, GATEWAY_VERBS, Policy, Rule, rule_selector
from fairlead.errors import ConfigError, InvalidRequest

SIZE_LIMIT: Final = 1 << 20
"""Bytes of a file: some ten thousand rules, which take three seconds of CPU time to read."""
DEPTH_LIMIT: Final = 16
"""Lists and mappings within one another; a valid file has five."""
ROLES_LIMIT: Final = 1_000
RULES_LIMIT: Final = 100
ENTRIES_LIMIT: Final = 1_000
"""Of one list, such as the methods of a rule."""
ERRORS_SHOWN: Final = 20

NAME: Final = r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}"
NAME_RULE: Final = "1 to 63 characters of A-Z a-z 0-9 . _ -, the first a letter or digit"
_METHOD = re.compile(r"\*|[A-Za-z0-9][A-Za-z0-9._-]{0,63}|[A-Za-z0-9][A-Za-z0-9._-]{0,61}\.\*")
_ID = re.compile(r"\*|[A-Za-z0-9][A-Za-z0-9._-]{0,127}\*?")
_QUALIFIED = re.compile(NAME + r":(?! )[^\x00-\x1f\x7f]{1,256}(?<! )")
_SUBJECTS: Final = {
    "tokens": (re.compile(NAME), f"names of tokens ({NAME_RULE})"),
    "users": (_QUALIFIED, "names of users after the issuer's name, such as company:anna"),
    "groups": (_QUALIFIED, "names of groups after the issuer's name, such as company:oncall"),
}
"""Whom a binding can name, how, and what is expected in words."""
_TEXT = "tag:yaml.org,2002:str"


def parse_policy(raw: bytes, source: str) -> Policy:
    """The policy of a file; `source` is its name in errors. Raises ConfigError."""
    if len(raw) > SIZE_LIMIT:
        raise ConfigError(
            f"{source}: {len(raw)} bytes exceed the maximum of {SIZE_LIMIT}: expected a smaller file (use selectors in "
            "place of lists of ids)"
        )
    try:
        text = raw.decode()
        _check_events(text, source)
        root = yaml.compose(text, yaml.SafeLoader)
    except UnicodeDecodeError as e:
        raise ConfigError(f"{source}: byte {e.start} is not UTF-8: expected YAML in UTF-8") from e
    except yaml.MarkedYAMLError as e:
        line = f":{e.problem_mark.line + 1}" if e.problem_mark is not None else ""
        raise ConfigError(
            f"{source}{line}: invalid YAML, {e.problem or e.context}: expected `roles` and `bindings` (write `*` in "
            "quotes)"
        ) from e
    except yaml.YAMLError as e:
        raise ConfigError(f"{source}: invalid YAML: {e}: expected printable text") from e
    reader = _Reader(source)
    policy = reader.policy(root)
    if reader.errors:
        shown = reader.errors[:ERRORS_SHOWN]
        more = len(reader.errors) - len(shown)
        raise ConfigError("\n".join([*shown, *([f"{source}: {more} further errors"] if more else [])]))
    return policy


def _check_events(text: str, source: str) -> None:
    """Raises ConfigError for aliases, and for nesting that no valid file has: each bracket that is open costs time for
    every one that follows."""
    depth = 0
    for event in yaml.parse(text, yaml.SafeLoader):
        if isinstance(event, yaml.AliasEvent):
            raise ConfigError(f"{source}: YAML aliases are not read: expected plain values (write `*` in quotes)")
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > DEPTH_LIMIT:
                raise ConfigError(f"{source}: invalid YAML: nested too deeply: expected `roles` and `bindings`")
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


class _Reader:
    """Turns nodes of YAML into values, and collects errors."""

    def __init__(self, source: str) -> None:
        self._source = source
        self.errors: list[str] = []

    def policy(self, root: yaml.Node | None) -> Policy:
        if root is None:
            self.errors.append(f"{self._source}:1: the file is empty: expected `roles` and `bindings`")
            return Policy()
        members = self._members(root, "the file", ("roles", "bindings"))
        roles: dict[str, tuple[Rule, ...]] = {}
        if "roles" in members:
            roles = dict(self._roles(members["roles"]))
        else:
            self._fault(root, "the file", "has no member roles", "roles and bindings")
        bound: dict[str, dict[str, set[str]]] = {kind: {} for kind in _SUBJECTS}
        for path, one in self._items(members.get("bindings"), "bindings"):
            self._bind(one, path, roles, bound)
        tokens, users, groups = ({name: frozenset(names) for name, names in bound[kind].items()} for kind in _SUBJECTS)
        return Policy(roles, tokens, users, groups)

    def _roles(self, node: yaml.Node) -> Iterator[tuple[str, tuple[Rule, ...]]]:
        members = self._members(node, "roles", None)
        if len(members) > ROLES_LIMIT:
            self._fault(node, "roles", f"has {len(members)} members", f"at most {ROLES_LIMIT}")
        for name, rules in members.items():
            if not re.fullmatch(NAME, name):
                self._fault(rules, "roles", f"has the invalid name {name[:80]!r}", NAME_RULE)
            read = [self._rule(one, path) for path, one in self._items(rules, f"roles.{name}", RULES_LIMIT)]
            if not read and isinstance(rules, yaml.SequenceNode):
                self._fault(rules, f"roles.{name}", "has no rule", "at least one rule (or remove the role)")
            yield name, tuple(read)

    def _rule(self, node: yaml.Node, path: str) -> Rule:
        members = self._members(node, path, ("methods", "verbs", "gateway", "agents", "ids"))
        methods = self._words(members, "methods", path, _is_method, "names of methods, `file.*`, or `*` in quotes")
        verbs = self._words(
            members, "verbs", path, lambda word: word == EVERY or word in AGENT_VERBS,
            f"{', '.join(AGENT_VERBS)}, or `*` in quotes",
        )  # fmt: skip
        gateway = self._words(members, "gateway", path, lambda word: word in GATEWAY_VERBS, " or ".join(GATEWAY_VERBS))
        ids = self._words(
            members, "ids", path, lambda word: _ID.fullmatch(word) is not None, "ids of agents, or `web-*` in quotes"
        )
        agents = None
        if "agents" in members and (text := self._text(members["agents"], f"{path}.agents")) is not None:
            try:
                agents = rule_selector(text) if text.strip() else None
            except InvalidRequest as e:
                self.errors.append(f"{self._at(members['agents'])}: {path}.agents: {e.message}")
            else:
                if agents is None:
                    self._fault(members["agents"], f"{path}.agents", "is empty", 'a selector, or "*" for every agent')
        for_agents = bool({"methods", "verbs"} & members.keys())
        if isinstance(node, yaml.MappingNode):
            if not for_agents and "gateway" not in members:
                self._fault(node, path, "allows nothing", "one of methods, verbs and gateway")
            if for_agents and not {"agents", "ids"} & members.keys():
                self._fault(node, path, "names no agents", 'agents, a selector or "*" for every agent, or ids')
            if not for_agents and {"agents", "ids"} & members.keys():
                self._fault(node, path, "names agents but nothing to do with them", "methods or verbs beside them")
        return Rule(frozenset(methods), frozenset(verbs), frozenset(gateway), agents, tuple(ids))

    def _bind(
        self, node: yaml.Node, path: str, roles: dict[str, tuple[Rule, ...]], bound: dict[str, dict[str, set[str]]]
    ) -> None:
        members = self._members(node, path, (*_SUBJECTS, "roles"))
        given = self._words(members, "roles", path, lambda word: word in roles, f"one of the roles {_some(roles)}")
        if isinstance(node, yaml.MappingNode):
            if not members.keys() & _SUBJECTS.keys():
                self._fault(node, path, f"has no member {' or '.join(_SUBJECTS)}", "whom the roles are for")
            if "roles" not in members:
                self._fault(node, path, "has no member roles", "names of roles")
        for kind, (pattern, expected) in _SUBJECTS.items():
            for word in self._words(members, kind, path, partial(_matches, pattern), expected):
                bound[kind].setdefault(word, set()).update(given)

    def _members(self, node: yaml.Node, path: str, known: tuple[str, ...] | None) -> dict[str, yaml.Node]:
        if not isinstance(node, yaml.MappingNode):
            self._fault(node, path, "is not a mapping", ", ".join(known) if known else "names with a value each")
            return {}
        members: dict[str, yaml.Node] = {}
        for key, value in node.value:
            name = key.value if isinstance(key, yaml.ScalarNode) and key.tag == _TEXT else None
            if name is None:
                self._fault(key, path, f"has a name that is not text, {_shown(key)}", "text (put it in quotes)")
            elif known is not None and name not in known:
                self._fault(key, path, f"has the unknown member {name[:80]!r}", ", ".join(known))
            elif name in members:
                self._fault(key, path, f"has the member {name[:80]!r} twice", "every name once (join the two)")
            else:
                members[name] = value
        return members

    def _items(self, node: yaml.Node | None, path: str, limit: int = ENTRIES_LIMIT) -> Iterator[tuple[str, yaml.Node]]:
        if node is None:
            return
        if not isinstance(node, yaml.SequenceNode):
            self._fault(node, path, "is not a list", "a list, each entry of which begins with `-` or stands in [ ]")
            return
        if len(node.value) > limit:
            self._fault(node, path, f"has {len(node.value)} entries", f"at most {limit}")
            return
        for number, one in enumerate(node.value):
            yield f"{path}[{number}]", one

    def _words(
        self, members: dict[str, yaml.Node], name: str, path: str, is_valid: Callable[[str], bool], expected: str
    ) -> list[str]:
        words: list[str] = []
        if name not in members:
            return words
        for where, one in self._items(members[name], f"{path}.{name}"):
            word = self._text(one, where)
            if word is not None and not is_valid(word):
                self._fault(one, where, f"is {word[:80]!r}", expected)
            elif word is not None:
                words.append(word)
        if isinstance(members[name], yaml.SequenceNode) and not members[name].value:
            self._fault(members[name], f"{path}.{name}", "is empty", f"{expected} (or remove it)")
        return words

    def _text(self, node: yaml.Node, path: str) -> str | None:
        if isinstance(node, yaml.ScalarNode) and node.tag == _TEXT:
            return str(node.value)
        self._fault(node, path, f"is {_shown(node)}", "text (put it in quotes)")
        return None

    def _fault(self, node: yaml.Node, path: str, problem: str, expected: str) -> None:
        self.errors.append(f"{self._at(node)}: {path} {problem}: expected {expected}")

    def _at(self, node: yaml.Node) -> str:
        return f"{self._source}:{node.start_mark.line + 1}"


def _matches(pattern: re.Pattern[str], word: str) -> bool:
    return pattern.fullmatch(word) is not None


def _is_method(word: str) -> bool:
    return _METHOD.fullmatch(word) is not None


def _shown(node: yaml.Node) -> str:
    if isinstance(node, yaml.ScalarNode):
        return repr(node.value[:80]) if node.value else "nothing"
    return "a list" if isinstance(node, yaml.SequenceNode) else "a mapping"


def _some(names: dict[str, tuple[Rule, ...]]) -> str:
    listed = ", ".join(list(names)[:10])
    return listed + (" and others" if len(names) > 10 else "") if names else "(there is none)"
