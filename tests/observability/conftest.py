"""The paths of what the tests here import, and Prometheus: skipped loudly where it is not built, failed where CI=1."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from support.observability.prometheus_server import program


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


def _operators() -> Any:
    """The conftest of tests/operator: its fixtures are ours too, and a conftest cannot be imported by its name."""
    path = Path(__file__).resolve().parents[1] / "operator" / "conftest.py"
    found = importlib.util.spec_from_file_location("conftest_of_the_operator", path)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    sys.modules[found.name] = module
    found.loader.exec_module(module)
    return module


_shared = _operators()
control_plane, valkey_server, world = _shared.control_plane, _shared.valkey_server, _shared.world
