"""Assembles the operator's process and runs it until a signal stops it.

It takes part in the leader election, watches the LinkGateways, runs the controller and serves its health. On SIGTERM it
releases the Lease at once, so that the other replica takes over within seconds. `main` imports it only to run the
operator.
"""

from __future__ import annotations

import asyncio
import logging
import signal

from kubernetes.aio.client import ApiClient

from fairlead.version import __version__
from fairlead_operator.kube.cluster import Cluster, configuration
from fairlead_operator.metrics import Metrics
from fairlead_operator.runtime.controller import Controller
from fairlead_operator.runtime.health import HealthServer
from fairlead_operator.runtime.leader_election import LeaderElector
from fairlead_operator.settings import OperatorSettings

logger = logging.getLogger("fairlead_operator")


async def run(settings: OperatorSettings) -> None:
    """Runs until SIGTERM or SIGINT."""
    client = ApiClient(await configuration())
    metrics = Metrics()
    unfenced = Cluster(client, lambda: None)
    elector = LeaderElector(unfenced, settings.namespace, settings.lease, settings.identity)
    controller = Controller(Cluster(client, elector.check), elector, settings.namespaces, settings.policies, metrics)
    health = HealthServer(controller, elector, metrics)
    try:
        address = await health.start(settings.host, settings.port)
        logger.info(
            "fairlead-operator %s as %s manages %s; health on %s",
            __version__, settings.identity, ", ".join(settings.namespaces) or "the whole cluster", address,
        )  # fmt: skip
        await _run_until_signal(controller, elector, unfenced)
    finally:
        await health.aclose()
        await unfenced.aclose()


async def _run_until_signal(controller: Controller, elector: LeaderElector, unfenced: Cluster) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    election = asyncio.create_task(elector.run_forever(controller.wake), name="leader election")
    rounds = asyncio.create_task(controller.run_forever(), name="controller")
    others = [
        asyncio.create_task(controller.informer.run_forever(unfenced), name="informer"),
        asyncio.create_task(stop.wait(), name="stop"),
    ]
    try:
        done, _ = await asyncio.wait([election, rounds, *others], return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()  # an error here is a defect: the process exits, and Kubernetes restarts it
    finally:
        # The controller first, so that no pass is running when the Lease is released.
        for task in (rounds, election, *others):
            task.cancel()
            await asyncio.wait([task], timeout=10.0)
