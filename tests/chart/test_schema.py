"""values.schema.json: an unknown value at any level is an error that names it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from fairlead.fleet.moves.move_rate import FINAL_SECONDS
from fairlead_operator.api.gateway_spec import LinkGatewaySpec, Replicas
from fairlead_operator.api.moves_spec import Drain, Moves
from fairlead_operator.api.validation import RESERVED_ENV

from support.chart.helm import Helm

ROOT = Path(__file__).resolve().parents[2]
SCHEMA = json.loads((ROOT / "charts" / "fairlead" / "values.schema.json").read_text())

FREE = {"commonLabels", "gateways"}
"""Maps of names that the user chooses; `gateways` has its rule for what is in them."""

REFUSED = [
    ("replicas=3", "replicas"),
    ("images.gatway.repository=x", "gatway"),
    ("images.gateway.repo=x", "repo"),
    ("images.tag=latest", "/images/tag"),
    ("images.pullPolicy=Sometimes", "/images/pullPolicy"),
    ("redis.uri=redis://x", "uri"),
    ("redis.url=http://x", "/redis/url"),
    ("redis.url=redis://", "/redis/url"),
    ("telemetry.otlpEndpoint=collector:4317", "/telemetry/otlpEndpoint"),
    ("fullnameOverride=a.b", "/fullnameOverride"),
    ("nameOverride=a.b", "/nameOverride"),
    ("operator.namespaces={a.b}", "/operator/namespaces/0"),
    ("redis.valkey.persistence.enabled=perhaps", "/redis/valkey/persistence/enabled"),
    ("redis.valkey.resources.limit.memory=1Gi", "limit"),
    ("tokens.agent=x", "agent"),
    ("operator.replicas=0", "/operator/replicas"),
    ("operator.replicas=two", "/operator/replicas"),
    ("operator.rbac.secretNames=x", "/operator/rbac/secretNames"),
    ("operator.serviceAccount.nme=x", "nme"),
    ("crds.install=true", "install"),
    ("gateways.default.capacty=1", "capacty"),
    ("gateways.default.capacity=none", "/gateways/default/capacity"),
    ("gateways.default.capacity=0", "/gateways/default/capacity"),
    ("gateways.default.ingress.preset=Nginx2", "/gateways/default/ingress/preset"),
    ("gateways.default.telemetry.otlpEndpoint=collector:4317", "/gateways/default/telemetry/otlpEndpoint"),
    ("gateways.default.redis.url=redis:6379", "/gateways/default/redis/url"),
    ("gateways.default.scaling.survives=2", "survives"),
    ("gateways.default.httpRoute.hostnames[0]=x", "parentRefs"),
    ("gateways.operator.capacity=5", "operator"),
    ("gateways.Emea.capacity=5", "Emea"),
    ("commonLabels.app\\.kubernetes\\.io/name=x", "app.kubernetes.io/name"),
]


@pytest.mark.parametrize(("flag", "message"), REFUSED, ids=[flag for flag, _ in REFUSED])
def test_an_invalid_value_is_refused_by_name(helm: Helm, chart: Path, flag: str, message: str) -> None:
    done = helm("template", "fairlead", str(chart), "--set", flag)
    assert done.returncode != 0, f"--set {flag} was taken"
    assert message in done.stderr


def test_contradicting_values_are_refused_in_words(helm: Helm, chart: Path) -> None:
    def refused(*flags: str, name: str = "fairlead") -> str:
        done = helm("template", name, str(chart), *(word for flag in flags for word in ("--set", flag)))
        assert done.returncode != 0
        text: str = done.stderr
        return text

    assert "redis.url and redis.existingSecret are both set" in refused("redis.url=redis://x", "redis.existingSecret=x")
    assert "clusterScope and operator.namespaces" in refused("operator.clusterScope=true", "operator.namespaces={a}")
    assert "leaves out default" in refused("operator.namespaces={elsewhere}")
    assert "40 are allowed" in refused("gateways.emea.capacity=5", name="a" * 40)
    assert "fairlead.eu cannot be the name of a Service" in refused(name="fairlead.eu")
    assert "2nd-fairlead cannot be the name of a Service" in refused(name="2nd")
    assert "gateways.default.replicas: min 20 is greater than max 10" in refused("gateways.default.replicas.min=20")
    assert "capacity 24001 at 100 moves per second" in refused("gateways.default.capacity=24001")
    for name, instead in RESERVED_ENV.items():
        message = f"gateways.default.pod.env must not set {name}: {instead}"
        if name in ("FAIRLEAD_NODE", "FAIRLEAD_REDIS"):
            assert message in refused(f"gateways.default.pod.env[0].name={name}", "gateways.default.pod.env[0].value=x")
    assert "must name an account" in refused("operator.serviceAccount.create=false")


@pytest.mark.parametrize("release", ["fairlead.eu", "2nd"])
def test_a_release_name_that_is_no_service_name_is_replaced(helm: Helm, chart: Path, release: str) -> None:
    done = helm("template", release, str(chart), "--set", "fullnameOverride=links")
    assert done.returncode == 0, done.stderr
    assert {"links", "links-operator", "links-valkey"} <= {
        body["metadata"]["name"] for body in yaml.safe_load_all(done.stdout) if body
    }


def test_an_address_is_accepted_exactly_if_a_linkgateway_accepts_it() -> None:
    top, one = SCHEMA["properties"], SCHEMA["$defs"]["linkGateway"]["properties"]
    assert top["telemetry"]["properties"]["otlpEndpoint"] == one["telemetry"]["properties"]["otlpEndpoint"]
    url = one["redis"]["properties"]["url"]["pattern"]
    # Empty: the Valkey for evaluations. With a password, since this one goes into a Secret.
    with_password = url.replace("://", r"://([^/?#\s]*@)?")
    assert top["redis"]["properties"]["url"]["pattern"] == f"^$|{with_password}"


def closed(node: dict[str, Any], path: str = "") -> Iterator[str]:
    """Paths of objects with known keys that would take others too."""
    if "properties" in node and node.get("additionalProperties") is not False:
        yield path
    for name, inner in node.get("properties", {}).items():
        yield from closed(inner, f"{path}/{name}")
    for key in ("items", "additionalProperties"):
        if isinstance(node.get(key), dict):
            yield from closed(node[key], f"{path}/*")
    for name, inner in node.get("$defs", {}).items():
        yield from closed(inner, f"{path}/$defs/{name}")


def test_unknown_keys_are_refused_everywhere() -> None:
    assert list(closed(SCHEMA)) == []
    assert list(closed({"properties": {"a": {"properties": {}}}})) == ["", "/a"], "the search itself finds none"


def test_values_and_schema_have_the_same_keys(chart: Path) -> None:
    values = yaml.safe_load((chart / "values.yaml").read_text())

    def compare(value: dict[str, Any], node: dict[str, Any], path: str) -> None:
        if "properties" not in node or path in FREE:
            return
        # Helm itself adds `global` when the chart is a part of another.
        assert set(value) == set(node["properties"]) - {"global"}, path or "top"
        for name, inner in value.items():
            compare(inner, node["properties"][name], f"{path}.{name}".lstrip("."))

    compare(values, SCHEMA, "")


def test_the_schema_has_every_field_of_a_linkgateway() -> None:
    fields = set(LinkGatewaySpec.__struct_encode_fields__)
    assert set(SCHEMA["$defs"]["linkGateway"]["properties"]) == fields


def test_the_checks_of_the_chart_know_the_defaults_of_a_linkgateway() -> None:
    text = (ROOT / "charts" / "fairlead" / "templates" / "gateways" / "_check.tpl").read_text()
    defaults = {one.name: one.default for one in msgspec.structs.fields(LinkGatewaySpec)}
    capacity, accept_rate = defaults["capacity"], defaults["accept_rate"]
    assert f'"replicas" "min" {Replicas().min} ' in text
    assert f'"replicas" "max" {Replicas().max} ' in text
    assert f"$given.capacity | default {capacity} " in text
    assert f"$given.acceptRate | default {accept_rate} " in text
    assert f" {FINAL_SECONDS} -}}}}" in text
    assert f'"moves" "maxPerSecond" {Moves().max_per_second} ' in text
    assert f'"drain" "maxSeconds" {Drain().max_seconds} ' in text
