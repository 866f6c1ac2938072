"""What the tests of `file.get` and `file.put` share: the agent's bounds, and looks at how a transfer ended."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fairlead.wire.messages import End, Error

MB = 1 << 20
WINDOW = 128 << 10
Call = Callable[..., Any]


def error(end: End) -> Error:
    assert end.state == "error", end
    assert end.error is not None
    return end.error


def leftovers(folder: Path) -> list[str]:
    return [name for name in os.listdir(folder) if name.endswith(".part")]
