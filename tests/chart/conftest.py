"""Helm for the tests of the chart. Without it they are skipped with a message, and fail in CI, which must have it.

Helm 3 is taken from FAIRLEAD_HELM, from the build of `make cluster`, or from PATH; Helm 4 from FAIRLEAD_HELM4 or from
the build of `make helm4`. The tests render and lint; none of them touches a cluster.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

import pytest
import yaml

from support.chart.helm import Render

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts" / "fairlead"

Run: TypeAlias = "Callable[..., subprocess.CompletedProcess[str]]"


@pytest.fixture(scope="session")
def chart() -> Path:
    return CHART


@pytest.fixture(scope="session")
def helm_program() -> str:
    built = ROOT / ".cache" / "cluster" / "bin"
    named = os.environ.get("FAIRLEAD_HELM") or shutil.which("helm", path=f"{built}{os.pathsep}{os.environ['PATH']}")
    return named or _none("helm was not found; `make cluster` builds it, FAIRLEAD_HELM names one")


@pytest.fixture(scope="session")
def helm4() -> str:
    named = os.environ.get("FAIRLEAD_HELM4") or shutil.which("helm", path=ROOT / ".cache" / "helm4" / "bin")
    return named or _none("Helm 4 was not found; `make helm4` builds it, FAIRLEAD_HELM4 names one")


def _none(why: str) -> NoReturn:
    if os.environ.get("CI"):
        pytest.fail(f"the chart was NOT tested: {why}")
    pytest.skip(f"the chart was NOT tested: {why}")


@pytest.fixture(scope="session")
def helm(helm_program: str, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Helm with a home of its own, so that the user's configuration has no effect."""
    home = tmp_path_factory.mktemp("helm")
    places = {f"HELM_{name}_HOME": str(home / name) for name in ("CACHE", "CONFIG", "DATA")}
    environment = {**os.environ, **places, "KUBECONFIG": os.devnull}

    def run(*arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [helm_program, *arguments], input=stdin, capture_output=True, text=True, env=environment, timeout=50,
            check=False,
        )  # fmt: skip

    return run


@pytest.fixture(scope="session")
def render(helm: Run) -> Render:
    """The objects that the chart makes of these values, hooks and tests included."""

    def run(values: Path | dict[str, Any] | None = None, *flags: str) -> list[dict[str, Any]]:
        text = values.read_text() if isinstance(values, Path) else yaml.safe_dump(values or {})
        done = helm("template", "fairlead", str(CHART), "--namespace", "fleet", "--values", "-", *flags, stdin=text)
        assert done.returncode == 0, done.stderr
        return [one for one in yaml.safe_load_all(done.stdout) if one]

    return run
