"""The release of the chart with its operator, and what happens to it in each chapter."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from e2e.evidence import links, now
from e2e.release import CHART, RELEASE, Release, name
from support.kube import Kube
from trial.fleet import GROWTH, Chapter, evict, gone, wait_until_settled

HOST = "trial.fairlead.test"
NAMESPACE = "fairlead-trial"
BUDGET = 50
"""moves.maxPerSecond: low enough that the pace of 2,000 moves shows."""
FEW_PERCENT, MANY_PERCENT = 70, 15
"""targetUtilisation, for 2,000 agents: with the first they need one pod, with the other four."""
CANARY = 60
"""Seconds for which a canary is compared with the others."""
DRAIN = {
    "apiVersion": "fairlead.dev/v1alpha1", "kind": "LinkOperation", "metadata": {"name": "drain"},
    "spec": {"gateway": {"name": RELEASE}, "type": "Drain", "reason": "the trial"},
}  # fmt: skip


def values(agents: int) -> dict[str, Any]:
    return {
        "gateways": {
            "default": {
                "requireIdentity": False,  # the agents of a trial share a token
                "capacity": 2 * agents,
                "targetUtilisation": FEW_PERCENT,
                "replicas": {"min": 1, "max": 6},
                "moves": {"maxPerSecond": BUDGET},
                "scaling": {"windowSeconds": 30, "stepDownSeconds": 10, "failureTolerance": 0},
                "rollout": {"canary": {"percent": 5, "seconds": CANARY}},
                "ingress": {"className": "traefik", "hosts": [HOST], "preset": "Traefik"},
            }
        }
    }


class FairleadFleet:
    name = "Fairlead"
    host = HOST
    budget = BUDGET

    def __init__(self, kube: Kube, folder: Path, agents: int, settings: dict[str, Any] | None = None) -> None:
        """`settings`: the values of the chart."""
        self._kube = kube
        self._agents = agents
        self._release = Release(kube, NAMESPACE, folder, settings or values(agents))

    def install(self) -> None:
        release = self._release
        self._apply_chart()
        release.kubectl("wait", "--for=condition=Ready", f"linkgateway/{RELEASE}", "--timeout=240s", timeout=250)
        stored = release.gateway()["spec"]
        assert stored.get("rollout", {}).get("canary"), f"the API server does not know rollout.canary: {stored}"
        self.url = release.platform()

    def _apply_chart(self) -> None:
        # Helm leaves CRDs of an earlier release as they are, and the API server drops fields that they do not know.
        self._kube.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(CHART / "crds"))
        self._release.install()

    def agent_environment(self) -> dict[str, str]:
        return {"FAIRLEAD_AGENT_TOKEN": self._release.token("agent")}

    def caller_environment(self) -> dict[str, str]:
        return {"FAIRLEAD_PLATFORM_TOKEN": self._release.token("platform")}

    def links(self) -> int:
        return self._release.links()

    def pods(self) -> list[dict[str, Any]]:
        return self._release.pods("gateway")

    def quiet(self) -> bool:
        """The operator has not only nothing to do, it says so: even, or given up with a reason."""
        status = self._release.status()
        conditions = {one["type"]: one for one in status["conditions"]}
        return bool(conditions["Rebalanced"]["status"] != "Unknown" and conditions["Progressing"]["status"] != "True")

    def restore(self) -> str:
        """The good template, and no operation."""
        self._release.kubectl("delete", "linkoperation", "--all", "--wait=false")
        self._patch({"pod": {"env": None}})
        return self._wait_until_settled(4)

    def end(self) -> None: ...

    def chapters(self) -> list[Chapter]:
        return [
            Chapter("nothing happens", self._nothing),
            Chapter(GROWTH, self._grow),
            Chapter("rollout", self._roll),
            Chapter("rollout in steps, and back", self._roll_in_steps),
            Chapter("node drain: two of four pods evicted", self._evict),
            Chapter("two pods deleted at once", self._delete),
            Chapter("operator killed in mid-move", self._kill_operator),
            Chapter("canary that fails", self._canary),
            Chapter("canary that succeeds", self._good_canary),
            Chapter("scale 4→1", self._shrink),
        ]

    def _nothing(self) -> str:
        time.sleep(20)
        return ""

    def _grow(self) -> str:
        self._aim(MANY_PERCENT)
        return self._wait_until_settled(4, 420)

    def _roll(self) -> str:
        old = self._names()
        self._release.kubectl("rollout", "restart", f"deployment/{RELEASE}")
        gone(self, old)
        return self._wait_until_settled(4)

    def _roll_in_steps(self) -> str:
        """Smaller pods, and as many. All links are then more than the budget moves while one of these drains."""
        usual = values(self._agents)["gateways"]["default"]
        small = {"capacity": self._agents // 2, "targetUtilisation": 4 * MANY_PERCENT, "rollout": {"canary": None}}
        old = self._names()
        self._patch(small)
        self._release.until("a rollout in steps", lambda: self._said("RolloutWithinBudget"), 180)
        gone(self, old, 600)
        there = self._wait_until_settled(4)
        old = self._names()
        self._patch({"capacity": usual["capacity"], "targetUtilisation": MANY_PERCENT})
        gone(self, old, 600)
        back = self._wait_until_settled(4)
        self._patch({"rollout": usual["rollout"]})
        return f"{there}; back: {back}"

    def _evict(self) -> str:
        pods = self._names()[:2]
        refused = evict(self._kube, NAMESPACE, pods)
        gone(self, pods)
        return f"the PodDisruptionBudget refused {refused} times; {self._wait_until_settled(4)}"

    def _delete(self) -> str:
        pods = self._names()[:2]
        self._release.kubectl("delete", "pod", *pods, "--wait=false")
        gone(self, pods)
        return self._wait_until_settled(4)

    def _kill_operator(self) -> str:
        """A LinkOperation drains a pod. While its agents move, all operators are killed; the kubelet restarts them."""
        release = self._release
        drained = self.pods()[0]
        pod, address = name(drained), drained["status"]["podIP"]
        operation = {**DRAIN, "spec": {**DRAIN["spec"], "pod": pod}}  # type: ignore[dict-item]
        release.kubectl("apply", "-f", "-", stdin=json.dumps(operation))

        def terminating() -> bool:
            return "deletionTimestamp" in release.get("pod", pod)["metadata"]

        release.until("a pod that moves its agents", terminating, 120)
        for operator in release.pods("operator"):
            release.signal(operator, signal.SIGKILL)
        killed = now()
        release.kubectl("wait", "--for=condition=Complete", "linkoperation/drain", "--timeout=300s", timeout=310)
        gone(self, [pod])
        left = sum(link.backend.startswith(f"{address}:") for link in links(HOST, killed))
        return f"killed when {left} links of the pod were left to move; {self._wait_until_settled(4)}"

    def _canary(self) -> str:
        """A template with a mistake: new pods refuse agents, because they expect another host name. The operator finds
        it out, and the fleet goes on with the old template."""
        release = self._release
        old = set(self._names())
        hosts = f"agents.example.com,{urlsplit(release.platform()).hostname}"
        self._patch({"pod": {"env": [{"name": "FAIRLEAD_ALLOWED_HOSTS", "value": hosts}]}})

        took = release.until("a canary that has failed", lambda: self._verdict("False"), 300)
        verdict = self._verdict("False")
        settled = self._wait_until_settled(4)
        assert set(self._names()) == old, "an old pod was replaced"
        self._patch({"pod": {"env": None}})  # as its author would
        after = self._wait_until_settled(4)
        return f"failed {took:.0f} s after the change, {verdict}; {settled}; template taken back, {after}"

    def _good_canary(self) -> str:
        """A template without a mistake: it replaces all pods once the canary has served as well as they do."""
        old = self._names()
        self._patch({"pod": {"env": [{"name": "TRIAL_TEMPLATE", "value": "2"}]}})
        took = self._release.until("a canary that has succeeded", lambda: self._verdict("True"), 420)
        verdict = self._verdict("True")
        assert not set(old) - set(self._names()), "an old pod went before the canary had succeeded"
        gone(self, old)
        return f"accepted {took:.0f} s after the change, {verdict}; {self._wait_until_settled(4)}"

    def _verdict(self, status: str) -> str:
        """Reason and message of CanarySucceeded while it has this status; "" otherwise."""
        verdict = self._said("CanarySucceeded")
        return f"{verdict['reason']}: {verdict['message']}" if verdict.get("status") == status else ""

    def _said(self, condition: str) -> dict[str, str]:
        """A condition of the LinkGateway; empty while it has none of that type."""
        conditions: dict[str, dict[str, str]] = {one["type"]: one for one in self._release.status()["conditions"]}
        return conditions.get(condition, {})

    def _shrink(self) -> str:
        self._aim(FEW_PERCENT)
        return self._wait_until_settled(1, 420)

    def _aim(self, percent: int) -> None:
        self._patch({"targetUtilisation": percent})

    def _patch(self, spec: dict[str, Any]) -> None:
        patch = json.dumps({"spec": spec})
        self._release.kubectl("patch", "linkgateway", RELEASE, "--type=merge", f"--patch={patch}")

    def _wait_until_settled(self, pods: int, timeout: float = 300.0) -> str:
        return wait_until_settled(self, self._agents, pods, timeout)

    def _names(self) -> list[str]:
        return [name(pod) for pod in self.pods()]
