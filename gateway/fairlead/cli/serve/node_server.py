"""Runs one gateway node and its three servers until a signal stops it.

Called by `fairlead serve` with checked settings, and in each worker process. On SIGTERM or Ctrl-C the node drains and
exits with code 0; another signal, at least a second later, ends it at once. A node whose embedded Valkey has ended
drains as well and exits with an error, so that whatever started it, usually a service manager, starts both again.
"""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import uvloop

from fairlead.app.access.guard import CredentialFailures
from fairlead.app.admin import admin_app
from fairlead.app.connection_close import closing_connections_while, load_lazy_parts
from fairlead.app.factory import LINK_PATH, api_app, enrolment_routes, link_app, link_endpoint
from fairlead.carrier.epoll.poller import AVAILABLE
from fairlead.carrier.http_server.admission import Admission, admin_admission
from fairlead.carrier.http_server.link_acceptor import DirectEndpoint
from fairlead.carrier.http_server.uvicorn_server import SAME_STOP, Server, config
from fairlead.cli.child_processes import describe_exit
from fairlead.cli.serve.certificates import Certificates
from fairlead.cli.serve.file_limits import fit_to_open_files
from fairlead.cli.serve.process_memory import return_memory
from fairlead.cli.serve.sockets import NodeSockets, bind_node
from fairlead.errors import FairleadError
from fairlead.node import Node
from fairlead.settings import Settings, split_list
from fairlead.store.embedded_valkey.server import SYNC_ALWAYS, EmbeddedValkey
from fairlead.telemetry.logs import configure_logging

logger = logging.getLogger("fairlead")

NOTICE_TIME = 2.0
"""Seconds within which most load balancers notice that a node is not ready; used if `shutdown_delay` is set. The
kubelet, the endpoints and an ingress controller together take about as long."""
VALKEY_GRACE = 0.2
"""Seconds after the end of the embedded Valkey in which the node may be told to stop too: a service manager may send
SIGTERM to both."""
GC_THRESHOLD = 100_000
"""The garbage collector's threshold for the youngest generation: accepting links creates no cycles, so there is little
to collect."""


def prepare(settings: Settings) -> Settings:
    """Set up logging, and adjust the settings to the files that this process may open. Raises ConfigError."""
    configure_logging(settings.log_level, settings.log_format, settings.node if settings.log_format == "json" else "")
    return fit_to_open_files(settings)


def run(settings: Settings) -> int:
    """Run one node until it is told to stop; returns the exit code. Raises FairleadError."""
    return uvloop.run(_serve_alone(settings, bind_node(settings)))


async def _serve_alone(settings: Settings, sockets: NodeSockets) -> int:
    if settings.redis != "embedded":
        await serve_node(settings, settings.redis, sockets)
        return 0
    async with EmbeddedValkey(
        settings.data / "valkey", options=SYNC_ALWAYS if settings.durability == "fsync" else ()
    ) as valkey:
        await serve_node(settings, valkey.url, sockets, valkey=valkey)
    return 0


@dataclass(frozen=True, slots=True)
class _Servers:
    """The three servers of a node, and what they share: the record of failed credentials, and the limits of connections
    without a token.
    """

    link: Server
    api: Server
    admin: Server
    limits: tuple[CredentialFailures, Admission, Admission]

    @property
    def named(self) -> dict[str, Server]:
        return {"links": self.link, "api": self.api, "admin": self.admin}


async def serve_node(
    settings: Settings,
    redis_url: str,
    sockets: NodeSockets,
    ready: Callable[[], None] | None = None,
    valkey: EmbeddedValkey | None = None,
    same_stop: float = SAME_STOP,
) -> None:
    """Run one node until it has drained. `ready` is called once all servers listen.

    `valkey` is the node's embedded server, if it has one: when that ends before the node is told to stop, the node
    drains, and this raises FairleadError. Signals within `same_stop` seconds of the first belong to the same stop.
    """
    lost = ""
    async with Node(settings, redis_url, sockets.siblings) as node:
        certificates = Certificates(settings, node.metrics)
        servers = _make_servers(node, sockets, same_stop, certificates)
        await load_lazy_parts()
        # Whatever has been imported and created so far lives as long as the process, so no collection needs to examine
        # it again.
        gc.collect()
        gc.freeze()
        gc.set_threshold(GC_THRESHOLD, 50, 1000)
        async with asyncio.TaskGroup() as group:
            group.create_task(servers.api.serve(sockets.api))
            group.create_task(servers.admin.serve(None if isinstance(sockets.admin, Path) else sockets.admin))
            group.create_task(_announce(node, servers, ready))
            returning = group.create_task(return_memory())
            watched = group.create_task(certificates.watch(node.trust_changed)) if certificates else None
            watch = None if valkey is None else group.create_task(_stop_without(valkey, node, servers.link))
            await servers.link.serve(sockets.link)
            if watch is not None:
                lost = watch.result() if watch.done() else ""
                watch.cancel()
            if watched is not None:
                watched.cancel()
            returning.cancel()
            # Results and probes are served until the last link has gone.
            node.release_followers()
            servers.api.should_exit = servers.admin.should_exit = True
        for limit in servers.limits:  # closing one logs what it refused in the last second
            limit.aclose()
    if lost:
        raise FairleadError(lost)


async def _stop_without(valkey: EmbeddedValkey, node: Node, link: Server) -> str:
    """Stop the node when its Valkey has ended. Returns what happened, "" if the node had been told to stop before."""
    await valkey.ended()
    await asyncio.sleep(VALKEY_GRACE)
    if node.hub.draining:
        return ""
    lost = describe_valkey_end(valkey)
    logger.error("%s; this node stops", lost)
    link.stop()
    return lost


def describe_valkey_end(valkey: EmbeddedValkey) -> str:
    return (
        f"the embedded Valkey ended {describe_exit(valkey.code)}, its log is {valkey.log_path}; its stored data is "
        "kept: start the node again"
    )


def _make_servers(node: Node, sockets: NodeSockets, same_stop: float, certificates: Certificates) -> _Servers:
    settings, timer_wheel = node.settings, node.timer_wheel
    failures = CredentialFailures(node.metrics.credentials_refused)
    public, probes = Admission(settings.unauthenticated_limit), admin_admission()
    path = str(sockets.admin) if isinstance(sockets.admin, Path) else None
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
        certificate=certificates.api,
    )  # fmt: skip
    admin = config(admin_app(node), path=path, timer_wheel=timer_wheel, admission=probes, stop_timeout=1)
    endpoint = link_endpoint(node, failures)
    link = config(
        link_app(endpoint, enrolment_routes(node, failures)), timer_wheel=timer_wheel,
        context=node.connection_context, admission=public,
        trusted_proxies=proxies, stop_timeout=6, epoll=_links_on_epoll(settings),
        direct=DirectEndpoint(LINK_PATH.encode(), endpoint.take, endpoint.available, sockets.share),
        certificate=certificates.link,
    )  # fmt: skip
    return _Servers(
        Server(link, on_stop=partial(_drain, node), same_stop=same_stop),
        Server(api, own_signals=False),
        Server(admin, own_signals=False),
        (failures, public, probes),
    )


def accepts_on_epoll(settings: Settings) -> bool:
    """Whether the link port's connections are accepted on epoll, by processes that may share its sockets."""
    return AVAILABLE and (settings.link_transport == "epoll" or settings.link_tls_cert is not None)


def _links_on_epoll(settings: Settings) -> bool:
    """Whether links are served by epoll instead of the event loop's transports. If that is configured but impossible,
    the log says so once.
    """
    if settings.link_transport != "epoll":
        return False
    if not AVAILABLE:
        logger.info("links stay on the transports of the event loop: link_transport = epoll needs Linux")
    return AVAILABLE


async def _drain(node: Node) -> None:
    """Drain the node, after the first signal. It is unready at once, and keeps serving for at least `shutdown_delay`.

    A load balancer notices with a delay that it should send nothing more to this node. If the port closed before that,
    what the load balancer still sends would end in a 502. Agents are told to leave a moment later: an agent that left
    at once would often be sent back here and refused.
    """
    delay = node.settings.shutdown_delay
    node.begin_drain()
    async with asyncio.TaskGroup() as group:
        group.create_task(asyncio.sleep(delay))
        await asyncio.sleep(min(NOTICE_TIME, delay / 2))
        await node.drain()


async def _announce(node: Node, servers: _Servers, ready: Callable[[], None] | None) -> None:
    """Log where all servers listen, once they do: the kernel may have chosen their ports."""
    named = servers.named
    while not all(server.started for server in named.values()):  # noqa: ASYNC110  # uvicorn announces nothing
        await asyncio.sleep(0.02)
    where = ", ".join(f"{name} on {server.where}" for name, server in named.items())
    logger.info("node %s is ready: %s", node.settings.node, where)
    if ready is not None:
        ready()
