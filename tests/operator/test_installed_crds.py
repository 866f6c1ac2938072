"""CRDs of an older release in the cluster: the API server drops new fields silently, and the operator says so."""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator
from typing import Any

import pytest

from fairlead_operator.crd import FIELD_MANAGER, crds
from fairlead_operator.inputs.installed_crds import missing_fields
from fairlead_operator.kube.errors import ApiServerUnavailable
from fairlead_operator.kube.objects import Object, path
from fairlead_operator.kube.rbac import LEASE, NAMESPACED

from support.operator_namespace import OperatorNamespace, condition

CANARY = {"percent": 10, "seconds": 60}


def of(**properties: object) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


TEXT = {"type": "string"}


@pytest.mark.parametrize(
    ("served", "missing"),
    [
        (of(a=TEXT, b=of(c=TEXT), d={"items": of(e=TEXT)}, f={"additionalProperties": of(g=TEXT)}), []),
        (of(a=TEXT, b=of(c=TEXT, new=TEXT), d={"items": of(e=TEXT)}, f={"additionalProperties": of(g=TEXT)}), []),
        (of(a=TEXT, d={"items": of(e=TEXT)}, f={"additionalProperties": of(g=TEXT)}), ["b"]),
        (of(a=TEXT, b=of(), d={"items": of()}, f={"additionalProperties": of()}), ["b.c", "d[].e", "f[].g"]),
        ({}, ["a", "b", "d", "f"]),
        ({"x-kubernetes-preserve-unknown-fields": True}, []),
    ],
)
def test_fields_are_missing_where_only_the_operator_knows_them(served: Object, missing: list[str]) -> None:
    own = of(a=TEXT, b=of(c=TEXT), d={"items": of(e=TEXT)}, f={"additionalProperties": of(g=TEXT)})
    assert list(missing_fields(own, served)) == missing


def older() -> Object:
    """The CRD of LinkGateway before there were canaries."""
    definition = copy.deepcopy(crds()[0])
    (version,) = definition["spec"]["versions"]
    properties = version["schema"]["openAPIV3Schema"]["properties"]
    del properties["spec"]["properties"]["rollout"], properties["status"]["properties"]["canary"]
    return definition


@pytest.fixture
async def old_cluster(namespace: OperatorNamespace) -> AsyncIterator[OperatorNamespace]:
    await install(namespace, older(), knows=False)
    yield namespace
    await install(namespace, crds()[0], knows=True)


async def install(namespace: OperatorNamespace, definition: Object, *, knows: bool) -> None:
    """Returns when the API server publishes whether it knows canaries, stores them accordingly, and serves the kind."""
    await namespace.admin.apply(definition, FIELD_MANAGER)
    trial = {"apiVersion": "fairlead.dev/v1alpha1", "kind": "LinkGateway", "metadata": {"name": "trial"}}
    trial["spec"] = namespace.spec(rollout={"canary": CANARY})
    where = path("LinkGateway", namespace.name)

    async def used() -> bool:
        try:
            # It publishes a CRD before or after it prepares the storage for it, and answers 429 until that is ready.
            stored = await namespace.admin._write("POST", where, trial, "application/json", {"dryRun": "All"})
            await namespace.admin.items("LinkGateway", namespace.name)
            found = await namespace.admin.schemas("fairlead.dev", "v1alpha1")
        except ApiServerUnavailable:
            return False
        published = found["LinkGateway"]["properties"]["spec"]["properties"]
        return {"rollout" in stored["spec"], "rollout" in published} == {knows}

    await namespace.until("the API server to use the CRD", used, 120)


@pytest.mark.timeout(400)
async def test_a_canary_that_an_old_crd_drops_is_reported_until_the_crd_is_upgraded(
    old_cluster: OperatorNamespace,
) -> None:
    namespace = old_cluster
    await namespace.allow(*NAMESPACED, *LEASE)  # nothing beyond its namespace: schemas are published for everybody
    reconciler = namespace.reconciler(await namespace.gateway())
    body = {"spec": {"rollout": {"canary": CANARY}}}
    found = await namespace.admin.patch("LinkGateway", namespace.name, "edge", body)
    assert "rollout" not in found["spec"], "and there was no error"

    async def reason_and_message(status: str) -> tuple[str, str] | None:
        try:
            found = await namespace.reconcile(reconciler, seconds=40)
        except ApiServerUnavailable:  # 429 for a moment, as above: the operator's next pass comes by itself
            return None
        conditions = {one["type"]: (one["status"], one["reason"], one["message"]) for one in found["conditions"]}
        held, reason, message = conditions.get("CrdsUpToDate", ("", "", ""))
        return (reason, message) if held == status else None

    reason, message = await namespace.until("the condition", lambda: reason_and_message("False"), 120)
    assert reason == "FieldsMissing"
    assert "do not know LinkGateway.spec.rollout, LinkGateway.status.canary: the API server drops" in message
    (event,) = [text for reason, text in await namespace.events() if reason == "FieldsMissing"]
    assert event == f"CrdsUpToDate: {message}"
    labels = {"namespace": namespace.name, "gateway": "edge", "condition": "CrdsUpToDate"}
    assert namespace.metrics.registry.get_sample_value("fairlead_operator_condition", labels) == 0
    await install(namespace, crds()[0], knows=True)
    assert await namespace.until("the condition to pass", lambda: reason_and_message("True"), 120) == ("UpToDate", "")
    found = await namespace.admin.patch("LinkGateway", namespace.name, "edge", body)
    assert found["spec"]["rollout"]["canary"]["percent"] == CANARY["percent"]
    assert namespace.metrics.registry.get_sample_value("fairlead_operator_condition", labels) == 1


async def test_crds_that_know_every_field_are_up_to_date_at_once(namespace: OperatorNamespace) -> None:
    status = await namespace.reconcile(namespace.reconciler(await namespace.gateway()))
    assert condition(status, "CrdsUpToDate") == ("True", "UpToDate", "")
