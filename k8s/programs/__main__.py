"""Builds prometheus and promtool from their published Go module into `.cache/prometheus/bin`.

    python3 -I k8s/prometheus        make prometheus; tests/observability asks them every query and every alert

No prebuilt binary is fetched: the Go module proxy alone is enough. The folder is named after a hash of go.mod and
go.sum, so that CI finds an unchanged one in an instant when it keeps `.cache`. Without the web page and without all
discovery of clouds a build from nothing takes some minutes on two cores; nothing of the cluster needs it.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

SOURCE = Path(__file__).resolve().parent
CACHE = SOURCE.parents[1] / ".cache" / "prometheus"
PROGRAMS = ("prometheus", "promtool")
TAGS = "remove_all_sd"
"""Discovery of targets in a file and in the configuration stays."""
GO = "1.24"
"""The first Go that fetches the newer one which go.mod names by itself, through the module proxy."""


def folder() -> Path:
    digest = hashlib.sha256(TAGS.encode())
    for name in ("go.mod", "go.sum"):
        digest.update(b"\0" + (SOURCE / name).read_bytes())
    return CACHE / digest.hexdigest()[:16]


def build() -> int:
    built = folder()
    if not (built / "complete").exists():
        if shutil.which("go") is None:
            print(f"error: Go was not found, which builds Prometheus: install Go {GO} or newer", file=sys.stderr)
            return 1
        began = time.monotonic()
        print("prometheus: go build", file=sys.stderr, flush=True)
        (built / "bin").mkdir(parents=True, exist_ok=True)
        packages = [f"github.com/prometheus/prometheus/cmd/{name}" for name in PROGRAMS]
        # No timeout: how long the first build takes depends on the machine alone, and it goes on where it was stopped.
        done = subprocess.run(
            ["go", "build", "-trimpath", "-buildvcs=false", "-tags", TAGS, "-ldflags", "-s -w",
             "-o", f"{built / 'bin'}/", *packages],
            cwd=SOURCE, env={**os.environ, "CGO_ENABLED": "0"}, check=False,
        )  # fmt: skip
        if done.returncode:
            print("error: go build failed; is the module proxy reachable? see `go env GOPROXY`", file=sys.stderr)
            return 1
        (built / "complete").touch()
        print(f"prometheus: built in {time.monotonic() - began:.0f} s", file=sys.stderr)
    link = CACHE / f"bin.{os.getpid()}"
    link.symlink_to(f"{built.name}/bin")
    link.replace(CACHE / "bin")
    print(CACHE / "bin")
    return 0


if __name__ == "__main__":
    sys.exit(build())
