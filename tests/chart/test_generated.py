"""Generated files agree with their sources, and the versions agree with each other."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import yaml

from fairlead.version import __version__

ROOT = Path(__file__).resolve().parents[2]


def script(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-I", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=50, check=False
    )


def test_crds_schema_and_readme_are_up_to_date() -> None:
    done = script("charts/generate.py", "--check")
    assert done.returncode == 0, done.stderr


def test_manifests_are_what_the_chart_renders(helm_program: str) -> None:
    done = script("charts/manifests.py", "--helm", helm_program, "--check")
    assert done.returncode == 0, done.stderr


def test_manifests_hold_no_secret_and_no_trace_of_helm() -> None:
    for path in (ROOT / "k8s").glob("*.yaml"):
        text = path.read_text()
        assert "kind: Secret" not in text, path.name
        assert "helm.sh/" not in text, path.name
    kinds = [one["kind"] for one in yaml.safe_load_all((ROOT / "k8s" / "fairlead.yaml").read_text())]
    assert kinds.count("LinkGateway") == kinds.count("StatefulSet") == kinds.count("Deployment") == 1
    assert "Job" not in kinds


def test_manifests_need_only_the_secrets_that_the_page_creates() -> None:
    page = (ROOT / "k8s" / "README.md").read_text()
    asked = set()

    def look(node: object) -> None:
        if isinstance(node, dict):
            if ref := node.get("secretKeyRef") or node.get("secretRef"):
                asked.add((ref["name"], ref.get("key")))
            if isinstance(secret := node.get("secret"), dict):
                asked.update((secret["secretName"], item["key"]) for item in secret["items"])
            for inner in node.values():
                look(inner)
        elif isinstance(node, list):
            for inner in node:
                look(inner)

    for one in yaml.safe_load_all((ROOT / "k8s" / "fairlead.yaml").read_text()):
        look(one)
    assert asked == {("fairlead-valkey", "valkey.conf"), ("fairlead-valkey", "url"), ("fairlead-tokens", None)}
    for name, key in asked:
        assert f"create secret generic {name} " in page
        assert key is None or f"--from-literal={key}=" in page


def test_the_chart_has_the_version_of_the_code(chart: Path) -> None:
    meta = yaml.safe_load((chart / "Chart.yaml").read_text())
    assert (meta["version"], meta["appVersion"]) == (__version__, __version__)
