"""A running Kubernetes for the tests: kubectl, helm, waits with deadlines, and namespaces that report failures.

Used by the tests of this folder and by the end-to-end tests. Which cluster it is comes from KUBECONFIG, or it is the
one that `make cluster` started. Nothing here knows Fairlead, and nothing waits without a deadline.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
BUILT = ROOT / ".cache" / "cluster" / "bin"
RUN = Path("/var/lib/fairlead-cluster")
"""Where the cluster of `make cluster` has its kubeconfig and its logs."""
INGRESS = os.environ.get("FAIRLEAD_INGRESS", "172.30.0.1:8000")
"""Address and port where the Ingress controller takes HTTP."""
POLL = 0.3
LOG_LINES = 60


class KubeError(Exception):
    """kubectl or helm failed; the message is its output."""


class Kube:
    """One cluster."""

    def __init__(self, kubeconfig: Path) -> None:
        self.kubeconfig = kubeconfig
        self._path = f"{BUILT}{os.pathsep}{os.environ['PATH']}"
        self._environment = {**os.environ, "PATH": self._path, "KUBECONFIG": str(kubeconfig)}

    def kubectl(self, *arguments: str, stdin: str | None = None, timeout: float = 60.0) -> str:
        return self._run(["kubectl", *arguments], stdin, timeout)

    def helm(self, *arguments: str, timeout: float = 180.0) -> str:
        return self._run(["helm", *arguments], None, timeout)

    def command(self, program: str, *arguments: str) -> tuple[list[str], dict[str, str]]:
        """For a program that goes on: its command line and environment."""
        found = shutil.which(program, path=self._path)
        if found is None:
            raise KubeError(f"{program} was not found: `make cluster` builds it")
        return [found, *arguments], self._environment

    def get(self, *arguments: str) -> Any:
        return json.loads(self.kubectl("get", *arguments, "--output=json"))

    def until(self, what: str, condition: Callable[[], object], timeout: float) -> float:
        """Waits, and gives the seconds it took. Want of an object or of an answer counts as not yet."""
        began = time.monotonic()
        last: object = None
        while True:
            try:
                last = condition()
                if last:
                    return time.monotonic() - began
            except (KubeError, KeyError, IndexError, OSError, ValueError, HTTPException) as e:
                last = e
            if time.monotonic() - began > timeout:
                raise AssertionError(f"{what}: not within {timeout:.0f} s, last seen: {last!r}")
            time.sleep(POLL)

    @contextmanager
    def namespace(self, name: str) -> Iterator[str]:
        """A namespace that admits restricted pods only. A test that fails in it prints the logs of the pods."""
        label = "pod-security.kubernetes.io/enforce=restricted"
        self.kubectl("delete", "namespace", name, "--ignore-not-found", "--timeout=240s", timeout=250)
        self.kubectl("create", "namespace", name)
        self.kubectl("label", "namespace", name, label)
        try:
            yield name
        except BaseException:
            print(self.account(name), self.digest(name), sep="\n", file=sys.stderr)
            raise
        finally:
            self.kubectl("delete", "namespace", name, "--wait=false")

    def account(self, namespace: str) -> str:
        """All that one wants to read after a failure."""
        asked = [
            ["get", "all,ingress,pdb,lease", "--output=wide"],
            ["get", "linkgateways.fairlead.dev", "--output=yaml"],
            ["get", "events", "--sort-by=.lastTimestamp"],
            ["describe", "pods"],
        ]
        for pod in self._output_of(["get", "pods", "--output=name"], namespace).splitlines():
            if pod.startswith("pod/"):
                asked.append(["logs", pod, "--all-containers", f"--tail={LOG_LINES}"])
                asked.append(["logs", pod, "--all-containers", "--previous", f"--tail={LOG_LINES}"])
        return "\n".join(self._output_of(arguments, namespace) for arguments in asked)

    def digest(self, namespace: str, lines: int = 6) -> str:
        """The same in as few lines as can be: where only the last words of a run are kept."""
        asked = [["get", "linkgateways.fairlead.dev", "--output=wide"], ["get", "pods", "--output=wide"]]
        outputs = [self._output_of(arguments, namespace) for arguments in asked]
        pods = [
            one for one in self._output_of(["get", "pods", "--output=name"], namespace).split() if one[:4] == "pod/"
        ]
        outputs += [self._output_of(["logs", pod, "--all-containers", f"--tail={lines}"], namespace) for pod in pods]
        return "\n".join(line[:200] for one in outputs for line in one.splitlines())

    def _output_of(self, arguments: Sequence[str], namespace: str) -> str:
        try:
            output = self.kubectl("--namespace", namespace, *arguments)
        except KubeError as e:
            output = str(e)
        return f"--- kubectl {' '.join(arguments)}\n{output}"

    def _run(self, argv: list[str], stdin: str | None, timeout: float) -> str:
        command, environment = self.command(*argv)
        try:
            done = subprocess.run(
                command, input=stdin, stdin=subprocess.DEVNULL if stdin is None else None,
                capture_output=True, text=True, env=environment, timeout=timeout, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired as e:
            raise KubeError(f"{' '.join(argv)} took longer than {timeout:.0f} s") from e
        if done.returncode:
            raise KubeError(f"{' '.join(argv)}: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout


def find() -> Kube | str:
    """The cluster, or why there is none."""
    named = Path(os.environ.get("KUBECONFIG") or RUN / "admin.kubeconfig")
    if not named.is_file():
        return "no cluster: `make cluster` starts one, KUBECONFIG names another (docs/cluster.md)"
    kube = Kube(named)
    try:
        kube.kubectl("get", "--raw", "/readyz", timeout=60)
    except KubeError as e:
        return f"the cluster of {named} does not answer: {e}"
    return kube


def behind(hosts: Path, names: Sequence[str], *argv: str) -> list[str]:
    """The command line of a program that finds the names at the Ingress, through an /etc/hosts of its own.

    A mount namespace, so that the machine's own file stays as it is. The program is told to stop when its parent dies:
    a test run that is killed leaves no agents behind.
    """
    address = INGRESS.partition(":")[0]
    hosts.write_text("127.0.0.1 localhost\n" + "".join(f"{address} {name}\n" for name in names))
    script = 'mount --bind "$0" /etc/hosts && exec "$@"'
    return [
        "setpriv",
        "--pdeathsig",
        "TERM",
        "unshare",
        "--mount",
        "--propagation",
        "private",
        "--",
        "sh",
        "-c",
        script,
        str(hosts),
        *argv,
    ]
