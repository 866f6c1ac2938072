"""The types of the fixtures that run Helm."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any, Protocol, TypeAlias

Object: TypeAlias = dict[str, Any]
"""One rendered object. `Any`, because YAML is what it is: a test that reads a member says by that what it expects."""


class Helm(Protocol):
    """Runs helm with a home of its own."""

    def __call__(self, *arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]: ...


class Render(Protocol):
    """The objects that the chart makes of these values, hooks and tests included."""

    def __call__(self, values: Path | Object | None = None, *flags: str) -> list[Object]: ...
