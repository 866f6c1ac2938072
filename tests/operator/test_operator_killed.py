"""The operator's process is killed in the middle of a canary: what holds without it, and what the next one continues.

The API server, the controllers, Redis and the operators are real. The kubelets are played.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from fairlead.fleet.reports.traffic import Traffic
from fairlead_operator.kube.objects import Object
from fairlead_operator.kube.workload_status import is_terminating

from support.operator_namespace import OperatorNamespace, condition
from support.operator_replica import Replica

OLD, NEW = "fairlead/gateway:test", "fairlead/gateway:next"
TAKEOVER = 90.0
"""Seconds for a new leader and its first passes; it takes some 25 on an idle machine."""


async def images(namespace: OperatorNamespace) -> dict[str, str]:
    """The image of each pod that stays."""
    return {
        pod["metadata"]["name"]: pod["spec"]["containers"][0]["image"]
        for pod in await namespace.pods()
        if not is_terminating(pod)
    }


async def status_of(namespace: OperatorNamespace) -> Object:
    status: Object = (await namespace.admin.get("LinkGateway", namespace.name, "edge")).get("status", {})
    return status


@asynccontextmanager
async def reporting(namespace: OperatorNamespace, traffic: dict[str, Traffic]) -> AsyncIterator[None]:
    """The node of each pod in `traffic` reports it as what it has served."""

    async def beat() -> None:
        while True:
            for name, served in list(traffic.items()):
                await namespace.beat(name, 100, traffic=served)
            await asyncio.sleep(1)

    beating = asyncio.create_task(beat())
    try:
        yield
    finally:
        beating.cancel()
        await asyncio.wait([beating])


@pytest.mark.long
@pytest.mark.timeout(400)
async def test_canary_is_held_while_no_operator_runs_and_judged_by_the_next_one(
    namespace: OperatorNamespace, start: Callable[..., Replica]
) -> None:
    canary = {"percent": 10, "seconds": 86_400, "minLinks": 10}
    await namespace.gateway(rollout={"canary": canary}, rollingUpdate={"minReadySeconds": 0})
    a = start("a")

    async def scaled() -> bool:
        found = await namespace.admin.find("Deployment", namespace.name, "edge")
        return found is not None and found["spec"]["replicas"] == 2

    await namespace.until("two pods to be asked for", scaled, TAKEOVER)
    old = await namespace.run_pods(2)
    traffic = {name: Traffic(accepted=1000, lost=7) for name in old}

    async def pods_of_canary() -> list[str]:
        return [name for name, image in (await images(namespace)).items() if image == NEW]

    async with reporting(namespace, traffic):
        await namespace.admin.patch("LinkGateway", namespace.name, "edge", {"spec": {"image": NEW}})
        (new,) = await namespace.until("a pod of the new template", pods_of_canary, TAKEOVER)
        await namespace.run(new)
        traffic[new] = Traffic()

        async def compared() -> bool:
            return bool(((await status_of(namespace)).get("canary") or {}).get("watchedSeconds", 0) > 0)

        await namespace.until("the canary to be compared", compared, TAKEOVER)
        a.process.kill()
        a.process.wait(10)
        # The bad template begins to show while nobody looks.
        traffic[new] = Traffic(accepted=40, lost=30)
        for name in old:
            traffic[name] += Traffic(accepted=40)
        b = start("b")
        seen = set()

        async def failed() -> bool:
            # Only what happens while an operator looks counts, and the status does not tell when this one began.
            traffic[new] += Traffic(accepted=4, lost=3)
            for name in old:
                traffic[name] += Traffic(accepted=4)
            seen.add(tuple(sorted((await images(namespace)).items())))
            return bool((await status_of(namespace))["canary"]["state"] == "Failed")

        await namespace.until("b to lead", b.leads, TAKEOVER)
        await namespace.until("b to see what is wrong", failed, TAKEOVER)
        both = {OLD: 2, NEW: 1}
        for one in seen:
            names = dict(one)
            assert set(old) <= names.keys(), "no pod of the accepted template went"
            assert sum(image == NEW for image in names.values()) <= both[NEW], "the template reached no other pod"

        async def gone() -> bool:
            return await images(namespace) == dict.fromkeys(old, OLD)

        await namespace.until("the canary to go", gone, TAKEOVER)
    held, reason, message = condition(await status_of(namespace), "CanarySucceeded")
    assert (held, reason) == ("False", "LinksLost"), message
    begun = [text for reason, text in await namespace.events() if reason == "CanaryStarted"]
    assert len(begun) == 1, "the next operator continues the canary"
    assert "Traceback" not in a.log() + b.log(), b.log()
