"""The body of `fairlead serve`: one node and its three ports, until a signal says stop.

Called by the command line with checked settings. SIGTERM or Ctrl-C drains first and ends with code 0; a second
one ends at once.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import resource
import sys
from contextlib import AsyncExitStack

import uvloop

from fairlead.app.admin import admin_app
from fairlead.app.factory import api_app, link_app
from fairlead.carrier.server import Server, config
from fairlead.errors import ConfigError
from fairlead.node import Node
from fairlead.settings import Settings
from fairlead.store.embedded import EmbeddedValkey

logger = logging.getLogger("fairlead")

SPARE_FILES = 512
"""Descriptors beside links: API connections, Redis, logs."""
GC_THRESHOLD = 100_000
"""New containers between two young collections: the accept path makes no cycles, so there is little to find."""


def run(settings: Settings) -> int:
    """Serve until told to stop; the exit code."""
    logging.basicConfig(
        stream=sys.stderr,
        level=settings.log_level.upper(),
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
    )
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    return uvloop.run(_serve(_with_files(settings)))


async def _serve(settings: Settings) -> int:
    async with AsyncExitStack() as stack:
        url = settings.redis
        if url == "embedded":
            url = (await stack.enter_async_context(EmbeddedValkey(settings.data))).url
        node = await stack.enter_async_context(Node(settings, url))
        api, admin, link = _servers(node)
        # What has been imported and made lives as long as the process: no collection need look at it again.
        gc.collect()
        gc.freeze()
        gc.set_threshold(GC_THRESHOLD, 50, 1000)
        async with asyncio.TaskGroup() as group:
            for server in (api, admin):
                group.create_task(server.serve())
            group.create_task(_tell(node, {"links": link, "api": api, "admin": admin}))
            await link.serve()
            # Results and health are served until the last link has gone.
            api.should_exit = admin.should_exit = True
    return 0


def _servers(node: Node) -> tuple[Server, Server, Server]:
    settings, sweep = node.settings, node.sweep
    api = config(api_app(node), settings.api_host, settings.api_port, sweep=sweep, stop_timeout=5)
    admin = config(admin_app(node), settings.admin_host, settings.admin_port, sweep=sweep, stop_timeout=1)
    link = config(
        link_app(node), settings.link_host, settings.link_port, sweep=sweep,
        max_message=settings.message_limit, max_buffered=settings.queue_limit, stop_timeout=6,
    )  # fmt: skip
    return (
        Server(api, own_signals=False),
        Server(admin, own_signals=False),
        Server(link, on_stop=node.drain),
    )


async def _tell(node: Node, servers: dict[str, Server]) -> None:
    """Say where everything listens, once it does: ports may have been chosen by the system."""
    while not all(server.started for server in servers.values()):  # noqa: ASYNC110  # uvicorn announces nothing
        await asyncio.sleep(0.02)
    where = ", ".join(f"{name} on {s.address[0]}:{s.address[1]}" for name, s in servers.items())
    logger.info("node %s is ready: %s", node.settings.node, where)


def _with_files(settings: Settings) -> Settings:
    """Raise the soft limit of open files to the hard one, and cap the capacity by it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    most = hard - SPARE_FILES
    if most < 1:
        raise ConfigError(f"this process may open {hard} files, {SPARE_FILES + 1} are the least: raise ulimit -n")
    if settings.capacity <= most:
        return settings
    logger.warning("capacity %d is cut to %d: this process may open %d files", settings.capacity, most, hard)
    from dataclasses import replace

    return replace(settings, capacity=most)
