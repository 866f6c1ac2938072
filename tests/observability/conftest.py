"""The paths of what the tests here import, and Prometheus: skipped loudly where it is not built, failed where CI=1."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent / "helpers"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "bench"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "charts" / "observability"))

from prometheus_server import program


def _needed(name: str) -> str:
    found = program(name)
    if found is None:
        why = f"NOT tested: {name} was not found; `make prometheus` builds it, PROMETHEUS_BIN names its folder"
        if os.environ.get("CI") == "1":
            pytest.fail(why)
        pytest.skip(why)
    return found


@pytest.fixture(scope="session")
def prometheus_program() -> str:
    return _needed("prometheus")


@pytest.fixture(scope="session")
def promtool() -> str:
    return _needed("promtool")
