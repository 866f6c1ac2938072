"""The measures of the code: sizes of folders and functions, arguments of constructors, and one name for one class.

docs/decisions/0017-names-and-measures.md says why. An exception is listed here together with its reason.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = (ROOT / "gateway" / "fairlead", ROOT / "operator" / "fairlead_operator")
SCHEMAS = {"gateway/fairlead/app/api/schemas.py", "gateway/fairlead/app/api/access_schemas.py"}
MODELS = "gateway/fairlead/client/models.py"

MODULES = 12
"""Beside `__init__` and `__main__`, in one folder."""
LINES = 50
"""Of a function."""
ARGUMENTS = 8
"""Of a constructor, without `self`."""

WIDE_CONSTRUCTORS = {
    "gateway/fairlead/agent/agent.py: 10 arguments": "the SDK's own; all but the address are named and have defaults",
}
SHARED_NAMES = {
    "Agent": "public in the SDK (an agent that runs) and in the client (an agent of the fleet)",
    "Chunk": "a message of the protocol, and a result in the client",
    "Command": "public in the SDK (what a handler gets) and in the client (what a caller follows)",
    "CommandError": "public in the SDK, and the member `error` of the API's documents",
    "End": "a message of the protocol, and the last result in the client",
    "JsonFormatter": "of the agent and of the gateway, which import nothing of one another",
    "Target": "the API's document, and the record in Redis that it shows",
}
"""Class names that two modules of a package define. The API's schemas and the client's models are two ends of the same
documents and share all their names."""


def definitions() -> Iterator[tuple[str, ast.AST]]:
    for package in PACKAGES:
        for path in sorted(package.rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                yield str(path.relative_to(ROOT)), node


def test_a_folder_has_few_enough_modules_to_be_read_at_a_glance() -> None:
    counts: defaultdict[str, int] = defaultdict(int)
    for package in PACKAGES:
        for path in package.rglob("*.py"):
            counts[str(path.parent.relative_to(ROOT))] += path.name not in ("__init__.py", "__main__.py")
    assert {folder: count for folder, count in counts.items() if count > MODULES} == {}


def test_a_function_fits_on_a_screen() -> None:
    long = [
        f"{path}: {node.name}"
        for path, node in definitions()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (node.end_lineno or 0) - node.lineno >= LINES
    ]
    assert long == []


def test_a_constructor_has_few_arguments() -> None:
    wide = set()
    for path, node in definitions():
        if isinstance(node, ast.FunctionDef) and node.name == "__init__":
            count = len(node.args.args) - 1 + len(node.args.kwonlyargs)
            if count > ARGUMENTS:
                wide.add(f"{path}: {count} arguments")
    assert wide == set(WIDE_CONSTRUCTORS)


def test_a_class_has_a_name_of_its_own() -> None:
    places: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    for path, node in definitions():
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            places[path.split("/")[1], node.name].add(path)
    shared = {name for (_, name), paths in places.items() if len(paths) > 1 and paths - SCHEMAS != {MODELS}}
    assert shared == set(SHARED_NAMES)
