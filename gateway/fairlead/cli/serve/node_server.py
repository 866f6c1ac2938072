"""The body of `fairlead serve`: one node and its three ports, until a signal says stop.

Called by `node` with checked settings, and by `worker` in each of the processes of several. SIGTERM or Ctrl-C
drains first and ends with code 0; another one, a second later or more, ends at once. A node whose embedded Valkey has
ended drains as well, and ends with an error: whoever started it, a service manager as a rule, starts both again.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import resource
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import uvloop

from fairlead.app.access.guard import CredentialFailures
from fairlead.app.admin import admin_app
from fairlead.app.connection_close import closing_connections_while
from fairlead.app.factory import api_app, link_app
from fairlead.carrier.http_server.admission import ADMIN_LIMIT, Admission, admin_admission
from fairlead.carrier.http_server.uvicorn_server import SAME_STOP, Server, config
from fairlead.cli.child_processes import how
from fairlead.cli.serve.sockets import NodeSockets, own_ports
from fairlead.errors import ConfigError, FairleadError
from fairlead.node import Node
from fairlead.settings import Settings, split_list
from fairlead.store.embedded_valkey.server import EmbeddedValkey
from fairlead.telemetry.logs import configure_logging

logger = logging.getLogger("fairlead")

NOTICED = 2.0
"""Seconds after which most load balancers have noticed that a node is unready, where `shutdown_delay` says that there
are any. The kubelet, endpoints and an ingress controller take about as long."""
TOLD_TOO = 0.2
"""Seconds after the end of the embedded Valkey in which the node may learn that it is to stop as well: a service
manager may send SIGTERM to both."""
SPARE_FILES = 512
"""Descriptors beside links: connections without a token, callers of the API, the admin port, Redis, logs."""
OWN_FILES = 64
"""Of these for Redis, logs, the collector, and files that are opened for a moment."""
GC_THRESHOLD = 100_000
"""New containers between two young collections: the accept path makes no cycles, so there is little to find."""


def prepared(settings: Settings) -> Settings:
    """The settings as this process can hold them; it logs from here on."""
    configure_logging(settings.log_level, settings.log_format, settings.node if settings.log_format == "json" else "")
    return _with_files(settings)


def run(settings: Settings) -> int:
    """One node, until told to stop; the exit code."""
    return uvloop.run(_serve_alone(settings, own_ports(settings)))


async def _serve_alone(settings: Settings, ports: NodeSockets) -> int:
    if settings.redis != "embedded":
        await serve_node(settings, settings.redis, ports)
        return 0
    async with EmbeddedValkey(settings.data / "valkey") as valkey:
        await serve_node(settings, valkey.url, ports, valkey=valkey)
    return 0


async def serve_node(
    settings: Settings,
    redis_url: str,
    ports: NodeSockets,
    ready: Callable[[], None] | None = None,
    valkey: EmbeddedValkey | None = None,
    same_stop: float = SAME_STOP,
) -> None:
    """One node until it has drained. `ready` is called once everything listens. `valkey` is the node's own server, if
    it has one: when it ends before the node was told to stop, the node drains. Raises FairleadError then. Signals
    within `same_stop` seconds of the first belong to the same stop.
    """
    lost = ""
    async with Node(settings, redis_url) as node:
        failures = CredentialFailures(node.metrics.credentials_refused)
        public, probes = Admission(settings.unauthenticated_limit), admin_admission()
        api, admin, link = _servers(node, ports, failures, public, probes, same_stop)
        # What has been imported and made lives as long as the process: no collection need look at it again.
        gc.collect()
        gc.freeze()
        gc.set_threshold(GC_THRESHOLD, 50, 1000)
        async with asyncio.TaskGroup() as group:
            group.create_task(api.serve(ports.api))
            group.create_task(admin.serve(None if isinstance(ports.admin, Path) else ports.admin))
            group.create_task(_tell(node, {"links": link, "api": api, "admin": admin}, ready))
            watch = None if valkey is None else group.create_task(_stop_without(valkey, node, link))
            await link.serve(ports.link)
            if watch is not None:
                lost = watch.result() if watch.done() else ""
                watch.cancel()
            # Results and health are served until the last link has gone.
            node.release_followers()
            api.should_exit = admin.should_exit = True
        for told in (failures, public, probes):  # what their last second has not logged yet
            told.aclose()
    if lost:
        raise FairleadError(lost)


async def _stop_without(valkey: EmbeddedValkey, node: Node, link: Server) -> str:
    """Tell the node to stop when its Valkey has ended; returns what happened, "" when the node had been told before."""
    await valkey.ended()
    await asyncio.sleep(TOLD_TOO)
    if node.hub.draining:
        return ""
    lost = valkey_ended(valkey)
    logger.error("%s; this node stops", lost)
    link.stop()
    return lost


def valkey_ended(valkey: EmbeddedValkey) -> str:
    """How, in words."""
    return (
        f"the embedded Valkey ended {how(valkey.code)}, its log is {valkey.log_path}; what it has stored is kept: "
        "start the node again"
    )


def _servers(
    node: Node, ports: NodeSockets, failures: CredentialFailures, public: Admission, probes: Admission, same_stop: float
) -> tuple[Server, Server, Server]:
    settings, timer_wheel = node.settings, node.timer_wheel
    path = str(ports.admin) if isinstance(ports.admin, Path) else None
    node.metrics.add_gauge(
        "fairlead_unauthenticated_connections", "Connections that have not shown a valid token", lambda: len(public)
    )
    node.metrics.add_counter(
        "fairlead_connections_evicted_total",
        "Connections without a valid token that were closed to make room",
        lambda: public.evicted + probes.evicted,
    )
    proxies = split_list(settings.trusted_proxies)
    api = config(
        closing_connections_while(lambda: node.hub.draining, api_app(node, failures)),
        timer_wheel=timer_wheel, admission=public, trusted_proxies=proxies, stop_timeout=5,
    )  # fmt: skip
    admin = config(admin_app(node), path=path, timer_wheel=timer_wheel, admission=probes, stop_timeout=1)
    link = config(
        link_app(node, failures), timer_wheel=timer_wheel, context=node.connection_context, admission=public,
        trusted_proxies=proxies, stop_timeout=6,
    )  # fmt: skip
    return (
        Server(api, own_signals=False),
        Server(admin, own_signals=False),
        Server(link, on_stop=partial(_leave, node), same_stop=same_stop),
    )


async def _leave(node: Node) -> None:
    """What the first signal starts: the node is unready at once, drains, and serves for `shutdown_delay` at least.

    A load balancer learns later than the node itself that no more is to be sent here. A port that closed before would
    turn what it sends meanwhile into a 502. Agents are told to leave a moment later: one that left at once would often
    be led back here, and refused.
    """
    delay = node.settings.shutdown_delay
    node.hub.draining = True
    async with asyncio.TaskGroup() as group:
        group.create_task(asyncio.sleep(delay))
        await asyncio.sleep(min(NOTICED, delay / 2))
        await node.drain()


async def _tell(node: Node, servers: dict[str, Server], ready: Callable[[], None] | None) -> None:
    """Say where everything listens, once it does: ports may have been chosen by the system."""
    while not all(server.started for server in servers.values()):  # noqa: ASYNC110  # uvicorn announces nothing
        await asyncio.sleep(0.02)
    where = ", ".join(f"{name} on {server.where}" for name, server in servers.items())
    logger.info("node %s is ready: %s", node.settings.node, where)
    if ready is not None:
        ready()


def _with_files(settings: Settings) -> Settings:
    """Raise the soft limit of open files to the hard one, and cap by it what the settings allow: links, and of what is
    left for others the half for connections that have not shown a token."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    most = hard - SPARE_FILES
    if most < 1:
        raise ConfigError(f"this process may open {hard} files, {SPARE_FILES + 1} are the least: raise ulimit -n")
    if settings.capacity > most:
        logger.warning("capacity %d is cut to %d: this process may open %d files", settings.capacity, most, hard)
        settings = replace(settings, capacity=most)
    strangers = (hard - settings.capacity - ADMIN_LIMIT - OWN_FILES) // 2
    if settings.unauthenticated_limit > strangers:
        logger.info(
            "unauthenticated_limit %d is cut to %d: this process may open %d files, and %d are for links",
            settings.unauthenticated_limit, strangers, hard, settings.capacity,
        )  # fmt: skip
        settings = replace(settings, unauthenticated_limit=strangers)
    return settings
