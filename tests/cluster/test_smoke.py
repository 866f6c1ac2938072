"""Ways into a real cluster beside that of the story: agents outside connect, and commands reach them.

By an Ingress and by an HTTPRoute to the images alone, which is the shortest way from an image to a command and says
that the pods are admitted as restricted ones with a read-only root; and by HTTPRoutes of the chart and of the operator,
which here serves all namespaces. Played by `make e2e`, before the story.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from fairlead.version import __version__

from support.kube import ROOT, Kube, find
from support.outside_agents import OutsidePlatform, agents, runs_commands

HOSTS = {"by-ingress": "smoke.fairlead.test", "by-route": "route.fairlead.test"}
GATEWAY = {
    "apiVersion": "gateway.networking.k8s.io/v1",
    "kind": "Gateway",
    "metadata": {"name": "entry"},
    "spec": {
        "gatewayClassName": "traefik",
        "listeners": [
            {"name": "web", "protocol": "HTTP", "port": 8000, "allowedRoutes": {"namespaces": {"from": "All"}}}
        ],
    },
}
AGENT_TOKEN, PLATFORM_TOKEN = "agents-of-the-smoke-test", "platform-of-the-smoke-test"


@pytest.fixture
def kube() -> Kube:
    if os.environ.get("FAIRLEAD_E2E") != "1":
        pytest.skip("a cluster and the images are needed: `make e2e`")
    found = find()
    if not isinstance(found, Kube):
        pytest.fail(found)
    return found


@pytest.mark.timeout(900)
def test_agents_outside_run_commands_from_the_service(kube: Kube, tmp_path: Path) -> None:
    manifests = Path(__file__).with_name("smoke.yaml").read_text().replace("VERSION", __version__)
    with kube.namespace("fairlead-smoke") as namespace:
        here = ("--namespace", namespace)
        kube.kubectl(*here, "apply", "--validate=strict", "-f", "-", stdin=manifests)
        for name in ("valkey", "gateway"):
            kube.kubectl(*here, "rollout", "status", f"deployment/{name}", "--timeout=240s", timeout=250)
        service = kube.get(*here, "service", "gateway")["spec"]["clusterIP"]
        platform = OutsidePlatform(f"http://{service}:8081", PLATFORM_TOKEN)
        with agents(HOSTS, AGENT_TOKEN, tmp_path):
            for name in HOSTS:
                runs_commands(kube, platform, name, tmp_path)


@pytest.mark.timeout(900)
def test_one_operator_for_all_namespaces_and_routes_of_the_gateway_api(kube: Kube, tmp_path: Path) -> None:
    """The chart with clusterScope and httpRoute; a LinkGateway elsewhere, on another database of the same Valkey."""
    hosts = {"of-the-chart": "home.fairlead.test", "of-elsewhere": "elsewhere.fairlead.test"}
    with kube.namespace("fairlead-home") as routes_namespace, kube.namespace("fairlead-elsewhere") as elsewhere:
        kube.kubectl("--namespace", routes_namespace, "apply", "-f", "-", stdin=json.dumps(GATEWAY))
        route = {"parentRefs": [{"name": "entry", "namespace": routes_namespace}]}
        small = {"replicas": {"min": 1, "max": 2}, "scaling": {"failureTolerance": 0}}
        values = {
            "operator": {
                "clusterScope": True, "replicas": 1, "policy": {"ingressHosts": [hosts["of-elsewhere"]]},
            },
            "networkPolicy": {
                "valkeyFrom": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": elsewhere}}}],
            },
            "gateways": {
                "default": {
                    **small, "requireIdentity": False, "httpRoute": {**route, "hostnames": [hosts["of-the-chart"]]},
                },
            },
        }  # fmt: skip
        (tmp_path / "values.json").write_text(json.dumps(values))
        here = ("--namespace", routes_namespace)
        chart = (str(ROOT / "charts" / "fairlead"), "--values", str(tmp_path / "values.json"))
        kube.helm("install", "fairlead", *chart, *here, "--wait", "--timeout", "300s", timeout=330)
        try:
            secret = kube.get(*here, "secret", "fairlead-tokens")["data"]
            redis = _text(kube.get(*here, "secret", "fairlead-valkey")["data"]["url"])
            there = ("--namespace", elsewhere)
            lent = {"name": "lent", "labels": {"fairlead.dev/gateway-secret": "true"}}
            data = {**secret, "url": base64.b64encode(f"{redis}/1".encode()).decode()}
            tokens = {"apiVersion": "v1", "kind": "Secret", "metadata": lent, "data": data}
            spec = {
                "image": f"docker.io/fairlead/gateway:{__version__}", **small,
                "redis": {"secretRef": {"name": "lent"}},
                "tokens": {"secretRef": {"name": "lent"}},
                "httpRoute": {**route, "hostnames": [hosts["of-elsewhere"]]},
            }  # fmt: skip
            gateway = {
                "apiVersion": "fairlead.dev/v1alpha1", "kind": "LinkGateway", "metadata": {"name": "far"}, "spec": spec,
            }  # fmt: skip
            for made in (tokens, gateway):
                kube.kubectl(*there, "apply", "-f", "-", stdin=json.dumps(made))
            fleets = {"of-the-chart": (routes_namespace, "fairlead"), "of-elsewhere": (elsewhere, "far")}
            with agents(hosts, _text(secret["agent-token"]), tmp_path):
                for agent, (namespace, name) in fleets.items():
                    ready = ("wait", "--for=condition=Ready", f"linkgateway/{name}", "--timeout=240s")
                    kube.kubectl("--namespace", namespace, *ready, timeout=250)
                    service = kube.get("--namespace", namespace, "service", f"{name}-platform")["spec"]["clusterIP"]
                    platform = OutsidePlatform(f"http://{service}:8081", _text(secret["platform-token"]))
                    runs_commands(kube, platform, agent, tmp_path)
                    assert platform.output("agents", "ls", "--output", "name").split() == [agent]
        finally:
            kube.kubectl("--namespace", elsewhere, "delete", "linkgateways", "--all", "--timeout=120s", timeout=130)
            kube.helm("uninstall", "fairlead", *here, "--wait", "--timeout", "300s", timeout=330)
        roles = kube.kubectl("get", "clusterroles,clusterrolebindings", "--output=name")
        assert "fairlead" not in roles


@pytest.mark.timeout(200)
def test_the_api_server_accepts_what_helm_4_renders(kube: Kube) -> None:
    helm4 = os.environ.get("FAIRLEAD_HELM4") or shutil.which("helm", path=ROOT / ".cache" / "helm4" / "bin")
    if helm4 is None:
        why = "Helm 4 was not found; `make helm4` builds it, FAIRLEAD_HELM4 names one"
        if os.environ.get("CI"):
            pytest.fail(why)
        pytest.skip(why)
    chart = ROOT / "charts" / "fairlead"
    # A dry run installs no CRDs, and the server knows no LinkGateway without them.
    kube.kubectl("apply", "--server-side", "--force-conflicts", "--field-manager=helm", "-f", str(chart / "crds"))
    with kube.namespace("fairlead-dry") as namespace:
        argv = [helm4, "install", "fairlead", str(chart), "--namespace", namespace, "--dry-run=server"]
        environment = {**os.environ, "KUBECONFIG": str(kube.kubeconfig)}
        done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=100, check=False)
        assert done.returncode == 0, done.stderr
        assert "kind: LinkGateway" in done.stdout
        assert not kube.kubectl("--namespace", namespace, "get", "deployments,linkgateways", "--output=name")


def _text(encoded: str) -> str:
    return base64.b64decode(encoded).decode()
