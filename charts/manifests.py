"""Renders k8s/*.yaml from the chart, for those who do not use Helm; with --check it only reports which are stale.

    python charts/manifests.py --helm helm [--check]        make manifests; a test of tests/chart runs the check

The files contain no Secret, because everyone would share its token. They also lack Helm's hooks and the labels that
mark objects as Helm's. The objects are sorted here, so that every version of Helm produces the same files.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
CHART, TARGET = ROOT / "charts" / "fairlead", ROOT / "k8s"
KUBERNETES = "1.30.0"
"""The oldest Kubernetes version that the chart supports: manifests for that version work on all later ones."""
ORDER = ("ServiceAccount", "Role", "RoleBinding", "Service", "StatefulSet", "Deployment", "PodDisruptionBudget")
HEAD = "# Rendered from charts/fairlead by `make manifests`. See README.md in this folder.\n"


def rendered(helm: str) -> list[dict[str, Any]]:
    argv = [
        helm, "template", "fairlead", str(CHART), "--namespace", "fairlead", "--no-hooks",
        "--kube-version", KUBERNETES, "--values", str(TARGET / "values.yaml"),
    ]  # fmt: skip
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    except FileNotFoundError as e:
        raise SystemExit(
            f"{helm} was not found: expected a Helm program (run `make helm4`, or name one with HELM=…)"
        ) from e
    if done.returncode:
        raise SystemExit(f"{' '.join(argv)}: {done.stderr.strip()}")
    objects = [one for one in yaml.safe_load_all(done.stdout) if one]
    if secrets := [one["metadata"]["name"] for one in objects if one["kind"] == "Secret"]:
        raise SystemExit(f"k8s/values.yaml makes the chart create the Secrets {', '.join(secrets)}: name existing ones")
    for one in objects:
        disown(one)
    return sorted(objects, key=lambda one: (place(one["kind"]), one["metadata"]["name"]))


def place(kind: str) -> int:
    return ORDER.index(kind) if kind in ORDER else len(ORDER)


def disown(node: Any) -> None:
    """Remove Helm's own labels from all metadata in `node`."""
    if isinstance(node, list):
        for inner in node:
            disown(inner)
    elif isinstance(node, dict):
        labels = node.get("labels")
        if isinstance(labels, dict) and labels.pop("helm.sh/chart", None):
            labels["app.kubernetes.io/managed-by"] = "kubectl"
        for inner in node.values():
            disown(inner)


def default_helm() -> str:
    """The program that `make cluster` or `make helm4` has built, or else the one on the PATH."""
    built = [ROOT / ".cache" / folder / "bin" / "helm" for folder in ("cluster", "helm4")]
    return next((str(path) for path in built if path.exists()), "helm")


def main() -> int:
    parser = argparse.ArgumentParser(description="Render k8s/*.yaml from the chart.")
    parser.add_argument("--helm", default=default_helm(), help="the program (default: %(default)s)")
    parser.add_argument("--check", action="store_true", help="only tell which files are stale")
    options = parser.parse_args()
    wanted = {
        TARGET / "fairlead.yaml": HEAD + yaml.safe_dump_all(rendered(options.helm), sort_keys=False, width=120),
        TARGET / "crds.yaml": "---\n".join(path.read_text() for path in sorted((CHART / "crds").glob("*.yaml"))),
    }
    stale = [path for path, text in wanted.items() if not path.exists() or path.read_text() != text]
    for path in stale:
        if options.check:
            print(f"stale: {path.relative_to(ROOT)}; run make manifests", file=sys.stderr)
        else:
            path.write_text(wanted[path])
            print(f"written: {path.relative_to(ROOT)}")
    return 1 if stale and options.check else 0


if __name__ == "__main__":
    sys.exit(main())
