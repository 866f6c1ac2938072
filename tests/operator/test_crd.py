"""One source: the Structs, the CRD made of them, what the API server makes of it, and the copies that are committed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from fairlead.errors import ConfigError
from fairlead_operator.crd import COLUMNS, OPERATION_COLUMNS, crds, gateway_crd, operation_crd
from fairlead_operator.errors import ClusterRefused
from fairlead_operator.objects import path
from fairlead_operator.operation import LinkOperationSpec, Type, read_operation
from fairlead_operator.spec import RULES, LinkGatewaySpec, Mode, read

sys.path.insert(0, str(Path(__file__).parent))

from operator_world import World

ROOT = Path(__file__).resolve().parents[2]
LEAST: dict[str, Any] = {
    "image": "gateway", "redis": {"url": "redis://r"}, "tokens": {"secretRef": {"name": "tokens"}},
}  # fmt: skip


def test_the_committed_copies_are_what_the_code_says() -> None:
    chart = [yaml.safe_load(path.read_text()) for path in sorted((ROOT / "charts" / "fairlead" / "crds").iterdir())]
    plain = list(yaml.safe_load_all((ROOT / "k8s" / "crds.yaml").read_text()))
    assert chart == plain == crds(), "run charts/generate.py and charts/manifests.py, and commit what they write"


def test_the_command_prints_them() -> None:
    said = subprocess.run([sys.executable, "-Im", "fairlead_operator.crd"], capture_output=True, check=True, timeout=30)
    assert list(yaml.safe_load_all(said.stdout)) == crds()


def test_the_upgrade_job_applies_both_and_names_those_it_may_not(control_plane: Any) -> None:
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


def test_nothing_in_it_is_what_a_structural_schema_cannot_have() -> None:
    def walk(node: Any) -> None:
        if isinstance(node, dict):
            assert not {"$ref", "anyOf", "oneOf", "title"} & (node.keys() - {"properties"})
            for key, inner in node.items():
                if key == "properties":
                    for one in inner.values():
                        assert "type" in one
                walk(inner)
        elif isinstance(node, list):
            for inner in node:
                walk(inner)

    for definition in crds():
        walk(definition["spec"]["versions"][0]["schema"])


async def test_the_api_server_fills_in_what_the_code_takes_for_granted(world: World) -> None:
    await world.gateway()
    stored = (await world.admin.get("LinkGateway", world.namespace, "edge"))["spec"]
    asked = world.spec()
    for name, value in msgspec.to_builtins(msgspec.convert(asked, LinkGatewaySpec)).items():
        if name in stored:
            given = {k: v for k, v in value.items() if v is not None} if isinstance(value, dict) else value
            assert stored[name] == given, name
        else:
            assert value is None, name
    assert read(stored) == read(asked)


@pytest.mark.parametrize(
    "wrong",
    [
        {"replicas": {"min": 3, "max": 2}},
        {"redis": {}},
        {"redis": {"url": "redis://r", "secretRef": {"name": "s"}}},
        {"capacity": 100_000, "drain": {"rate": 10, "maxSeconds": 60}},
        {"capacity": 0},
        {"scaling": {"mode": "Sometimes"}},
        {"logLevel": "loud"},
    ],
)
def test_what_an_old_crd_let_through_is_refused_here(wrong: dict[str, Any]) -> None:
    """The API server refuses the same: test_specs_that_are_refused."""
    with pytest.raises(ConfigError):
        read(LEAST | wrong)


def test_every_rule_is_in_the_schema_and_says_the_number_here() -> None:
    text = yaml.safe_dump(gateway_crd())
    for rules in RULES.values():
        for rule, _ in rules:
            assert rule in text.replace("\n", " ").replace("  ", " ") or rule.split()[0] in text
    with pytest.raises(ConfigError, match="100000 links at 10 a second take 10000 s, and 60 s are allowed"):
        read(LEAST | {"capacity": 100_000, "drain": {"rate": 10, "maxSeconds": 60}})


def test_columns_and_subresources() -> None:
    (version,) = gateway_crd()["spec"]["versions"]
    assert [name.upper() for name, *_ in COLUMNS] == ["READY", "DESIRED", "LINKS", "UTIL%", "SKEW", "PHASE", "AGE"]
    assert version["subresources"]["status"] == {}
    assert version["subresources"]["scale"]["specReplicasPath"] == ".spec.scaling.replicas"
    modes = version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["scaling"]["properties"]["mode"]
    assert sorted(modes["enum"]) == sorted(Mode)


def test_columns_of_operations() -> None:
    (version,) = operation_crd()["spec"]["versions"]
    assert [name.upper() for name, *_ in OPERATION_COLUMNS] == ["GATEWAY", "TYPE", "POD", "PHASE", "LEFT", "AGE"]
    assert operation_crd()["spec"]["names"]["shortNames"] == ["lop"]
    assert version["subresources"] == {"status": {}}
    kinds = version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["type"]["enum"]
    assert sorted(kinds) == sorted(Type)


async def test_the_api_server_fills_in_the_defaults_of_an_operation(world: World) -> None:
    stored = await world.operate("anew", type="Restart")
    assert stored["spec"] == {
        "gateway": {"name": "edge"}, "type": "Restart", "reason": "", "activeDeadlineSeconds": 3600,
    }  # fmt: skip
    asked = {"gateway": {"name": "edge"}, "type": "Restart"}
    assert read_operation(stored).spec == msgspec.convert(asked, LinkOperationSpec)


async def test_a_field_that_does_not_exist_is_refused_by_kubectl_and_dropped_without_it(world: World) -> None:
    """kubectl asks for strict validation; whoever does not finds that the field is not there."""
    body = {
        "apiVersion": "fairlead.dev/v1alpha1",
        "kind": "LinkGateway",
        "metadata": {"name": "edge", "namespace": world.namespace},
        "spec": world.spec(capacty=5),
    }
    where = path("LinkGateway", world.namespace)
    with pytest.raises(ClusterRefused, match=r'unknown field "spec.capacty"'):
        await world.admin._write("POST", where, body, "application/json", {"fieldValidation": "Strict"})
    assert "capacty" not in (await world.admin.create(body))["spec"]
