"""The mark of a test that runs a program of the benchmarks in C: skipped where it cannot be compiled, but not in CI."""

from __future__ import annotations

import os

import pytest

from bench.peers.c_programs import lacking


def needs(name: str) -> pytest.MarkDecorator:
    """With `CI=1` the test runs, and so fails where something is missing."""
    needed = lacking(name)
    return pytest.mark.skipif(needed is not None and os.environ.get("CI") != "1", reason=str(needed))
