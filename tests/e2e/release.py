"""One release of the chart in a namespace of its own, and what the story asks about it, as an administrator would.

Used by the story and by the trial. Names follow from the release's: the LinkGateway, its Deployment and its Services.
"""

from __future__ import annotations

import base64
import json
import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from support.kube import ROOT, Kube

RELEASE = "fairlead"
HOST = "agents.fairlead.test"
CHART = ROOT / "charts" / "fairlead"
WINDOW = 30
"""Seconds, the least that may be asked for: fewer pods only after so long without a need for this many."""
CAPACITY, RATE = 250, 25
"""Small, so that hundreds of agents need several pods, and a drain takes long enough to see its pace."""
VALUES: dict[str, Any] = {
    "gateways": {
        "default": {
            "requireIdentity": False,  # hundreds of agents share a token; those of the chapter on identity enrol
            "capacity": CAPACITY,
            "replicas": {"min": 2, "max": 8},
            "acceptRate": 100,
            "moves": {"maxPerSecond": RATE},
            "scaling": {"windowSeconds": WINDOW, "stepDownSeconds": 10},
            "ingress": {"className": "traefik", "hosts": [HOST], "preset": "Traefik"},
        }
    }
}


class Release:
    def __init__(self, kube: Kube, namespace: str, folder: Path, values: dict[str, Any]) -> None:
        self.kube = kube
        self.namespace = namespace
        self._values = folder / "values.json"
        self._values.write_text(json.dumps(values))
        self._known: dict[str, str] = {}
        """What stays the same for the life of the release."""

    def helm(self, *arguments: str) -> str:
        return self.kube.helm(*arguments, "--namespace", self.namespace, timeout=330)

    def install(self, chart: Path = CHART, *settings: str) -> None:
        self.helm("install", RELEASE, str(chart), *self._valued(settings), "--wait", "--timeout", "300s")

    def rebalance(self, *, enabled: bool) -> None:
        patch = {"spec": {"rebalance": {"enabled": enabled}}}
        self.kubectl("patch", "linkgateway", RELEASE, "--type=merge", f"--patch={json.dumps(patch)}")

    def upgrade(self, *settings: str) -> None:
        self.helm("upgrade", RELEASE, str(CHART), *self._valued(settings), "--wait", "--timeout", "300s")

    def rollback(self) -> None:
        """To the release before the last upgrade."""
        self.helm("rollback", RELEASE, "--wait", "--timeout", "300s")

    def _valued(self, settings: Sequence[str]) -> list[str]:
        return ["--values", str(self._values), *(word for setting in settings for word in ("--set", setting))]

    def kubectl(self, *arguments: str, stdin: str | None = None, timeout: float = 60.0) -> str:
        return self.kube.kubectl("--namespace", self.namespace, *arguments, stdin=stdin, timeout=timeout)

    def get(self, *arguments: str) -> Any:
        return self.kube.get("--namespace", self.namespace, *arguments)

    def until(self, what: str, condition: Callable[[], object], timeout: float) -> float:
        return self.kube.until(what, condition, timeout)

    def gateway(self) -> dict[str, Any]:
        found: dict[str, Any] = self.get("linkgateway", RELEASE)
        return found

    def status(self) -> dict[str, Any]:
        status: dict[str, Any] = self.gateway()["status"]
        return status

    def deployment(self) -> dict[str, Any]:
        found: dict[str, Any] = self.get("deployment", RELEASE)
        return found

    def pods(self, component: str) -> list[dict[str, Any]]:
        listed: list[dict[str, Any]] = self.get("pods", "-l", f"app.kubernetes.io/component={component}")["items"]
        return listed

    def token(self, kind: str) -> str:
        def ask() -> str:
            return base64.b64decode(self.get("secret", f"{RELEASE}-tokens")["data"][f"{kind}-token"]).decode()

        return self._once(kind, ask)

    def platform(self) -> str:
        """Address of the API's Service, which the machine reaches as pods do."""

        def ask() -> str:
            return f"http://{self.get('service', f'{RELEASE}-platform')['spec']['clusterIP']}:8081"

        return self._once("platform's address", ask)

    def _once(self, what: str, ask: Callable[[], str]) -> str:
        if what not in self._known:
            self._known[what] = ask()
        return self._known[what]

    def processes(self, pod: dict[str, Any]) -> list[int]:
        """The processes of a pod's containers, as this machine numbers them."""
        uid = pod["metadata"]["uid"]
        found = []
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit():
                try:
                    groups = (folder / "cgroup").read_text()
                    program = (folder / "cmdline").read_bytes().split(b"\0")[0]
                except (FileNotFoundError, ProcessLookupError):
                    continue
                if uid in groups.replace("_", "-") and not program.endswith(b"/pause"):
                    found.append(int(folder.name))
        return found

    def signal(self, pod: dict[str, Any], number: signal.Signals) -> None:
        processes = self.processes(pod)
        assert processes, f"no process of {pod['metadata']['name']} is to be seen on this machine"
        for process in processes:
            os.kill(process, number)

    def leader(self) -> str:
        """The operator's pod that holds the lease."""
        holder = self.lease()["holderIdentity"]
        named = [name(pod) for pod in self.pods("operator") if name(pod) in holder]
        return named[0]

    def lease(self) -> dict[str, Any]:
        """Who leads, and since when."""
        found = [
            lease["spec"] for lease in self.get("leases")["items"] if lease["metadata"]["name"].startswith(RELEASE)
        ]
        (lease,) = found
        return dict(lease)

    def links(self) -> int:
        return int(self.status()["links"])

    def steady(self, seconds: float, timeout: float, *, at: int) -> None:
        """Wait until so many pods are wanted and ready, and this has not changed for some seconds."""
        since, before = time.monotonic(), -1

        def same() -> bool:
            nonlocal since, before
            wanted = int(self.deployment()["spec"]["replicas"])
            ready = len([pod for pod in self.pods("gateway") if is_ready(pod)])
            if wanted != before or not wanted == ready == at:
                since, before = time.monotonic(), wanted
            return time.monotonic() - since >= seconds

        self.until(f"{at} ready pods for {seconds:.0f} s", same, timeout)


def is_ready(pod: dict[str, Any]) -> bool:
    conditions = {c["type"]: c["status"] for c in pod["status"].get("conditions", [])}
    return conditions.get("Ready") == "True" and "deletionTimestamp" not in pod["metadata"]


def name(pod: dict[str, Any]) -> str:
    return str(pod["metadata"]["name"])
