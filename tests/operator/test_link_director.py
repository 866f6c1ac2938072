"""A rollout on a real API server: which nodes take new links by the operator's directive, and until when.

The Deployment's controllers are real, the kubelets are played: a pod that they make runs when the test says so.
"""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from fairlead.fleet import schema
from fairlead.fleet.directives.preferred_revision import PreferredRevision, PreferredRevisions
from fairlead.store.reply import integer, items
from fairlead_operator.kube.objects import Object
from fairlead_operator.kube.rbac import LEASE, NAMESPACED
from fairlead_operator.kube.workload_status import is_terminating, revision_of
from fairlead_operator.runtime.link_director import VALID_MS
from fairlead_operator.runtime.reconciler import Reconciler

from support.operator_namespace import OperatorNamespace, condition

HOLD = {"minReadySeconds": 500}
"""Long enough that no old pod goes while a test looks."""


async def directed(namespace: OperatorNamespace) -> PreferredRevision:
    """What the nodes read, with the milliseconds that are left of it."""
    found = await PreferredRevisions(namespace.store).read()
    seconds, micros = items(await namespace.store.submit("TIME"))
    return PreferredRevision(found.name, found.until - integer(seconds) * 1000 - integer(micros) // 1000)


async def revisions(namespace: OperatorNamespace) -> dict[str, str]:
    """The revision of each pod."""
    return {pod["metadata"]["name"]: revision_of(pod) for pod in await namespace.pods() if not is_terminating(pod)}


async def begin(namespace: OperatorNamespace, links: int = 100) -> tuple[Reconciler, list[str], list[str]]:
    """Two pods with links, and a new template: the names of the old pods and of the new ones, which do not run yet."""
    reconciler = namespace.reconciler(await namespace.gateway(rollingUpdate=HOLD))
    await namespace.reconcile(reconciler)
    old = await namespace.run_pods(2)
    for name in old:
        await namespace.beat(name, links)
    await namespace.reconcile(reconciler)
    await namespace.admin.patch("LinkGateway", namespace.name, "edge", {"spec": {"image": "fairlead/gateway:next"}})
    await namespace.reconcile(reconciler)

    async def new() -> list[str] | None:
        found = [name for name in await revisions(namespace) if name not in old]
        return found if len(found) == 2 else None

    return reconciler, old, await namespace.until("a new pod for each old one", new)


async def become_ready(namespace: OperatorNamespace, pods: list[str]) -> None:
    now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    for name in pods:
        await namespace.run(name, since=now)
        await namespace.beat(name, 0)


def reasons(events: list[tuple[str, str]]) -> list[str]:
    return sorted(reason for reason, _ in events if reason.startswith("NewLinks"))


async def test_new_pods_take_all_new_links_once_all_are_ready(namespace: OperatorNamespace) -> None:
    reconciler, old, new = await begin(namespace)
    status = await namespace.reconcile(reconciler)
    held, reason, message = condition(status, "Progressing")
    assert (held, reason, status["phase"]) == ("True", "Rollout", "RollingOut")
    assert message.endswith("; 0 of 2 pods of the new revision " + (await revisions(namespace))[new[0]] + " are ready")
    await become_ready(namespace, new[:1])
    await namespace.reconcile(reconciler)
    assert (await directed(namespace)).name == ""
    await become_ready(namespace, new[1:])
    status = await namespace.reconcile(reconciler)
    found = await directed(namespace)
    assert found.name == (await revisions(namespace))[new[0]] != (await revisions(namespace))[old[0]]
    assert VALID_MS - 10_000 < found.until <= VALID_MS
    assert condition(status, "Progressing")[2].endswith(
        f"the 2 pods of the new revision {found.name} take all new links"
    )
    assert reasons(await namespace.events()) == ["NewLinksDirected"]

    # The old pods are unready now, and the fleet is as ready as before.
    for name in old:
        await namespace.run(name, ready=False)
        await namespace.beat(name, 100)
    await become_ready(namespace, new)
    status = await namespace.reconcile(reconciler)
    assert condition(status, "Ready")[:2] == ("True", "Serving")
    assert (status["readyReplicas"], status["links"], status["decision"]["action"]) == (2, 200, "Stay")
    assert set(await revisions(namespace)) == {*old, *new}, "nobody removes an old pod because it is unready"
    assert reasons(await namespace.events()) == ["NewLinksDirected"]


async def test_direction_ends_with_the_rollout(namespace: OperatorNamespace) -> None:
    reconciler, old, new = await begin(namespace)
    await become_ready(namespace, new)
    await namespace.reconcile(reconciler)
    assert (await directed(namespace)).until > 0
    patch = {"spec": {"rollingUpdate": {"minReadySeconds": 0}}}
    await namespace.admin.patch("LinkGateway", namespace.name, "edge", patch)
    await namespace.reconcile(reconciler)

    async def replaced() -> bool:
        return set(await revisions(namespace)) == set(new)

    await namespace.until("the old pods to go", replaced)
    await namespace.run_pods(2)
    status = await namespace.reconcile(reconciler)
    assert condition(status, "Progressing")[0] == "False"
    assert (await directed(namespace)).until < 0
    assert old


async def test_refusals_of_the_new_pods_give_the_old_ones_new_links_again(namespace: OperatorNamespace) -> None:
    reconciler, old, new = await begin(namespace)
    await become_ready(namespace, new)
    await namespace.reconcile(reconciler)
    for name in (*old, *new):
        await namespace.beat(name, 100, refused=3 if name == new[1] else 0)
    status = await namespace.reconcile(reconciler)
    assert (await directed(namespace)).until < 0
    assert condition(status, "Progressing")[2].endswith("refuse links")
    assert reasons(await namespace.events()) == ["NewLinksDirected", "NewLinksUndirected"]
    for _ in range(3):
        for name in (*old, *new):
            await namespace.beat(name, 100, refused=3 if name == new[1] else 0)
        await namespace.reconcile(reconciler)
    assert (await directed(namespace)).until > 0


async def test_a_key_of_another_type_directs_nothing_until_a_node_has_removed_it(namespace: OperatorNamespace) -> None:
    """Nodes remove what is not Fairlead's; until then new links go to all pods, and the pass does everything else."""
    reconciler, old, new = await begin(namespace)
    await namespace.store.submit("DEL", schema.REVISION)
    await namespace.store.submit("RPUSH", schema.REVISION, "a note")
    await become_ready(namespace, new)
    status = await namespace.reconcile(reconciler)
    assert condition(status, "Progressing")[2].endswith("Redis cannot be written")
    assert condition(status, "RedisReachable")[0] == "True"
    assert status["decision"]["action"] == "Stay"
    assert reasons(await namespace.events()) == ["NewLinksUndirected"]
    assert set(await revisions(namespace)) == {*old, *new}
    await namespace.store.submit("DEL", schema.REVISION)
    await namespace.reconcile(reconciler)
    assert (await directed(namespace)).name == (await revisions(namespace))[new[0]]


async def test_direction_expires_without_an_operator_and_a_new_leader_takes_it_up(namespace: OperatorNamespace) -> None:
    reconciler, _, new = await begin(namespace)
    await become_ready(namespace, new)
    await namespace.reconcile(reconciler)
    before = (await directed(namespace)).until
    await namespace.reconcile(namespace.reconciler(await namespace.admin.get("LinkGateway", namespace.name, "edge")))
    after = await directed(namespace)
    assert after.name == (await revisions(namespace))[new[0]]
    assert after.until <= VALID_MS
    assert after.until > before - 10_000


@pytest.mark.parametrize("kind", ["rollback", "restart"])
async def test_another_change_of_the_template_ends_the_direction(namespace: OperatorNamespace, kind: str) -> None:
    """A rollback takes the first ReplicaSet again; `kubectl rollout restart` changes an annotation of the template."""
    reconciler, old, new = await begin(namespace)
    await become_ready(namespace, new)
    await namespace.reconcile(reconciler)
    if kind == "rollback":
        await namespace.admin.patch("LinkGateway", namespace.name, "edge", {"spec": {"image": "fairlead/gateway:test"}})
    else:
        annotations = {"kubectl.kubernetes.io/restartedAt": "now"}
        template: Object = {"spec": {"template": {"metadata": {"annotations": annotations}}}}
        await namespace.admin.patch("Deployment", namespace.name, "edge", template)

    async def turned() -> bool:
        """The Deployment's controller has noticed, and then the operator."""
        await namespace.reconcile(reconciler, seconds=1)
        for name in old:
            await namespace.beat(name, 100)
        return (await directed(namespace)).until < 0

    await namespace.until("links to the pods of all templates", turned)


async def test_operator_without_the_right_to_list_replica_sets_goes_on(namespace: OperatorNamespace) -> None:
    reconciler, old, new = await begin(namespace)
    await namespace.allow(*NAMESPACED, *LEASE, without=("replicasets", "list"))
    await become_ready(namespace, new)
    status = await namespace.reconcile(reconciler)
    assert (await directed(namespace)).name == ""
    assert condition(status, "Progressing")[2].endswith("the revision of the new pods is not known yet")
    held, reason, message = condition(status, "ReplicaSetsReadable")
    assert (held, reason) == ("False", "AccessDenied")
    assert message.startswith("a rollout cannot direct new links to its pods: replicasets.apps is forbidden")
    assert condition(status, "Ready")[0] == "True"
    assert old
