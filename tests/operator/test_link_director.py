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

from support.operator_world import OperatorNamespace, condition

HOLD = {"minReadySeconds": 500}
"""Long enough that no old pod goes while a test looks."""


async def directed(world: OperatorNamespace) -> PreferredRevision:
    """What the nodes read, with the milliseconds that are left of it."""
    found = await PreferredRevisions(world.store).read()
    seconds, micros = items(await world.store.submit("TIME"))
    return PreferredRevision(found.name, found.until - integer(seconds) * 1000 - integer(micros) // 1000)


async def revisions(world: OperatorNamespace) -> dict[str, str]:
    """The revision of each pod."""
    return {pod["metadata"]["name"]: revision_of(pod) for pod in await world.pods() if not is_terminating(pod)}


async def begin(world: OperatorNamespace, links: int = 100) -> tuple[Reconciler, list[str], list[str]]:
    """Two pods with links, and a new template: the names of the old pods and of the new ones, which do not run yet."""
    reconciler = world.reconciler(await world.gateway(rollingUpdate=HOLD))
    await world.reconcile(reconciler)
    old = await world.run_pods(2)
    for name in old:
        await world.beat(name, links)
    await world.reconcile(reconciler)
    await world.admin.patch("LinkGateway", world.namespace, "edge", {"spec": {"image": "fairlead/gateway:next"}})
    await world.reconcile(reconciler)

    async def new() -> list[str] | None:
        found = [name for name in await revisions(world) if name not in old]
        return found if len(found) == 2 else None

    return reconciler, old, await world.until("a new pod for each old one", new)


async def become_ready(world: OperatorNamespace, pods: list[str]) -> None:
    now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    for name in pods:
        await world.run(name, since=now)
        await world.beat(name, 0)


def reasons(events: list[tuple[str, str]]) -> list[str]:
    return sorted(reason for reason, _ in events if reason.startswith("NewLinks"))


async def test_new_pods_take_all_new_links_once_all_are_ready(world: OperatorNamespace) -> None:
    reconciler, old, new = await begin(world)
    status = await world.reconcile(reconciler)
    held, reason, message = condition(status, "Progressing")
    assert (held, reason, status["phase"]) == ("True", "Rollout", "RollingOut")
    assert message.endswith("; 0 of 2 pods of the new revision " + (await revisions(world))[new[0]] + " are ready")
    await become_ready(world, new[:1])
    await world.reconcile(reconciler)
    assert (await directed(world)).name == ""
    await become_ready(world, new[1:])
    status = await world.reconcile(reconciler)
    found = await directed(world)
    assert found.name == (await revisions(world))[new[0]] != (await revisions(world))[old[0]]
    assert VALID_MS - 10_000 < found.until <= VALID_MS
    assert condition(status, "Progressing")[2].endswith(
        f"the 2 pods of the new revision {found.name} take all new links"
    )
    assert reasons(await world.events()) == ["NewLinksDirected"]

    # The old pods are unready now, and the fleet is as ready as before.
    for name in old:
        await world.run(name, ready=False)
        await world.beat(name, 100)
    await become_ready(world, new)
    status = await world.reconcile(reconciler)
    assert condition(status, "Ready")[:2] == ("True", "Serving")
    assert (status["readyReplicas"], status["links"], status["decision"]["action"]) == (2, 200, "Stay")
    assert set(await revisions(world)) == {*old, *new}, "nobody removes an old pod because it is unready"
    assert reasons(await world.events()) == ["NewLinksDirected"]


async def test_direction_ends_with_the_rollout(world: OperatorNamespace) -> None:
    reconciler, old, new = await begin(world)
    await become_ready(world, new)
    await world.reconcile(reconciler)
    assert (await directed(world)).until > 0
    patch = {"spec": {"rollingUpdate": {"minReadySeconds": 0}}}
    await world.admin.patch("LinkGateway", world.namespace, "edge", patch)
    await world.reconcile(reconciler)

    async def replaced() -> bool:
        return set(await revisions(world)) == set(new)

    await world.until("the old pods to go", replaced)
    await world.run_pods(2)
    status = await world.reconcile(reconciler)
    assert condition(status, "Progressing")[0] == "False"
    assert (await directed(world)).until < 0
    assert old


async def test_refusals_of_the_new_pods_give_the_old_ones_new_links_again(world: OperatorNamespace) -> None:
    reconciler, old, new = await begin(world)
    await become_ready(world, new)
    await world.reconcile(reconciler)
    for name in (*old, *new):
        await world.beat(name, 100, refused=3 if name == new[1] else 0)
    status = await world.reconcile(reconciler)
    assert (await directed(world)).until < 0
    assert condition(status, "Progressing")[2].endswith("refuse links")
    assert reasons(await world.events()) == ["NewLinksDirected", "NewLinksUndirected"]
    for _ in range(3):
        for name in (*old, *new):
            await world.beat(name, 100, refused=3 if name == new[1] else 0)
        await world.reconcile(reconciler)
    assert (await directed(world)).until > 0


async def test_a_key_of_another_type_directs_nothing_until_a_node_has_removed_it(world: OperatorNamespace) -> None:
    """Nodes remove what is not Fairlead's; until then new links go to all pods, and the pass does everything else."""
    reconciler, old, new = await begin(world)
    await world.store.submit("DEL", schema.REVISION)
    await world.store.submit("RPUSH", schema.REVISION, "a note")
    await become_ready(world, new)
    status = await world.reconcile(reconciler)
    assert condition(status, "Progressing")[2].endswith("Redis cannot be written")
    assert condition(status, "RedisReachable")[0] == "True"
    assert status["decision"]["action"] == "Stay"
    assert reasons(await world.events()) == ["NewLinksUndirected"]
    assert set(await revisions(world)) == {*old, *new}
    await world.store.submit("DEL", schema.REVISION)
    await world.reconcile(reconciler)
    assert (await directed(world)).name == (await revisions(world))[new[0]]


async def test_direction_expires_without_an_operator_and_a_new_leader_takes_it_up(world: OperatorNamespace) -> None:
    reconciler, _, new = await begin(world)
    await become_ready(world, new)
    await world.reconcile(reconciler)
    before = (await directed(world)).until
    await world.reconcile(world.reconciler(await world.admin.get("LinkGateway", world.namespace, "edge")))
    after = await directed(world)
    assert after.name == (await revisions(world))[new[0]]
    assert after.until <= VALID_MS
    assert after.until > before - 10_000


@pytest.mark.parametrize("kind", ["rollback", "restart"])
async def test_another_change_of_the_template_ends_the_direction(world: OperatorNamespace, kind: str) -> None:
    """A rollback takes the first ReplicaSet again; `kubectl rollout restart` changes an annotation of the template."""
    reconciler, old, new = await begin(world)
    await become_ready(world, new)
    await world.reconcile(reconciler)
    if kind == "rollback":
        await world.admin.patch("LinkGateway", world.namespace, "edge", {"spec": {"image": "fairlead/gateway:test"}})
    else:
        annotations = {"kubectl.kubernetes.io/restartedAt": "now"}
        template: Object = {"spec": {"template": {"metadata": {"annotations": annotations}}}}
        await world.admin.patch("Deployment", world.namespace, "edge", template)

    async def turned() -> bool:
        """The Deployment's controller has noticed, and then the operator."""
        await world.reconcile(reconciler, seconds=1)
        for name in old:
            await world.beat(name, 100)
        return (await directed(world)).until < 0

    await world.until("links to the pods of all templates", turned)


async def test_operator_without_the_right_to_list_replica_sets_goes_on(world: OperatorNamespace) -> None:
    reconciler, old, new = await begin(world)
    await world.allow(*NAMESPACED, *LEASE, without=("replicasets", "list"))
    await become_ready(world, new)
    status = await world.reconcile(reconciler)
    assert (await directed(world)).name == ""
    assert condition(status, "Progressing")[2].endswith("the revision of the new pods is not known yet")
    held, reason, message = condition(status, "ReplicaSetsReadable")
    assert (held, reason) == ("False", "AccessDenied")
    assert message.startswith("a rollout cannot direct new links to its pods: replicasets.apps is forbidden")
    assert condition(status, "Ready")[0] == "True"
    assert old
