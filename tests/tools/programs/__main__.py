"""Builds programs that tests ask, each from its published Go module, into `.cache/NAME/bin`.

    python3 -I tests/tools/programs prometheus      make prometheus; tests/observability asks it every query and alert
    python3 -I tests/tools/programs helm4           make helm4; tests/chart and tests/cluster install the chart with it
    python3 -I tests/tools/programs dex             make dex; tests/cli logs in at it, an OpenID provider

No prebuilt binary is fetched: the Go module proxy alone is enough. The folder NAME here has go.mod and go.sum; what is
built stands under their hash, so that CI finds an unchanged one in an instant when it keeps `.cache`. They stand apart
from the cluster's programs, which need other versions of the same modules.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

SOURCE = Path(__file__).resolve().parent
CACHE = SOURCE.parents[2] / ".cache"
GO = "1.24"
"""The first Go that fetches the newer one which go.mod names by itself, through the module proxy."""


class Program(NamedTuple):
    packages: tuple[str, ...]
    tags: str = ""


PROGRAMS = {
    "prometheus": Program(
        ("github.com/prometheus/prometheus/cmd/prometheus", "github.com/prometheus/prometheus/cmd/promtool"),
        tags="remove_all_sd",  # discovery of targets in a file and in the configuration stays
    ),
    "helm4": Program(("helm.sh/helm/v4/cmd/helm",)),
    "dex": Program(("github.com/dexidp/dex/cmd/dex",)),
}


def folder(name: str) -> Path:
    digest = hashlib.sha256(PROGRAMS[name].tags.encode())
    for lock in ("go.mod", "go.sum"):
        digest.update(b"\0" + (SOURCE / name / lock).read_bytes())
    return CACHE / name / digest.hexdigest()[:16]


def build(name: str) -> int:
    built = folder(name)
    if not (built / "complete").exists():
        if shutil.which("go") is None:
            print(f"error: Go was not found, which builds {name}: install Go {GO} or newer", file=sys.stderr)
            return 1
        began = time.monotonic()
        print(f"{name}: go build", file=sys.stderr, flush=True)
        (built / "bin").mkdir(parents=True, exist_ok=True)
        # No timeout: how long the first build takes depends on the machine alone, and it goes on where it was stopped.
        done = subprocess.run(
            ["go", "build", "-trimpath", "-buildvcs=false", "-tags", PROGRAMS[name].tags, "-ldflags", "-s -w",
             "-o", f"{built / 'bin'}/", *PROGRAMS[name].packages],
            cwd=SOURCE / name, env={**os.environ, "CGO_ENABLED": "0"}, check=False,
        )  # fmt: skip
        if done.returncode:
            print("error: go build failed; is the module proxy reachable? see `go env GOPROXY`", file=sys.stderr)
            return 1
        (built / "complete").touch()
        print(f"{name}: built in {time.monotonic() - began:.0f} s", file=sys.stderr)
    link = CACHE / name / f"bin.{os.getpid()}"
    link.symlink_to(f"{built.name}/bin")
    link.replace(CACHE / name / "bin")
    print(CACHE / name / "bin")
    return 0


def main(names: list[str]) -> int:
    unknown = [name for name in names if name not in PROGRAMS]
    if unknown or not names:
        print(f"usage: python3 -I tests/tools/programs NAME …; names are {', '.join(PROGRAMS)}", file=sys.stderr)
        return 2
    return max(map(build, names))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
