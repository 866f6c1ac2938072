"""Turns a file in YAML into values, strictly, and collects its errors.

`policy_file` reads the file of roles with it. Every error names the line and the member, what is expected and what to
do. It does no I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import yaml

from fairlead.errors import ConfigError

DEPTH_LIMIT: Final = 16
"""Lists and mappings within one another; a valid file has five."""
ENTRIES_LIMIT: Final = 1_000
"""Of one list, such as the methods of a rule."""
_TEXT = "tag:yaml.org,2002:str"
_INTEGER = "tag:yaml.org,2002:int"


def check_events(text: str, source: str) -> None:
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


class StrictReader:
    """Turns nodes of YAML into values, and collects errors."""

    def __init__(self, source: str) -> None:
        self._source = source
        self.errors: list[str] = []

    def members(self, node: yaml.Node, path: str, known: tuple[str, ...] | None) -> dict[str, yaml.Node]:
        if not isinstance(node, yaml.MappingNode):
            self.fault(node, path, "is not a mapping", ", ".join(known) if known else "names with a value each")
            return {}
        members: dict[str, yaml.Node] = {}
        for key, value in node.value:
            name = key.value if isinstance(key, yaml.ScalarNode) and key.tag == _TEXT else None
            if name is None:
                self.fault(key, path, f"has a name that is not text, {shown(key)}", "text (put it in quotes)")
            elif known is not None and name not in known:
                self.fault(key, path, f"has the unknown member {name[:80]!r}", ", ".join(known))
            elif name in members:
                self.fault(key, path, f"has the member {name[:80]!r} twice", "every name once (join the two)")
            else:
                members[name] = value
        return members

    def items(self, node: yaml.Node | None, path: str, limit: int = ENTRIES_LIMIT) -> Iterator[tuple[str, yaml.Node]]:
        if node is None:
            return
        if not isinstance(node, yaml.SequenceNode):
            self.fault(node, path, "is not a list", "a list, each entry of which begins with `-` or stands in [ ]")
            return
        if len(node.value) > limit:
            self.fault(node, path, f"has {len(node.value)} entries", f"at most {limit}")
            return
        for number, one in enumerate(node.value):
            yield f"{path}[{number}]", one

    def words(
        self, members: dict[str, yaml.Node], name: str, path: str, is_valid: Callable[[str], bool], expected: str
    ) -> list[str]:
        words: list[str] = []
        if name not in members:
            return words
        for where, one in self.items(members[name], f"{path}.{name}"):
            word = self.text(one, where)
            if word is not None and not is_valid(word):
                self.fault(one, where, f"is {word[:80]!r}", expected)
            elif word is not None:
                words.append(word)
        if isinstance(members[name], yaml.SequenceNode) and not members[name].value:
            self.fault(members[name], f"{path}.{name}", "is empty", f"{expected} (or remove it)")
        return words

    def text(self, node: yaml.Node, path: str) -> str | None:
        if isinstance(node, yaml.ScalarNode) and node.tag == _TEXT:
            return str(node.value)
        self.fault(node, path, f"is {shown(node)}", "text (put it in quotes)")
        return None

    def fault(self, node: yaml.Node, path: str, problem: str, expected: str) -> None:
        self.errors.append(f"{self.at(node)}: {path} {problem}: expected {expected}")

    def at(self, node: yaml.Node) -> str:
        return f"{self._source}:{node.start_mark.line + 1}"

    def whole_number(self, node: yaml.Node, path: str, least: int, most: int) -> int | None:
        given = node.value if isinstance(node, yaml.ScalarNode) and node.tag == _INTEGER else ""
        if given.isascii() and given.isdigit() and len(given) <= 20 and least <= int(given) <= most:
            return int(given)
        self.fault(node, path, f"is {shown(node)}", f"a whole number from {least} to {most}")
        return None


def shown(node: yaml.Node) -> str:
    if isinstance(node, yaml.ScalarNode):
        return repr(node.value[:80]) if node.value else "nothing"
    return "a list" if isinstance(node, yaml.SequenceNode) else "a mapping"
