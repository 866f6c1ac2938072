"""`fairlead-operator`, also `python -m fairlead_operator`: the process, put together, until a signal says stop.

It holds or follows the lease, streams the LinkGateways, runs the loop and serves its health. SIGTERM gives the lease up
at once, so that the other replica takes over within seconds.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import sys

from kubernetes.aio.client import ApiClient

from fairlead.errors import ConfigError, FairleadError
from fairlead.telemetry import logs
from fairlead.version import __version__
from fairlead_operator.kube.cluster import Cluster, configuration
from fairlead_operator.metrics import Metrics
from fairlead_operator.runtime.controller import Controller
from fairlead_operator.runtime.health import Health
from fairlead_operator.runtime.leader_election import LeaderElector
from fairlead_operator.settings import KNOWN, PREFIX, OperatorSettings, load

logger = logging.getLogger("fairlead_operator")


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="fairlead-operator",
        description="Deploys, scales and drains the gateway pods of every LinkGateway.",
        epilog="environment:\n"
        + "\n".join(f"  {PREFIX + name:<30} {text}" for name, text in KNOWN.items())
        + "\n  POD_NAME, POD_NAMESPACE        of this pod; the Lease stands in that namespace"
        + "\n  KUBECONFIG                     outside a pod: the cluster",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=__version__)
    parser.parse_args()
    try:
        settings = load(os.environ)
        logs.configure_logging(settings.log_level, settings.log_format)
        logging.getLogger("kopf").setLevel(max(logging.getLogger().level, logging.WARNING))
        logging.getLogger("kopf._core.reactor.running").setLevel(logging.ERROR)  # warns of not owning the signals
        asyncio.run(run(settings))
    except FairleadError as e:
        print(e.message, file=sys.stderr)
        sys.exit(2 if isinstance(e, ConfigError) else 1)
    except KeyboardInterrupt:
        sys.exit(130)


async def run(settings: OperatorSettings) -> None:
    """Until SIGTERM or SIGINT."""
    client = ApiClient(await configuration())
    metrics = Metrics()
    unfenced = Cluster(client, lambda: None)
    lease = LeaderElector(unfenced, settings.namespace, settings.lease, settings.identity)
    watch = Controller(Cluster(client, lease.check), lease, settings.namespaces, settings.policies, metrics)
    health = Health(watch, lease, metrics)
    try:
        where = await health.start(settings.host, settings.port)
        logger.info(
            "fairlead-operator %s as %s looks after %s; health on %s",
            __version__, settings.identity, ", ".join(settings.namespaces) or "the whole cluster", where,
        )  # fmt: skip
        await _run_until_told(watch, lease, unfenced)
    finally:
        await health.aclose()
        await unfenced.aclose()


async def _run_until_told(watch: Controller, lease: LeaderElector, unfenced: Cluster) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    tasks = [
        asyncio.create_task(lease.hold_forever(watch.wake), name="lease"),
        asyncio.create_task(watch.run_forever(), name="loop"),
        asyncio.create_task(watch.view.run_forever(unfenced), name="view"),
        asyncio.create_task(stop.wait(), name="stop"),
    ]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()  # a loop that ended by an error is a defect: the process ends with it, and is restarted
    finally:
        # The loop first, so that nothing is under way when the lease is given up.
        for task in (tasks[1], tasks[0], *tasks[2:]):
            task.cancel()
            await asyncio.wait([task], timeout=10.0)
