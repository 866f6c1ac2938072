"""The SBOM of an image, made of this environment with the script that the Dockerfile runs."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "requirements" / "sbom.py"


def test_every_distribution_is_listed_once_with_version_and_dependencies() -> None:
    made = subprocess.run(
        [sys.executable, "-I", str(SCRIPT), "gateway"], capture_output=True, text=True, timeout=50, check=True
    )
    bom = json.loads(made.stdout)
    assert (bom["bomFormat"], bom["specVersion"]) == ("CycloneDX", "1.5")
    assert bom["metadata"]["component"]["name"] == "fairlead-gateway"
    python = {c["name"].lower(): c for c in bom["components"] if c["purl"].startswith("pkg:pypi/")}
    for name in ("starlette", "uvicorn", "redis", "msgspec"):
        assert python[name]["version"] == version(name)
        assert python[name]["purl"] == f"pkg:pypi/{name}@{version(name)}"
        assert python[name]["licenses"]
    references = [c["bom-ref"] for c in bom["components"]]
    assert len(references) == len(set(references))
    needs = {d["ref"]: d["dependsOn"] for d in bom["dependencies"]}
    assert python["msgspec"]["purl"] in needs[bom["metadata"]["component"]["bom-ref"]]
    assert {ref for refs in needs.values() for ref in refs} <= {*references, bom["metadata"]["component"]["bom-ref"]}
