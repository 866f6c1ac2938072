"""An API server as the operator's tests have it, and Prometheus: skipped where it is not built, failed where CI=1."""

from __future__ import annotations

import os

import pytest

from support.control_plane import control_plane, namespace, valkey_server
from support.observability.prometheus_server import program

__all__ = ["control_plane", "namespace", "valkey_server"]


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
