"""The receiver of traces in the cluster, beside the release: its address, and the spans that it received.

Started by the story before the release, in a namespace of its own, so that what the release leaves behind can be told
from it. The gateway's pods and the agents' program send to the same Service.
"""

from __future__ import annotations

import json
from pathlib import Path

from fairlead.version import __version__

from support.kube import ROOT, Kube
from support.otlp_collector import Span

HERE = Path(__file__).parent
SPANS = {
    "command greet", "api.accept", "dispatch", "api.follow", "doorbell", "deliver", "agent", "first byte", "end",
    "run greet", "look up",
}  # fmt: skip
"""The whole trace of one command; names are those of docs/telemetry.md."""
PROGRAM = (HERE / "receiver.py", ROOT / "tests" / "support" / "otlp_collector.py")


class Traces:
    def __init__(self, kube: Kube, namespace: str) -> None:
        self._kube = kube
        self._namespace = namespace
        files = [f"--from-file={path}" for path in PROGRAM]
        self._kubectl("create", "configmap", "program", *files)
        manifest = (HERE / "receiver.yaml").read_text().replace("VERSION", __version__)
        self._kubectl("apply", "--validate=strict", "-f", "-", stdin=manifest)
        self._kubectl("rollout", "status", "deployment/receiver", "--timeout=180s", timeout=200)

    @property
    def inside(self) -> str:
        """Its address for pods."""
        return f"http://receiver.{self._namespace}.svc:4318"

    @property
    def outside(self) -> str:
        """Its address for programs on this machine."""
        service = self._kube.get("--namespace", self._namespace, "service", "receiver")
        return f"http://{service['spec']['clusterIP']}:4318"

    def of(self, trace: str) -> list[Span]:
        """The spans of that trace, those that have come."""
        log = self._kubectl("logs", "deployment/receiver")
        found = [json.loads(line) for line in log.splitlines() if trace in line]
        return [Span(**one) for one in found if one["trace"] == trace]

    def _kubectl(self, *arguments: str, stdin: str | None = None, timeout: float = 60.0) -> str:
        return self._kube.kubectl("--namespace", self._namespace, *arguments, stdin=stdin, timeout=timeout)


def where(span: Span) -> object:
    """The pod that made it."""
    return span.resource.get("service.instance.id")
