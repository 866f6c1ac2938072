"""What the processes of `fairlead serve --workers N` do: each worker is a node, and one more serves the admin port.

Run by the supervisor (`workers`) behind a fork. A child says that it is ready on the pipe that wakes the supervisor,
and that is all they say to each other: what the supervisor knows stands on the board.
"""

from __future__ import annotations

import asyncio
import math
import os
import shutil
import signal
import socket
from functools import partial
from pathlib import Path

import uvloop

from fairlead.app.board import Board
from fairlead.app.merged import Worker, merged_app
from fairlead.carrier.http_server.admission import admin_admission
from fairlead.carrier.http_server.uvicorn_server import Server, config
from fairlead.carrier.timer_wheel import TimerWheel
from fairlead.cli.serve.node_server import serve_node
from fairlead.cli.serve.sockets import NodeSockets, bind
from fairlead.settings import Settings
from fairlead.telemetry.logs import configure_logging

READY = 128
"""A worker writes this plus its number to the wake-up pipe; bytes below are numbers of signals. The admin port has
the number behind the last worker's.
"""
STOP_ADMIN = signal.SIGUSR1
"""Tells the process of the admin port to stop: from its supervisor, or from the kernel when that has died."""


def work(settings: Settings, redis_url: str, worker: Worker, admin: list[socket.socket], mouth: int) -> None:
    """A worker's life, in its own process. It drains once it is told to stop, by whomever and however often: a manager
    may tell every process, and the supervisor hands on what it is told. Whoever wants the drain cut short tells the
    supervisor, which kills.
    """
    for one in admin:
        one.close()  # a worker that outlives its supervisor would keep the port, and answer nobody there
    configure_logging(settings.log_level, settings.log_format, settings.node)
    ports = NodeSockets(
        bind("link", settings.link_host, settings.link_port, shared=True),
        bind("api", settings.api_host, settings.api_port, shared=True),
        worker.path,
    )
    ready = partial(_say, mouth, READY + worker.number)
    uvloop.run(serve_node(settings, redis_url, ports, ready, same_stop=math.inf))


def _say(mouth: int, byte: int) -> None:
    os.write(mouth, bytes((byte,)))


def administer(workers: list[Worker], board: Board, sockets: list[socket.socket], folder: Path, mouth: int) -> None:
    """The life of the process that serves the admin port, until `STOP_ADMIN`. It ignores what tells the workers to
    stop, since it says who still drains until the last of them has ended.
    """
    supervisor = os.getppid()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)

    async def serve() -> None:
        async with TimerWheel() as timer_wheel:
            server = Server(
                config(
                    merged_app(workers, board), timer_wheel=timer_wheel, admission=admin_admission(), stop_timeout=1
                ),
                own_signals=False,
            )
            asyncio.get_running_loop().add_signal_handler(STOP_ADMIN, server.stop)
            async with asyncio.TaskGroup() as group:
                group.create_task(server.serve(sockets))
                while not server.started:  # noqa: ASYNC110  # uvicorn announces nothing
                    await asyncio.sleep(0.02)
                _say(mouth, READY + len(workers))

    uvloop.run(serve())
    if os.getppid() != supervisor:
        shutil.rmtree(folder, ignore_errors=True)  # who would have done it was killed
