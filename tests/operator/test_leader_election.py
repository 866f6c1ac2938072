"""Leader election against a real API server: one leader, which stops writing before a silent one is replaced."""

from __future__ import annotations

import asyncio

import pytest

from fairlead_operator.kube.errors import NotLeader
from fairlead_operator.runtime.leader_election import LEASE_DURATION, RENEW_DEADLINE, LeaderElector

from support.operator_namespace import OperatorNamespace


class ElectionClock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def lease(namespace: OperatorNamespace, who: str, clock: ElectionClock) -> LeaderElector:
    return LeaderElector(namespace.operator, namespace.name, "operators", who, clock)


async def looked(one: LeaderElector, times: int = 1) -> None:
    """As run_forever does it, without its pauses and without releasing the Lease at the end."""
    for _ in range(times):
        await one.try_acquire_or_renew()


async def test_first_replica_leads_and_the_second_follows(namespace: OperatorNamespace) -> None:
    clock = ElectionClock()
    a, b = lease(namespace, "a", clock), lease(namespace, "b", clock)
    await looked(a)
    await looked(b, 2)
    assert (a.leads, b.leads, b.holder) == (True, False, "a")
    a.check()
    with pytest.raises(NotLeader, match="does not hold the Lease operators"):
        b.check()


async def test_leader_that_renews_is_never_replaced(namespace: OperatorNamespace) -> None:
    clock = ElectionClock()
    a, b = lease(namespace, "a", clock), lease(namespace, "b", clock)
    for _ in range(12):
        await looked(a)
        await looked(b)
        clock.now += 2
        assert (a.leads, b.leads) == (True, False)


async def test_silent_leader_stops_writing_before_another_takes_over(namespace: OperatorNamespace) -> None:
    clock = ElectionClock()
    a, b = lease(namespace, "a", clock), lease(namespace, "b", clock)
    await looked(a)
    await looked(b)
    clock.now = RENEW_DEADLINE + 0.01
    await looked(b)
    assert (a.leads, b.leads) == (False, False)
    clock.now = LEASE_DURATION + 0.01
    await looked(b)
    assert (a.leads, b.leads) == (False, True)
    await looked(a)  # it wakes, and sees who leads
    assert (a.leads, a.holder) == (False, "b")
    found = await namespace.admin.get("Lease", namespace.name, "operators")
    assert (found["spec"]["holderIdentity"], found["spec"]["leaseTransitions"]) == ("b", 1)


async def test_of_two_replicas_that_acquire_at_once_one_leads(namespace: OperatorNamespace) -> None:
    clock = ElectionClock()
    a, b, c = (lease(namespace, who, clock) for who in "abc")
    await looked(a)
    await looked(b)
    await looked(c)
    clock.now = LEASE_DURATION + 1
    await asyncio.gather(b.try_acquire_or_renew(), c.try_acquire_or_renew())
    assert [b.leads, c.leads].count(True) == 1


async def test_released_lease_is_taken_at_once(namespace: OperatorNamespace) -> None:
    meta = {"name": "operators", "namespace": namespace.name, "labels": {"made-by": "chart"}}
    await namespace.admin.create({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": meta})
    clock = ElectionClock()
    a, b = lease(namespace, "a", clock), lease(namespace, "b", clock)
    turns: list[bool] = []
    holding = asyncio.create_task(a.run_forever(lambda: turns.append(a.leads)))

    async def held() -> bool:
        return a.leads

    await namespace.until("the lease", held)

    async def reported() -> bool:
        return turns == [True]

    await namespace.until("whoever acts to be told", reported)
    await looked(b)
    assert not b.leads
    holding.cancel()
    await asyncio.wait([holding])
    assert not a.leads
    await looked(b)
    assert b.leads
    found = await namespace.admin.get("Lease", namespace.name, "operators")
    assert found["metadata"]["labels"] == {"made-by": "chart"}


async def test_deleted_lease_has_one_leader_after_the_next_read(namespace: OperatorNamespace) -> None:
    clock = ElectionClock()
    a, b = lease(namespace, "a", clock), lease(namespace, "b", clock)
    await looked(a)
    found = await namespace.admin.get("Lease", namespace.name, "operators")
    await namespace.admin.delete("Lease", namespace.name, "operators", found["metadata"]["uid"])
    await looked(b)
    await looked(a)
    assert (a.leads, b.leads) == (False, True)


async def test_elector_without_the_right_reports_it(namespace: OperatorNamespace) -> None:
    await namespace.allow()
    one = lease(namespace, "a", ElectionClock())
    await looked(one)
    assert not one.leads
    assert 'cannot get resource "leases"' in one.problem
