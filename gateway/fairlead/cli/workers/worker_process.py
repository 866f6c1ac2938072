"""What the processes of `fairlead serve --workers N` run: a node each, and in one more the shared admin port.

Called by the supervisor after a fork. A child reports that it is ready on the pipe that wakes the supervisor, and says
nothing else to it; what the supervisor tells the process of the admin port is in `shared_status`.
"""

from __future__ import annotations

import asyncio
import math
import os
import shutil
import signal
import socket
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import uvloop

from fairlead.bus.sibling_doorbells import SiblingSockets
from fairlead.carrier.accept.worker_loads import PortShare, WorkerLoads
from fairlead.carrier.http_server.admission import admin_admission
from fairlead.carrier.http_server.uvicorn_server import Server, config
from fairlead.carrier.timer_wheel import TimerWheel
from fairlead.cli.serve.node_server import serve_node
from fairlead.cli.serve.sockets import NodeSockets, bind
from fairlead.cli.workers.admin_app import Worker, shared_admin_app
from fairlead.cli.workers.shared_status import SharedStatus
from fairlead.settings import Settings
from fairlead.telemetry.logs import configure_logging

READY = 128
"""A worker writes this plus its number to the wake-up pipe; smaller bytes are numbers of signals. The process of the
admin port has the number after the last worker's."""
STOP_ADMIN = signal.SIGUSR1
"""Tells the process of the admin port to stop; the supervisor sends it, or the kernel when the supervisor has died."""


@dataclass(frozen=True, slots=True)
class InheritedSockets:
    """The sockets of the supervisor that each of its processes has inherited, of which it closes those that it does not
    use: a port would otherwise stay open when the processes that serve it have ended."""

    link: list[socket.socket]
    """From which all workers accept; empty if each of them binds its own."""
    loads: WorkerLoads
    admin: list[socket.socket]
    siblings: SiblingSockets


def run_worker(settings: Settings, redis_url: str, worker: Worker, inherited: InheritedSockets, wake_fd: int) -> None:
    """Run a worker process. It drains when it receives a stop signal, from whomever and however often.

    A service manager may signal every process, and the supervisor passes on the signals that it receives. To cut the
    drain short, signal the supervisor, which then kills the workers. `wake_fd` is the writing end of the supervisor's
    pipe.
    """
    for one in inherited.admin:
        one.close()
    configure_logging(settings.log_level, settings.log_format, settings.node)
    sockets = NodeSockets(
        inherited.link or bind("link", settings.link_host, settings.link_port, shared=True),
        bind("api", settings.api_host, settings.api_port, shared=True),
        worker.path,
        PortShare(inherited.loads, worker.number) if inherited.link else None,
        inherited.siblings.of(worker.node),
    )
    ready = partial(_write_byte, wake_fd, READY + worker.number)
    uvloop.run(serve_node(settings, redis_url, sockets, ready, same_stop=math.inf))


def _write_byte(fd: int, byte: int) -> None:
    os.write(fd, bytes((byte,)))


def run_admin(
    workers: list[Worker], status: SharedStatus, inherited: InheritedSockets, folder: Path, wake_fd: int
) -> None:
    """Run the process that serves the admin port, until `STOP_ADMIN`.

    It ignores the signals that tell the workers to stop, because it reports which of them still drain until the last
    has ended.
    """
    for one in inherited.link:
        one.close()
    supervisor = os.getppid()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)

    async def serve() -> None:
        async with TimerWheel() as timer_wheel:
            server = Server(
                config(
                    shared_admin_app(workers, status),
                    timer_wheel=timer_wheel,
                    admission=admin_admission(),
                    stop_timeout=1,
                ),
                own_signals=False,
            )
            asyncio.get_running_loop().add_signal_handler(STOP_ADMIN, server.stop)
            async with asyncio.TaskGroup() as group:
                group.create_task(server.serve(inherited.admin))
                while not server.started:  # noqa: ASYNC110  # uvicorn announces nothing
                    await asyncio.sleep(0.02)
                _write_byte(wake_fd, READY + len(workers))

    uvloop.run(serve())
    if os.getppid() != supervisor:
        shutil.rmtree(folder, ignore_errors=True)  # the supervisor was killed, and cannot do it
