"""What the chart renders for Prometheus and Grafana: nothing by default, and no kind that the cluster does not have."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from fairlead_operator.api.validation import read_spec
from fairlead_operator.resources.children import children
from fairlead_operator.resources.owner import Owner

from support.chart.helm import Helm, Render

CHART = Path(__file__).resolve().parents[2] / "charts" / "fairlead"
ALL = CHART / "ci" / "monitoring-values.yaml"
GROUP = "monitoring.coreos.com/v1"
KINDS = ("PodMonitor", "ServiceMonitor", "PrometheusRule")
KNOWN = [flag for kind in KINDS for flag in ("--api-versions", f"{GROUP}/{kind}")]


def monitors(objects: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """By kind and name."""
    return {f"{one['kind']} {one['metadata']['name']}": one for one in objects if one["apiVersion"] == GROUP}


def gateway_children(objects: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What the operator would make of the chart's first LinkGateway."""
    made = next(one for one in objects if one["kind"] == "LinkGateway")
    return children(Owner(made["metadata"]["name"], "fleet", "uid"), read_spec(made["spec"]))


def test_monitoring_objects_are_off_by_default(render: Render) -> None:
    objects = render(None, *KNOWN)
    assert not monitors(objects)
    assert not [one for one in objects if one["kind"] == "ConfigMap"]
    for one in objects:
        if one["kind"] == "LinkGateway":
            assert "telemetry" not in one["spec"]
            assert "env" not in one["spec"]["pod"]


def test_kinds_that_the_cluster_does_not_have_are_not_rendered(render: Render) -> None:
    assert not monitors(render(ALL))
    assert set(monitors(render(ALL, "--api-versions", f"{GROUP}/PrometheusRule"))) == {"PrometheusRule fairlead"}


def test_pod_monitors_select_existing_pods_and_ports(render: Render) -> None:
    objects = render(ALL, *KNOWN)
    made = monitors(objects)
    assert set(made) == {"PodMonitor fairlead", "PodMonitor fairlead-operator", "PrometheusRule fairlead"}
    for one in made.values():
        assert one["metadata"]["labels"]["release"] == "prometheus"
    gateway, operator = made["PodMonitor fairlead"]["spec"], made["PodMonitor fairlead-operator"]["spec"]

    deployment = next(one for one in gateway_children(objects) if one["kind"] == "Deployment")
    template = deployment["spec"]["template"]
    assert gateway["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    assert gateway["namespaceSelector"] == {"matchNames": ["fleet"]}
    (endpoint,) = gateway["podMetricsEndpoints"]
    ports = {port["name"]: port["containerPort"] for port in template["spec"]["containers"][0]["ports"]}
    assert ports[endpoint["port"]] == 8082
    assert endpoint["interval"] == "30s"
    # What dashboards call `gateway` is the name of the LinkGateway.
    (relabeling,) = endpoint["relabelings"]
    label = relabeling["sourceLabels"][0].removeprefix("__meta_kubernetes_pod_label_")
    named = {name.replace(".", "_").replace("/", "_"): value for name, value in template["metadata"]["labels"].items()}
    assert (relabeling["targetLabel"], named[label]) == ("gateway", deployment["metadata"]["name"])

    (own,) = [one for one in objects if (one["kind"], one["metadata"]["name"]) == ("Deployment", "fairlead-operator")]
    template = own["spec"]["template"]
    assert operator["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    (endpoint,) = operator["podMetricsEndpoints"]
    assert endpoint["port"] in {port["name"] for port in template["spec"]["containers"][0]["ports"]}
    assert endpoint["honorLabels"] is True


def test_service_monitors_select_one_service_of_each(render: Render) -> None:
    objects = render({"monitoring": {"serviceMonitor": {"enabled": True}}}, *KNOWN)
    made = monitors(objects)
    assert set(made) == {"ServiceMonitor fairlead", "ServiceMonitor fairlead-operator"}
    everything = [*objects, *gateway_children(objects)]
    for name, service in (("fairlead", "fairlead-metrics"), ("fairlead-operator", "fairlead-operator")):
        spec = made[f"ServiceMonitor {name}"]["spec"]
        (endpoint,) = spec["endpoints"]
        chosen = [
            one["metadata"]["name"]
            for one in everything
            if one["kind"] == "Service"
            and spec["selector"]["matchLabels"].items() <= one["metadata"]["labels"].items()
            and endpoint["port"] in {port["name"] for port in one["spec"]["ports"]}
        ]
        # The platform's port is called http, too, but that Service is another component's.
        assert chosen == [service]


def test_pods_are_not_scraped_twice(helm: Helm, chart: Path) -> None:
    both = [word for kind in ("pod", "service") for word in ("--set", f"monitoring.{kind}Monitor.enabled=true")]
    done = helm("template", "fairlead", str(chart), *both)
    assert done.returncode != 0
    assert "scraped twice" in done.stderr


def test_all_namespaces_are_scraped_when_all_are_served(render: Render) -> None:
    values = {"operator": {"clusterScope": True}, "monitoring": {"podMonitor": {"enabled": True}}}
    spec = monitors(render(values, *KNOWN))["PodMonitor fairlead"]["spec"]
    assert spec["namespaceSelector"] == {"any": True}


def test_the_prometheus_rule_is_the_alerts_file_with_runbook_urls(render: Render) -> None:
    made = monitors(render(ALL, *KNOWN))["PrometheusRule fairlead"]["spec"]
    plain = (CHART / "files" / "rules" / "fairlead.yaml").read_text()
    assert made == yaml.safe_load(plain.replace("docs/runbooks/", "https://runbooks.example.com/fairlead/"))
    assert len(made["groups"]) == 3


def test_dashboards_have_the_sidecars_label_and_are_complete(render: Render) -> None:
    maps = [one for one in render(ALL) if one["kind"] == "ConfigMap"]
    titles = {}
    for one in maps:
        assert one["metadata"]["labels"]["grafana_dashboard"] == "1"
        assert one["metadata"]["annotations"] == {"grafana_folder": "Fairlead"}
        ((name, text),) = one["data"].items()
        assert text == (CHART / "files" / "dashboards" / name.removeprefix("fairlead-")).read_text()
        titles[name] = json.loads(text)["title"]
    assert len(titles) == 4
    assert titles["fairlead-overview.json"] == "Fairlead / Overview"


def test_tracing_follows_the_values_unless_a_gateway_has_its_own(render: Render) -> None:
    own = {"emea": {"telemetry": {"otlpEndpoint": "http://mine:4318"}},
           "asia": {"pod": {"env": [{"name": "FAIRLEAD_TRACE_RATIO", "value": "1"}]}}}  # fmt: skip
    objects = render({"telemetry": {"otlpEndpoint": "http://c:4318", "samplingRatio": 0.05}, "gateways": own})
    found = {}
    for one in objects:
        if one["kind"] == "LinkGateway":
            read_spec(one["spec"])
            env = {entry["name"]: entry["value"] for entry in one["spec"]["pod"].get("env", ())}
            found[one["metadata"]["name"]] = (one["spec"]["telemetry"]["otlpEndpoint"], env.get("FAIRLEAD_TRACE_RATIO"))
    assert found == {
        "fairlead": ("http://c:4318", "0.05"),
        "fairlead-emea": ("http://mine:4318", None),
        "fairlead-asia": ("http://c:4318", "1"),
    }
