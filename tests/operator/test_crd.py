"""The CRDs: the Structs as their source, what the API server makes of them, and the committed copies."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from fairlead.configuration import InvalidValue
from fairlead.errors import ConfigError
from fairlead.settings.table import SETTINGS as GATEWAY_SETTINGS
from fairlead_operator.api.gateway_spec import LinkGatewaySpec, Mode
from fairlead_operator.api.link_operation import LinkOperationSpec, Type, read_operation
from fairlead_operator.api.validation import GATEWAY_RULES, read_spec
from fairlead_operator.crd import COLUMNS, OPERATION_COLUMNS, crds, gateway_crd, operation_crd
from fairlead_operator.kube.errors import ApiServerRefused, ApiServerUnavailable
from fairlead_operator.kube.objects import Object, path

from support.control_plane import ControlPlane
from support.operator_namespace import OperatorNamespace

ROOT = Path(__file__).resolve().parents[2]
LEAST: dict[str, Any] = {
    "image": "gateway", "redis": {"url": "redis://r"}, "tokens": {"secretRef": {"name": "tokens"}},
}  # fmt: skip


def test_committed_crds_are_up_to_date() -> None:
    chart = [yaml.safe_load(path.read_text()) for path in sorted((ROOT / "charts" / "fairlead" / "crds").iterdir())]
    plain = list(yaml.safe_load_all((ROOT / "k8s" / "crds.yaml").read_text()))
    assert chart == plain == crds(), "run charts/generate.py and charts/manifests.py, and commit what they write"


def test_command_prints_the_crds() -> None:
    done = subprocess.run([sys.executable, "-Im", "fairlead_operator.crd"], capture_output=True, check=True, timeout=30)
    assert list(yaml.safe_load_all(done.stdout)) == crds()


def test_command_applies_the_crds_and_names_those_it_may_not_apply(control_plane: ControlPlane) -> None:
    def apply(kubeconfig: Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-Im", "fairlead_operator.crd", "--apply"],
            env={"KUBECONFIG": str(kubeconfig), "USER": "test"},
            capture_output=True,
            text=True,
            check=False,
            timeout=50,
        )

    done = apply(control_plane.admin)
    assert (done.returncode, done.stderr) == (0, "")
    done = apply(control_plane.operator)
    assert done.returncode == 1
    for definition in crds():
        assert f"{definition['metadata']['name']} could not be applied: " in done.stderr
    assert "cannot patch resource" in done.stderr


def test_schema_is_structural() -> None:
    def walk(node: object) -> None:
        if isinstance(node, dict):
            assert not {"$ref", "anyOf", "oneOf", "title"} & (node.keys() - {"properties"})
            for key, inner in node.items():
                if key == "properties":
                    for one in inner.values():
                        assert "type" in one or one.get("x-kubernetes-int-or-string")
                walk(inner)
        elif isinstance(node, list):
            for inner in node:
                walk(inner)

    for definition in crds():
        walk(definition["spec"]["versions"][0]["schema"])


def without_null(value: object) -> object:
    if isinstance(value, dict):
        return {name: without_null(inner) for name, inner in value.items() if inner is not None}
    return value


async def test_api_server_fills_in_the_defaults_of_a_gateway(namespace: OperatorNamespace) -> None:
    await namespace.gateway()
    stored = (await namespace.admin.get("LinkGateway", namespace.name, "edge"))["spec"]
    asked = namespace.spec()
    for name, value in msgspec.to_builtins(msgspec.convert(asked, LinkGatewaySpec)).items():
        if name in stored:
            assert stored[name] == without_null(value), name
        else:
            assert value is None, name
    assert read_spec(stored) == read_spec(asked)


@pytest.mark.parametrize(
    "wrong",
    [
        {"replicas": {"min": 3, "max": 2}},
        {"redis": {}},
        {"redis": {"url": "redis://r", "secretRef": {"name": "s"}}},
        {"capacity": 100_000, "moves": {"maxPerSecond": 10}, "drain": {"maxSeconds": 60}},
        {"capacity": 0},
        {"scaling": {"mode": "Sometimes"}},
        {"logLevel": "loud"},
        {"redis": {"url": "http://r"}},
        {"telemetry": {"otlpEndpoint": "collector:4317"}},
    ],
)
def test_values_that_an_old_crd_accepted_are_refused(wrong: dict[str, Any]) -> None:
    """The API server refuses the same: test_invalid_specs_are_refused_by_the_api_server."""
    with pytest.raises(ConfigError):
        read_spec(LEAST | wrong)


def test_schema_has_every_validation_rule() -> None:
    found: list[str] = []

    def walk(node: object) -> None:
        if isinstance(node, dict):
            found.extend(one["rule"] for one in node.get("x-kubernetes-validations", ()))
        for inner in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
            walk(inner)

    walk(gateway_crd())
    assert {rule.rule for rules in GATEWAY_RULES.values() for rule in rules} < set(found)


@pytest.mark.parametrize(
    ("capacity", "moves", "accepts", "most", "takes"),
    [
        (100_000, 10, 200, 60, 10_060),
        (601, 10, 200, 120, 121),
        (1_000_000, 1, 1, 3600, 1_000_060),
        (201, 200, 3, 160, 161),
    ],
)
async def test_spec_that_cannot_drain_in_time_is_refused_with_the_numbers(
    namespace: OperatorNamespace, capacity: int, moves: int, accepts: int, most: int, takes: int
) -> None:
    """The API server's CEL and the operator use the same words."""
    spec: Object = {
        "capacity": capacity, "acceptRate": accepts, "moves": {"maxPerSecond": moves}, "drain": {"maxSeconds": most},
    }  # fmt: skip
    rate = min(moves, (accepts + 1) // 2)
    shortfall = (
        f"capacity {capacity} at {rate} moves per second (the lesser of moves.maxPerSecond and half of acceptRate) "
        f"and 60 s for commands take {takes} s, and drain.maxSeconds is {most}; "
    )
    with pytest.raises(ConfigError) as here:
        read_spec(LEAST | spec)
    advice = "raise one of these, or lower capacity"
    assert here.value.message == f"a full pod could not drain in time: {shortfall}{advice}"
    with pytest.raises(ApiServerRefused) as there:
        await namespace.gateway(**spec)
    assert there.value.message.endswith(f": {here.value.message}")


ADDRESSES = {
    "redis": ["redis://r", "rediss://r:6380/0", "redis://user:word@r:6379/1?protocol=2", "redis://[::1]:6379", "r:6379",
              "redis://", "redis://:word@/0", "redis://r:port", "redis://r:0", "http://r", "redis:r", "",
              "redis+sentinel://a,b:2/m", "rediss+sentinel://a/m/1?x=y", "redis+sentinel://a,b", "redis+sentinel://a,,b/m",
              "redis+cluster://a:1,[::1]:2", "rediss+cluster://a/?x=y", "redis+cluster://a,", "redis+other://a"],
    "trace_endpoint": ["", "http://collector:4318", "https://[::1]:4318/v1/traces", "collector:4317", "grpc://c:4317",
                       "http://", "http://c d", "HTTP://c"],
}  # fmt: skip


@pytest.mark.parametrize(("setting", "value"), [(name, one) for name, many in ADDRESSES.items() for one in many])
def test_url_is_accepted_exactly_if_gateways_accept_it(setting: str, value: str) -> None:
    def is_taken(check: Callable[..., object], wrong: type[Exception], *given: object) -> bool:
        try:
            check(*given)
        except wrong:
            return False
        return True

    spec = {"redis": {"url": value}} if setting == "redis" else {"telemetry": {"otlpEndpoint": value}}
    if setting == "redis" and "@" in value:
        assert not is_taken(read_spec, ConfigError, LEAST | spec), "a password belongs into a Secret"
        return
    assert is_taken(read_spec, ConfigError, LEAST | spec) == is_taken(
        GATEWAY_SETTINGS[setting].parse, InvalidValue, value
    )


async def test_url_that_gateways_refuse_is_refused_by_the_api_server(namespace: OperatorNamespace) -> None:
    places = {"redis": ("redis", "url"), "trace_endpoint": ("telemetry", "otlpEndpoint")}
    for setting, (part, field) in places.items():
        for number, value in enumerate(ADDRESSES[setting]):
            spec: Object = {part: {field: value}}
            try:
                read_spec(LEAST | spec)
            except ConfigError:
                with pytest.raises(ApiServerRefused, match=f"spec.{part}.{field} in body should match"):
                    await namespace.gateway(**spec)
            else:
                await namespace.gateway(f"{part}-{number}", **spec)


async def test_scale_subresource_can_be_set_before_it_can_be_read(namespace: OperatorNamespace) -> None:
    """This is why docs/kubernetes.md makes an autoscaler wait for a first `kubectl scale`."""
    await namespace.gateway(scaling={"mode": "External"})
    with pytest.raises(ApiServerUnavailable, match=r"500: .*\.spec\.scaling\.replicas. does not exist"):
        await namespace.admin.get("LinkGateway", namespace.name, "edge", "scale")
    await namespace.admin.patch("LinkGateway", namespace.name, "edge", {"spec": {"replicas": 5}}, "scale")
    found = await namespace.admin.get("LinkGateway", namespace.name, "edge", "scale")
    assert found["spec"] == {"replicas": 5}


def test_gateway_crd_has_columns_and_subresources() -> None:
    (version,) = gateway_crd()["spec"]["versions"]
    assert [name.upper() for name, *_ in COLUMNS] == ["READY", "DESIRED", "LINKS", "UTIL%", "SKEW", "PHASE", "AGE"]
    assert version["subresources"]["status"] == {}
    assert version["subresources"]["scale"]["specReplicasPath"] == ".spec.scaling.replicas"
    modes = version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["scaling"]["properties"]["mode"]
    assert sorted(modes["enum"]) == sorted(Mode)


def test_operation_crd_has_columns() -> None:
    (version,) = operation_crd()["spec"]["versions"]
    assert [name.upper() for name, *_ in OPERATION_COLUMNS] == ["GATEWAY", "TYPE", "POD", "PHASE", "LEFT", "AGE"]
    assert operation_crd()["spec"]["names"]["shortNames"] == ["lop"]
    assert version["subresources"] == {"status": {}}
    kinds = version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["type"]["enum"]
    assert sorted(kinds) == sorted(Type)


async def test_api_server_fills_in_the_defaults_of_an_operation(namespace: OperatorNamespace) -> None:
    stored = await namespace.operate("anew", type="Restart")
    assert stored["spec"] == {
        "gateway": {"name": "edge"}, "type": "Restart", "reason": "", "activeDeadlineSeconds": 3600, "cancel": False,
    }  # fmt: skip
    asked = {"gateway": {"name": "edge"}, "type": "Restart"}
    assert read_operation(stored).spec == msgspec.convert(asked, LinkOperationSpec)


async def test_unknown_field_is_refused_by_kubectl_and_dropped_by_the_api_server(namespace: OperatorNamespace) -> None:
    """kubectl asks for strict validation; without it the API server drops the field silently."""
    body = {
        "apiVersion": "fairlead.dev/v1alpha1",
        "kind": "LinkGateway",
        "metadata": {"name": "edge", "namespace": namespace.name},
        "spec": namespace.spec(capacty=5),
    }
    where = path("LinkGateway", namespace.name)
    with pytest.raises(ApiServerRefused, match=r'unknown field "spec.capacty"'):
        await namespace.admin._write("POST", where, body, "application/json", {"fieldValidation": "Strict"})
    assert "capacty" not in (await namespace.admin.create(body))["spec"]
