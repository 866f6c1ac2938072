"""Helm 4 renders the same objects as Helm 3 from each values file. tests/cluster checks that an API server accepts
them."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.chart.helm import Object, Render

CI = Path(__file__).resolve().parents[2] / "charts" / "fairlead" / "ci"
# Random where the chart may choose: named here, both must render the very same.
FIXED = ["--set", "tokens.existingSecret=t", "--set", "redis.valkey.existingSecret=v"]


@pytest.mark.parametrize("values", sorted(CI.glob("*-values.yaml")), ids=lambda path: path.name)
def test_helm_3_and_helm_4_render_the_same(render: Render, helm4: str, chart: Path, values: Path) -> None:
    argv = ["template", "fairlead", str(chart), "--namespace", "fleet", "--values", str(values), *FIXED]
    done = subprocess.run([helm4, *argv], capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == 0, done.stderr

    def by_name(objects: Iterable[Object | None]) -> dict[tuple[str, str], Any]:
        return {(one["kind"], one["metadata"]["name"]): one for one in objects if one}

    assert by_name(yaml.safe_load_all(done.stdout)) == by_name(render(values, *FIXED))
