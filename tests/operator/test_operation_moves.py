"""LinkOperations that move or close links: Rebalance and Disconnect on a real API server and a real Redis."""

from __future__ import annotations

from fairlead.fleet.directives.disconnect import Disconnect, Disconnects
from fairlead.fleet.directives.disconnect_report import DisconnectReport
from fairlead_operator.metrics import Metrics
from fairlead_operator.operations.runner import OperationRunner

from support.operations import settled_fleet
from support.operator_namespace import OperatorNamespace


async def test_rebalance_moves_links_whatever_the_thresholds_and_completes(namespace: OperatorNamespace) -> None:
    reconciler, (one, two) = await settled_fleet(namespace)
    await namespace.beat(one, 108)
    await namespace.beat(two, 92)
    await namespace.operate("spread", type="Rebalance")
    assert (await namespace.reconcile(reconciler))["phase"] == "Rebalancing"
    await namespace.beat(one, 100, moved=8)
    await namespace.beat(two, 100)
    await namespace.reconcile(reconciler)
    await namespace.reconcile(reconciler)
    status = await namespace.operation("spread")
    assert (status["phase"], status["linksLeft"]) == ("Succeeded", 0)
    assert status["message"].startswith("8 links were moved")


async def reported(namespace: OperatorNamespace, uid: str, pod: str, *progress: int) -> None:
    """What the pod's node writes."""
    await Disconnects(namespace.store).report(uid, f"{pod}#epoch-of-{pod}", DisconnectReport(*progress))


async def test_disconnect_tells_the_nodes_and_completes_when_they_are_through(namespace: OperatorNamespace) -> None:
    reconciler, (one, two) = await settled_fleet(namespace)
    wanted = {"selector": "env=prod", "ratePerSecond": 20, "retryAfterSeconds": 5}
    body = await namespace.operate(
        "off", type="Disconnect", disconnect=wanted, reason="new keys", ttlSecondsAfterFinished=0
    )
    uid, directives = body["metadata"]["uid"], Disconnects(namespace.store)
    await namespace.reconcile(reconciler)
    read = await directives.read(uid)
    assert read is not None
    assert read == Disconnect(uid, "env=prod", (), 20.0, 5000, "new keys", read.began)
    await reported(namespace, uid, one, 100, 0, 12, 0)
    await namespace.reconcile(reconciler)
    status = await namespace.operation("off")
    assert (status["phase"], status["linksAtStart"], status["linksLeft"], status["disconnected"]) == (
        "Running", 100, 0, 12,
    )  # fmt: skip
    assert status["message"] == f"12 links closed, 0 of 100 left to look at; waiting for {two}"
    assert (await directives.read(uid)) == read  # renewed, not begun again
    await reported(namespace, uid, two, 101, 0, 3, 0)
    await namespace.reconcile(reconciler)
    status = await namespace.operation("off")
    assert (status["phase"], status["disconnected"]) == ("Succeeded", 15)
    assert await directives.current() == ("", 0)
    everything = await namespace.admin.items("LinkOperation", namespace.name)
    await OperationRunner(namespace.operator, Metrics()).delete_expired(everything)
    assert not await namespace.admin.items("LinkOperation", namespace.name)


async def test_cancelled_disconnect_is_withdrawn_by_whichever_operator_leads(namespace: OperatorNamespace) -> None:
    reconciler, _ = await settled_fleet(namespace)
    await namespace.operate("off", type="Disconnect", disconnect={"agents": ["web-1", "web-2"]})
    await namespace.reconcile(reconciler)
    directives = Disconnects(namespace.store)
    assert (await directives.current())[0]
    await namespace.admin.patch("LinkOperation", namespace.name, "off", {"spec": {"cancel": True}})
    body = await namespace.admin.get("LinkGateway", namespace.name, "edge")
    await namespace.reconcile(namespace.reconciler(body))  # a new leader, which has written nothing
    status = await namespace.operation("off")
    assert (status["phase"], status["message"]) == ("Failed", "cancelled")
    assert await directives.current() == ("", 0)
