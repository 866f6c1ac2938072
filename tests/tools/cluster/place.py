"""Where the cluster lives: its folders, its addresses, and the error that all of this folder raises.

Read by every module here. What is built stands below `.cache/cluster` of the checkout. What runs stands below /var/lib
and /run: the addresses are the machine's, so there is one cluster on it, and every checkout finds the same. They are
private ones inside the cluster's own network namespace; the machine reaches them over one veth pair.
"""

from __future__ import annotations

import shutil
import subprocess
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).resolve().parent
ROOT = SOURCE.parents[2]
CACHE = ROOT / ".cache" / "cluster"
BIN = CACHE / "bin"
"""A link to the folder of the binaries that fit go.sum and cmd/."""
RUN = Path("/var/lib/fairlead-cluster")
LOG = RUN / "log"
PKI = RUN / "pki"
IMAGES = CACHE / "images"
"""Archives that every start loads into containerd."""
KUBECONFIG = RUN / "admin.kubeconfig"
SOCKETS = Path("/run/fairlead-cluster")

NETNS = "fairlead-cluster"
NODE = "node-1"
NODE_IP = "172.30.0.1"
NODE_NET = "172.30.0.0/24"
SERVICE_NET = "10.96.0.0/16"
API_SERVICE_IP = "10.96.0.1"
DNS_SERVICE_IP = "10.96.0.10"
POD_NET = "10.244.0.0/24"
API = f"https://{NODE_IP}:6443"
INGRESS = f"http://{NODE_IP}:8000"

VERSIONS: dict[str, Any] = tomllib.loads((SOURCE / "versions.toml").read_text())


class ClusterError(Exception):
    """What is wrong, and in `remedy` the next step of whoever reads it."""

    def __init__(self, wrong: str, remedy: str) -> None:
        super().__init__(wrong)
        self.remedy = remedy


def run(argv: Sequence[str | Path], *, timeout: float = 60.0, quiet: bool = False, stdin: str | None = None) -> str:
    """Runs a program to its end and gives what it wrote to stdout. A failure carries what it said."""
    try:
        done = subprocess.run(
            [str(a) for a in argv],
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
    except FileNotFoundError as e:
        raise ClusterError(f"{argv[0]} was not found", "make cluster says which packages are missing") from e
    except subprocess.TimeoutExpired as e:
        raise ClusterError(f"{argv[0]} took longer than {timeout:.0f} s", f"try it by hand: {shown(argv)}") from e
    if done.returncode and not quiet:
        output = (done.stderr.strip() or done.stdout.strip())[-2000:]
        raise ClusterError(f"{shown(argv)} failed with {done.returncode}: {output}", f"the logs stand in {LOG}")
    return done.stdout


def shown(argv: Sequence[str | Path]) -> str:
    return " ".join(str(a) for a in argv)


def missing(programs: dict[str, str], extra: Sequence[str] = ()) -> list[str]:
    """The packages of the programs that are not there."""
    return sorted({package for program, package in programs.items() if shutil.which(program) is None} | set(extra))


def require(programs: dict[str, str], extra: Sequence[str] = (), later: dict[str, str] | None = None) -> None:
    """The programs are there, or an error names the one command that installs what is missing: what a later step needs
    (`later`) too, so that nobody is sent to install twice."""
    packages = missing(programs, extra)
    if packages:
        packages = missing({**programs, **(later or {})}, extra)
        raise ClusterError(
            f"programs of these Debian packages are missing: {', '.join(packages)}",
            f"apt-get install --no-install-recommends {' '.join(packages)}",
        )
