"""Builds the cluster's programs and helm from their published Go modules, and keeps them by what they were built of.

Used by `build` and `up`. No prebuilt binary is fetched from anywhere: the Go module proxy alone is enough. The folder
is named after a hash of go.mod, go.sum and cmd/, so another version is another folder, and an unchanged one is found
in an instant, by CI too when it keeps `.cache`. A build from nothing takes some ten minutes on two cores.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import place
from place import ClusterError, run

PARTS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-proxy", "kube-scheduler", "kubectl", "kubelet")
"""Names of the one binary `kubernetes`."""
STAGES = ("helm.sh/helm/v3/cmd/helm", "./cmd/...", "github.com/traefik/traefik/v3/cmd/traefik")
"""helm first: it is all that the chart's tests need, and ready after two minutes."""
ROUTES = "gateway-api"
"""Beside bin/: the kinds of the Gateway API, which Traefik's module brings in the version that it speaks."""
PACKAGE = re.compile(r"[\w.~+-]+(/[\w.~+-]+)*")
"""A line of `go build -v`."""
PROGRESS_SECONDS = 15.0
"""Seconds between two lines of a build that goes on."""
GO = (1, 24)
"""The first Go that fetches the newer one which go.mod names by itself, through the module proxy."""


def folder() -> Path:
    digest = hashlib.sha256()
    for path in [place.SOURCE / "go.mod", place.SOURCE / "go.sum", *sorted((place.SOURCE / "cmd").rglob("*.go"))]:
        digest.update(path.relative_to(place.SOURCE).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return place.CACHE / digest.hexdigest()[:16]


def build() -> None:
    """Leaves `.cache/cluster/bin` pointing at binaries of this checkout."""
    built = folder()
    if not (built / "complete").exists() or not (built / ROUTES).exists():
        _compile(built / "bin")
        _copy_routes(built / ROUTES)
        for part in PARTS:
            (built / "bin" / part).unlink(missing_ok=True)
            (built / "bin" / part).symlink_to("kubernetes")
        (built / "complete").touch()
    link = place.CACHE / f"bin.{os.getpid()}"
    link.symlink_to(f"{built.name}/bin")
    link.replace(place.BIN)


def _compile(target: Path) -> None:
    if shutil.which("go") is None:
        raise ClusterError(
            "the cluster is built with Go, which was not found",
            f"install Go {GO[0]}.{GO[1]} or newer, or use another cluster: KUBECONFIG=… (docs/cluster.md)",
        )
    target.mkdir(parents=True, exist_ok=True)
    flags = _linker_flags()
    for stage in STAGES:
        began = time.monotonic()
        print(f"cluster: go build {stage}", file=sys.stderr, flush=True)
        argv = ["go", "build", "-v", "-trimpath", "-buildvcs=false", "-ldflags", flags, "-o", f"{target}/", stage]
        if _run_with_progress(argv, began):
            raise ClusterError(f"go build {stage} failed", "is the module proxy reachable? see `go env GOPROXY`")
        print(f"cluster: {stage} built in {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)


def _run_with_progress(argv: list[str], began: float) -> int:
    """Run a build and print its progress every quarter of a minute; returns the exit code.

    `go build -v` names each package that it compiles, thousands of them. What else it says is passed on. No timeout:
    how long the first build takes depends on the machine alone, and it goes on where it was stopped.
    """
    compiled, printed_at = 0, began
    environment = {**os.environ, "CGO_ENABLED": "0"}
    with subprocess.Popen(argv, cwd=place.SOURCE, env=environment, stderr=subprocess.PIPE, text=True) as build:
        assert build.stderr is not None
        for line in build.stderr:
            if PACKAGE.fullmatch(line.strip()):
                compiled += 1
            elif not line.startswith("go: downloading"):
                print(line, end="", file=sys.stderr, flush=True)
            if time.monotonic() - printed_at >= PROGRESS_SECONDS:
                printed_at = time.monotonic()
                words = f"{compiled} packages compiled" if compiled else "fetching modules"
                print(f"cluster:   {words}, {printed_at - began:.0f} s", file=sys.stderr, flush=True)
    return build.returncode


def _copy_routes(target: Path) -> None:
    module = run(["go", "-C", place.SOURCE, "list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/gateway-api"]).strip()
    target.mkdir(exist_ok=True)
    for kind in Path(module, "config", "crd", "standard").glob("*.yaml"):
        (target / kind.name).write_bytes(kind.read_bytes())


def _linker_flags() -> str:
    """The programs ask each other for their versions, and helm's idea of a cluster's version is linked in too."""
    ask: list[str | Path] = [
        "go",
        "-C",
        place.SOURCE,
        "list",
        "-m",
        "-f",
        "{{.Version}}",
        "k8s.io/kubernetes",
        "helm.sh/helm/v3",
    ]
    kubernetes, helm = run(ask, timeout=600).split()
    major, minor, _ = kubernetes.removeprefix("v").split(".", 2)
    values = {
        "k8s.io/component-base/version.gitVersion": kubernetes,
        "k8s.io/component-base/version.gitMajor": major,
        "k8s.io/component-base/version.gitMinor": minor,
        "k8s.io/component-base/version.gitTreeState": "clean",
        "helm.sh/helm/v3/internal/version.version": helm,
    }
    for package in ("lint/rules", "chartutil"):
        values[f"helm.sh/helm/v3/pkg/{package}.k8sVersionMajor"] = major
        values[f"helm.sh/helm/v3/pkg/{package}.k8sVersionMinor"] = minor
    return " ".join(["-s", "-w", *(f"-X {name}={value}" for name, value in values.items())])
