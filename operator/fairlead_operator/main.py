"""`fairlead-operator`, also `python -m fairlead_operator`: the process, put together, until a signal stops it.

It takes part in the leader election, watches the LinkGateways, runs the controller and serves its health. On SIGTERM it
releases the Lease at once, so that the other replica takes over within seconds.
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
from fairlead_operator.runtime.health import HealthServer
from fairlead_operator.runtime.leader_election import LeaderElector
from fairlead_operator.settings import KNOWN, PREFIX, OperatorSettings, load
from fairlead_operator.simulator.command import simulate

logger = logging.getLogger("fairlead_operator")


def main() -> None:
    """Reads the configuration and runs until a signal arrives; exits with 2 when the configuration is invalid."""
    parser = argparse.ArgumentParser(
        prog="fairlead-operator",
        description="Deploys, scales and drains the gateway pods of every LinkGateway.",
        epilog="environment:\n"
        + "\n".join(f"  {PREFIX + name:<30} {text}" for name, text in KNOWN.items())
        + "\n  POD_NAME, POD_NAMESPACE        of this pod; the Lease is in that namespace"
        + "\n  KUBECONFIG                     the cluster, outside a pod",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", title="commands (the operator runs without one)")
    commands.add_parser("simulate", add_help=False, help="compare autoscalers on a modelled fleet; touches no cluster")
    options, others = parser.parse_known_args()
    if options.command == "simulate":
        sys.exit(simulate(others))
    if others:
        parser.error(f"unrecognized arguments: {' '.join(others)}")
    try:
        settings = load(os.environ)
        logs.configure_logging(settings.log_level, settings.log_format)
        logging.getLogger("kopf").setLevel(max(logging.getLogger().level, logging.WARNING))
        logging.getLogger("kopf._core.reactor.running").setLevel(
            logging.ERROR
        )  # it warns that it does not handle the signals
        asyncio.run(run(settings))
    except FairleadError as e:
        print(e.message, file=sys.stderr)
        sys.exit(2 if isinstance(e, ConfigError) else 1)
    except KeyboardInterrupt:
        sys.exit(130)


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
