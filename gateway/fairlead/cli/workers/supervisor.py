"""`fairlead serve --workers N`: the supervisor of N nodes that share the link port and the API port.

Called by `node`. A plain loop over signals and `waitpid`, and that for two reasons: every process, restarted ones
too, is forked from it, and a process with an event loop or threads must not fork; and what supervises must
have nothing that can hang. So it serves nothing: the admin port belongs to one more child, restarted like the
rest. Each worker is a node of its own in the fleet, NODE-0 to NODE-(N-1), and counted apart.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import math
import os
import select
import signal
import socket
import sys
import time
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from fairlead.app.board import Board
from fairlead.app.merged import Worker
from fairlead.carrier.http_server.uvicorn_server import SAME_STOP
from fairlead.cli import exit_codes
from fairlead.cli.child_processes import how
from fairlead.cli.serve.node_server import valkey_ended
from fairlead.cli.serve.sockets import bind, reserve
from fairlead.cli.workers.forked_process import SIGNALS, ForkedProcess
from fairlead.cli.workers.worker_process import READY, STOP_ADMIN, administer, work
from fairlead.errors import ConfigError
from fairlead.settings import Settings
from fairlead.store.embedded_valkey.server import EmbeddedValkey

logger = logging.getLogger("fairlead")

TURN = 1.0
"""Seconds of the longest wait, so that /livez can tell a loop that turns from one that does not."""
STOP_SPARE = 30.0
"""Seconds for what follows a worker's drain: open requests, the last results, Redis. Then SIGKILL."""


class Supervisor:
    def __init__(self, settings: Settings) -> None:
        if sys.platform != "linux":
            raise ConfigError("workers above 1 need Linux, which spreads connections over them and ends them with us")
        self._settings = settings
        self._board = Board(settings.workers)
        self._workers: list[ForkedProcess] = []
        self._admin: ForkedProcess | None = None
        self._ready: set[int] = set()
        self._where = ""
        self._complete = False
        """All were ready at once: from then on no end of a worker is the fault of its settings."""
        self._stopping = False
        self._told = -math.inf
        """When it was first told to stop; a stop of its own accord may be cut short at any time."""
        self._deadline = 0.0
        self._code = 0
        self._valkey: EmbeddedValkey | None = None

    def run(self) -> int:
        """0 when all have drained, 1 when one had to be killed or failed; raises ConfigError before the first fork."""
        with ExitStack() as stack:
            # Signals come as bytes to where workers say that they are ready: one thing to wait for.
            self._ear, self._mouth = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
            signal.set_wakeup_fd(self._mouth, warn_on_full_buffer=False)
            for number in SIGNALS:
                signal.signal(number, lambda *_: None)
            link_port, api_port, admin = self._open_ports(stack)
            folder = Path(stack.enter_context(_private_folder()))
            redis_url = self._redis(stack)
            shared = replace(self._settings, link_port=link_port, api_port=api_port)
            workers = [
                Worker(number, f"{shared.node}-{number}", folder / f"{number}.sock") for number in range(shared.workers)
            ]
            self._workers = [
                ForkedProcess(
                    f"worker {worker.node}",
                    partial(work, replace(shared, node=worker.node), redis_url, worker, admin, self._mouth),
                )
                for worker in workers
            ]
            self._admin = ForkedProcess(
                "the admin port", partial(administer, workers, self._board, admin, folder, self._mouth), STOP_ADMIN
            )
            # A collection in a child would write to every page that it shares with its siblings.
            gc.collect()
            gc.freeze()
            return self._supervise()

    def _open_ports(self, stack: ExitStack) -> tuple[int, int, list[socket.socket]]:
        s = self._settings
        link, link_port = reserve("link", s.link_host, s.link_port)
        api, api_port = reserve("api", s.api_host, s.api_port)
        admin = bind("admin", s.admin_host, s.admin_port)
        for one in (*link, *api, *admin):
            stack.enter_context(one)
        for one in admin:
            one.listen()  # here: probes wait for a moment while the process that answers them is restarted
        self._where = ", ".join(
            "{} on {}:{}".format(name, *sockets[0].getsockname()[:2])
            for name, sockets in (("links", link), ("api", api), ("admin", admin))
        )
        return link_port, api_port, admin

    def _redis(self, stack: ExitStack) -> str:
        if self._settings.redis != "embedded":
            return self._settings.redis
        self._valkey = server = EmbeddedValkey(self._settings.data / "valkey")
        asyncio.run(server.start())  # a loop that has ended before the first fork
        stack.callback(lambda: asyncio.run(server.stop()))
        return server.url

    def _supervise(self) -> int:
        assert self._admin is not None
        while not (self._stopping and not any(worker.pid for worker in self._workers)):
            self._board.turn()
            for child in (*self._workers, self._admin):
                if not child.pid and child.wait <= 0 and (not self._stopping or child is self._admin):
                    child.start()
            self._show()
            self._hear(TURN)
            self._reap()
            if self._valkey is not None and not self._valkey.running and not self._stopping:
                logger.error("%s; all workers stop", valkey_ended(self._valkey))
                self._code = exit_codes.FAILED
                self._stop()
            if self._stopping and time.monotonic() > self._deadline:
                self._kill("the drain has taken too long")
        # The last to go: until then it says who still drains.
        self._admin.stop()
        deadline = time.monotonic() + STOP_SPARE
        while self._admin.pid:
            self._hear(TURN)
            self._admin.reap()
            if time.monotonic() > deadline:
                self._admin.signal(signal.SIGKILL)
        logger.info("all workers have ended")
        return self._code

    def _hear(self, most: float) -> None:
        """Wait for a signal, a worker's word or a restart that is due; act on the first two."""
        dues = [child.wait for child in self._workers if not child.pid and not self._stopping]
        pause = max(0.0, min([most, *dues]))
        if not select.select([self._ear], [], [], pause)[0]:
            return
        for byte in os.read(self._ear, 4096):
            if byte >= READY:
                self._note_ready(byte - READY)
            elif byte in (signal.SIGTERM, signal.SIGINT):
                self._told_to_stop()

    def _note_ready(self, number: int) -> None:
        self._ready.add(number)
        if not self._complete and len(self._ready) == len(self._workers) + 1:
            self._complete = True
            logger.info("%d workers are ready: %s", len(self._workers), self._where)

    def _told_to_stop(self) -> None:
        if not self._stopping:
            self._told = time.monotonic()
            self._stop()
        elif time.monotonic() - self._told >= SAME_STOP:
            self._kill("told to stop twice")

    def _stop(self) -> None:
        self._stopping = True
        leave = max(self._settings.drain_timeout, self._settings.shutdown_delay)
        self._deadline = time.monotonic() + leave + STOP_SPARE
        for worker in self._workers:
            worker.stop()

    def _kill(self, why: str) -> None:
        logger.warning("%s: killing the workers that are left", why)
        for worker in self._workers:
            worker.signal(signal.SIGKILL)

    def _reap(self) -> None:
        for number, worker in enumerate(self._workers):
            if (code := worker.reap()) is not None:
                self._ready.discard(number)
                self._ended(worker, code)
        if self._admin is not None and (code := self._admin.reap()) is not None:
            self._ready.discard(len(self._workers))
            self._restart(self._admin, code)

    def _ended(self, worker: ForkedProcess, code: int) -> None:
        if self._stopping:
            # One that was told to stop before it could listen to signals has nothing to drain.
            if code not in (0, -signal.SIGTERM):
                self._code = self._code or exit_codes.FAILED
                logger.error("%s ended %s", worker.name, how(code))
        elif code == exit_codes.USAGE and not self._complete:
            logger.error("%s cannot start, and no restart would change that: stopping", worker.name)
            self._code = exit_codes.USAGE
            self._stop()
        else:
            self._restart(worker, code)

    def _restart(self, child: ForkedProcess, code: int) -> None:
        logger.error("%s ended %s; it is started again in %.1f s", child.name, how(code), child.postpone())

    def _show(self) -> None:
        for number, worker in enumerate(self._workers):
            self._board.set(number, pid=worker.pid, restarts=worker.restarts)


def _private_folder() -> TemporaryDirectory[str]:
    try:
        return TemporaryDirectory(prefix="fairlead-")
    except OSError as e:
        raise ConfigError(f"no folder for the workers' admin sockets can be made ({e}); set TMPDIR to another") from e
