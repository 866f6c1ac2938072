"""LinkOperations that move or close links: Rebalance and Disconnect on a real API server and a real Redis."""

from __future__ import annotations

from fairlead.fleet.directives.disconnect import Disconnect, Disconnects
from fairlead.fleet.directives.disconnect_report import DisconnectReport
from fairlead_operator.metrics import Metrics
from fairlead_operator.operations.runner import OperationRunner

from support.operations import settled_fleet
from support.operator_world import OperatorNamespace


async def test_rebalance_moves_links_whatever_the_thresholds_and_completes(world: OperatorNamespace) -> None:
    reconciler, (one, two) = await settled_fleet(world)
    await world.beat(one, 108)
    await world.beat(two, 92)
    await world.operate("spread", type="Rebalance")
    assert (await world.reconcile(reconciler))["phase"] == "Rebalancing"
    await world.beat(one, 100, moved=8)
    await world.beat(two, 100)
    await world.reconcile(reconciler)
    await world.reconcile(reconciler)
    status = await world.operation("spread")
    assert (status["phase"], status["linksLeft"]) == ("Succeeded", 0)
    assert status["message"].startswith("8 links were moved")


async def reported(world: OperatorNamespace, uid: str, pod: str, *progress: int) -> None:
    """What the pod's node writes."""
    await Disconnects(world.store).report(uid, f"{pod}#epoch-of-{pod}", DisconnectReport(*progress))


async def test_disconnect_tells_the_nodes_and_completes_when_they_are_through(world: OperatorNamespace) -> None:
    reconciler, (one, two) = await settled_fleet(world)
    wanted = {"selector": "env=prod", "ratePerSecond": 20, "retryAfterSeconds": 5}
    body = await world.operate(
        "off", type="Disconnect", disconnect=wanted, reason="new keys", ttlSecondsAfterFinished=0
    )
    uid, directives = body["metadata"]["uid"], Disconnects(world.store)
    await world.reconcile(reconciler)
    read = await directives.read(uid)
    assert read is not None
    assert read == Disconnect(uid, "env=prod", (), 20.0, 5000, "new keys", read.began)
    await reported(world, uid, one, 100, 0, 12, 0)
    await world.reconcile(reconciler)
    status = await world.operation("off")
    assert (status["phase"], status["linksAtStart"], status["linksLeft"], status["disconnected"]) == (
        "Running", 100, 0, 12,
    )  # fmt: skip
    assert status["message"] == f"12 links closed, 0 of 100 left to look at; waiting for {two}"
    assert (await directives.read(uid)) == read  # renewed, not begun again
    await reported(world, uid, two, 101, 0, 3, 0)
    await world.reconcile(reconciler)
    status = await world.operation("off")
    assert (status["phase"], status["disconnected"]) == ("Succeeded", 15)
    assert await directives.current() == ("", 0)
    everything = await world.admin.items("LinkOperation", world.namespace)
    await OperationRunner(world.operator, Metrics()).delete_expired(everything)
    assert not await world.admin.items("LinkOperation", world.namespace)


async def test_cancelled_disconnect_is_withdrawn_by_whichever_operator_leads(world: OperatorNamespace) -> None:
    reconciler, _ = await settled_fleet(world)
    await world.operate("off", type="Disconnect", disconnect={"agents": ["web-1", "web-2"]})
    await world.reconcile(reconciler)
    directives = Disconnects(world.store)
    assert (await directives.current())[0]
    await world.admin.patch("LinkOperation", world.namespace, "off", {"spec": {"cancel": True}})
    body = await world.admin.get("LinkGateway", world.namespace, "edge")
    await world.reconcile(world.reconciler(body))  # a new leader, which has written nothing
    status = await world.operation("off")
    assert (status["phase"], status["message"]) == ("Failed", "cancelled")
    assert await directives.current() == ("", 0)
