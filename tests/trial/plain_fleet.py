"""A plain Deployment of stock uvicorn with an HPA on the number of its sockets, and what happens to it in each chapter.

The HPA is Kubernetes' own: the controller manager reads the metric from an APIService that this process serves.
"""

from __future__ import annotations

import json
import time
import urllib.request
from pathlib import Path
from typing import Any

from fairlead.version import __version__

from e2e.release import is_ready, name
from support.kube import Kube, KubeError
from trial.external_metric import API_SERVICE, GROUP, ExternalMetric
from trial.fleet import GROWTH, VALKEY, Chapter, evict, gone, wait_until_settled

HERE = Path(__file__).parent
HOST = "plain.fairlead.test"
NAMESPACE = "fairlead-trial-plain"
METRIC = "sockets"
FEW_SHARE, MANY_SHARE = 1.4, 0.3
"""Target of the HPA as a share of all agents: the numbers of links that the LinkGateway's targets mean."""
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class PlainFleet:
    name = "plain Deployment with HPA"
    host = HOST
    budget = 0

    def __init__(self, kube: Kube, folder: Path, agents: int, address: str) -> None:
        """`address` of this machine, at which the API server reaches it."""
        self._kube = kube
        self._agents = agents
        self._metric = ExternalMetric(address, METRIC, self._count, folder)
        self._counted = 0

    def install(self) -> None:
        self._kubectl("create", "configmap", "program", f"--from-file={HERE / 'plain_server.py'}")
        self._metric.start()
        objects = {"apiVersion": "v1", "kind": "List", "items": self._metric.objects(NAMESPACE)}
        self._kube.kubectl("apply", "-f", "-", stdin=json.dumps(objects))
        manifest = (HERE / "plain.yaml").read_text().replace("VERSION", __version__).replace("HOST", HOST)
        self._kubectl("apply", "-f", "-", stdin=VALKEY.read_text().replace("VERSION", __version__))
        self._kubectl("apply", "-f", "-", stdin=manifest.replace("TARGET", self._target(FEW_SHARE)))
        for deployment in ("valkey", "plain"):
            self._kubectl("rollout", "status", f"deployment/{deployment}", "--timeout=180s", timeout=200)
        ask = ("get", "--raw", f"/apis/{GROUP}/namespaces/{NAMESPACE}/{METRIC}")
        self._kube.until("the metric at the API server", lambda: "items" in self._kube.kubectl(*ask), 60)
        self._kube.until("an HPA that reads it", self._hpa_reads, 90)
        service = self._get("service", "plain")
        self.url = f"http://{service['spec']['clusterIP']}:8080"

    def agent_environment(self) -> dict[str, str]:
        return {}

    def caller_environment(self) -> dict[str, str]:
        return {}

    def links(self) -> int:
        return self._count()

    def pods(self) -> list[dict[str, Any]]:
        listed: list[dict[str, Any]] = self._get("pods", "--selector=app=plain")["items"]
        return listed

    def quiet(self) -> bool:
        status = self._get("deployment", "plain")["status"]
        return bool(status.get("updatedReplicas", 0) == status.get("replicas", 0))

    def restore(self) -> str:
        self._kubectl("set", "env", "deployment/plain", "AGENTS_HOST-")
        return self._wait_until_settled(4)

    def end(self) -> None:
        self._kube.kubectl("delete", "apiservice", API_SERVICE, "--ignore-not-found")
        self._metric.stop()

    def chapters(self) -> list[Chapter]:
        return [
            Chapter("nothing happens", self._nothing),
            Chapter(GROWTH, lambda: self._aim(MANY_SHARE, 4)),
            Chapter("rollout", self._roll),
            Chapter("node drain: two of four pods evicted", self._evict),
            Chapter("two pods deleted at once", self._delete),
            Chapter("rollout that fails", self._roll_badly),
            Chapter("scale 4→1", lambda: self._aim(FEW_SHARE, 1)),
        ]

    def _nothing(self) -> str:
        time.sleep(20)
        return ""

    def _roll(self) -> str:
        old = self._names()
        self._kubectl("rollout", "restart", "deployment/plain")
        gone(self, old)
        return self._wait_until_settled(4)

    def _roll_badly(self) -> str:
        """A template with a mistake: new pods refuse agents. Nothing finds it out; the rollout is undone a minute after
        its end, as by somebody who has been called."""
        old = self._names()
        self._kubectl("set", "env", "deployment/plain", "AGENTS_HOST=agents.example.com")
        gone(self, old)
        bad = self._names()
        time.sleep(60)
        self._kubectl("rollout", "undo", "deployment/plain")
        gone(self, bad)
        return self._wait_until_settled(4)

    def _evict(self) -> str:
        pods = self._fullest(2)
        evict(self._kube, NAMESPACE, pods)
        gone(self, pods)
        return self._wait_until_settled(4)

    def _delete(self) -> str:
        pods = self._fullest(2)
        self._kubectl("delete", "pod", *pods, "--wait=false")
        gone(self, pods)
        return self._wait_until_settled(4)

    def _aim(self, share: float, pods: int) -> str:
        path = "/spec/metrics/0/external/target/averageValue"
        patch = json.dumps([{"op": "replace", "path": path, "value": self._target(share)}])
        self._kubectl("patch", "hpa", "plain", "--type=json", f"--patch={patch}")
        return self._wait_until_settled(pods)

    def _target(self, share: float) -> str:
        return str(int(share * self._agents))

    def _hpa_reads(self) -> bool:
        conditions = self._get("hpa", "plain")["status"].get("conditions", [])
        return any(one["type"] == "ScalingActive" and one["status"] == "True" for one in conditions) or bool(
            self._get("hpa", "plain")["status"].get("currentMetrics")
        )

    def _counts(self) -> dict[str, int]:
        """Sockets of each ready pod."""
        counts = {}
        for pod in filter(is_ready, self.pods()):
            with OPENER.open(f"http://{pod['status']['podIP']}:8080/count", timeout=5) as answer:
                counts[name(pod)] = int(json.load(answer)["sockets"])
        return counts

    def _fullest(self, count: int) -> list[str]:
        """The first pods that a list happens to have may be empty: that would show nothing."""
        counts = self._counts()
        return sorted(counts, key=lambda pod: -counts[pod])[:count]

    def _count(self) -> int:
        """Sockets of all ready pods; the last known number while one does not answer."""
        try:
            self._counted = sum(self._counts().values())
        except (KubeError, KeyError, OSError, ValueError):
            pass
        return self._counted

    def _wait_until_settled(self, pods: int) -> str:
        return wait_until_settled(self, self._agents, pods)

    def _names(self) -> list[str]:
        return [name(pod) for pod in self.pods()]

    def _kubectl(self, *arguments: str, stdin: str | None = None, timeout: float = 60.0) -> str:
        return self._kube.kubectl("--namespace", NAMESPACE, *arguments, stdin=stdin, timeout=timeout)

    def _get(self, *arguments: str) -> Any:
        return self._kube.get("--namespace", NAMESPACE, *arguments)
