"""`fairlead-operator`, also `python -m fairlead_operator`: reads arguments and environment, and runs the process.

Importing this module loads neither kopf nor the Kubernetes client, which take a second of CPU time: `--help`,
`simulate` and errors in settings do not need them.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys

from fairlead.errors import ConfigError, FairleadError
from fairlead.telemetry import logs
from fairlead.version import __version__
from fairlead_operator.settings import KNOWN, PREFIX, load
from fairlead_operator.simulator.command import simulate


def main() -> None:
    """Reads the configuration and runs until a signal arrives; exits with 2 when the configuration is invalid."""
    parser = argparse.ArgumentParser(
        prog="fairlead-operator",
        description="Deploys, scales and drains the gateway pods of every LinkGateway.",
        epilog="environment:\n"
        + "\n".join(f"  {PREFIX + name:<30} {text}" for name, text in KNOWN.items())
        + "\n  POD_NAME, POD_NAMESPACE        name and namespace of this pod; the Lease is in this namespace"
        + "\n  KUBECONFIG                     kubeconfig file of the cluster, outside a pod",
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
        from fairlead_operator.process import run

        logs.configure_logging(settings.log_level, settings.log_format)
        logging.getLogger("kopf").setLevel(max(logging.getLogger().level, logging.WARNING))
        logging.getLogger("kopf._core.reactor.running").setLevel(
            logging.ERROR
        )  # it warns that it does not handle signals
        asyncio.run(run(settings))
    except FairleadError as e:
        print(e.message, file=sys.stderr)
        sys.exit(2 if isinstance(e, ConfigError) else 1)
    except KeyboardInterrupt:
        sys.exit(130)
