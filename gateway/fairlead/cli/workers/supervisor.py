"""`fairlead serve --workers N`: the supervisor of N nodes that share the link port and the API port.

It is a plain loop over signals and `waitpid`, for two reasons: it forks every process, and a process with an event loop
or threads must not fork; and a supervisor must contain nothing that can hang. Therefore it serves nothing: the admin
port belongs to one more child, which is restarted like the others. Each worker is a node of its own in the fleet,
NODE-0 to NODE-(N-1), and counted separately.
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

from fairlead.bus.sibling_doorbells import SiblingSockets
from fairlead.carrier.accept.worker_loads import WorkerLoads
from fairlead.carrier.http_server.uvicorn_server import SAME_STOP
from fairlead.carrier.tls.ticket_key_chain import TicketKeyChain, process_chain
from fairlead.cli import exit_codes
from fairlead.cli.child_processes import describe_exit
from fairlead.cli.serve.node_server import accepts_on_epoll, describe_valkey_end
from fairlead.cli.serve.sockets import bind, reserve
from fairlead.cli.workers.admin_app import Worker
from fairlead.cli.workers.forked_process import SIGNALS, ForkedProcess
from fairlead.cli.workers.shared_status import SharedStatus
from fairlead.cli.workers.worker_process import READY, STOP_ADMIN, InheritedSockets, run_admin, run_worker
from fairlead.errors import ConfigError
from fairlead.settings import Settings
from fairlead.store.embedded_valkey.server import SYNC_ALWAYS, EmbeddedValkey

logger = logging.getLogger("fairlead")

LONGEST_WAIT = 1.0
"""The longest wait in one pass of the loop, in seconds, so that /livez can detect a loop that is stuck.
"""
STOP_SPARE = 30.0
"""Seconds for a worker to end after its drain (open requests, the last results, Redis) before it gets SIGKILL."""


class Supervisor:
    """Forks the workers and the process of the admin port, restarts them, and stops them in order."""

    def __init__(self, settings: Settings) -> None:
        if sys.platform != "linux":
            raise ConfigError(
                "more than one worker needs Linux, whose kernel spreads connections over the workers and stops them "
                "with their supervisor (use --workers 1)"
            )
        self._settings = settings
        self._status = SharedStatus(settings.workers)
        self._loads = WorkerLoads(settings.workers)
        self._link_sockets: list[socket.socket] = []
        """Those from which all workers accept; what waits in them is not lost when a worker dies. Empty if each worker
        binds its own."""
        self._workers: list[ForkedProcess] = []
        self._admin: ForkedProcess | None = None
        self._ready: set[int] = set()
        self._addresses = ""
        self._all_ready = False
        """Whether all workers have been ready at the same time: after that, invalid settings cannot be why a worker
        ends."""
        self._stopping = False
        self._first_stop_at = -math.inf
        """When the first stop signal arrived. A stop for another reason may be cut short at any time."""
        self._deadline = 0.0
        self._code = exit_codes.OK
        self._valkey: EmbeddedValkey | None = None
        self._ticket_keys: TicketKeyChain | None = None

    def run(self) -> int:
        """Run until stopped. Returns 0 if all workers have drained, 1 if one failed or had to be killed. Raises
        ConfigError before the first fork.
        """
        with ExitStack() as stack:
            # Signals arrive as bytes on the pipe on which workers report that they are ready, so that there is one file
            # to wait for.
            self._wake_in, self._wake_out = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
            signal.set_wakeup_fd(self._wake_out, warn_on_full_buffer=False)
            for number in SIGNALS:
                signal.signal(number, lambda *_: None)
            if self._settings.link_tls_cert is not None or self._settings.api_tls_cert is not None:
                signal.signal(signal.SIGHUP, lambda *_: None)  # it is passed on, and a child that starts ignores it
                self._ticket_keys = process_chain()  # before the forks: workers accept each other's session tickets
            link_port, api_port, admin = self._open_ports(stack)
            folder = Path(stack.enter_context(_private_folder()))
            redis_url = self._redis_url(stack)
            shared = replace(self._settings, link_port=link_port, api_port=api_port)
            workers = [
                Worker(number, f"{shared.node}-{number}", folder / f"{number}.sock") for number in range(shared.workers)
            ]
            siblings = SiblingSockets([worker.node for worker in workers])
            stack.callback(siblings.close)
            inherited = InheritedSockets(self._link_sockets, self._loads, admin, siblings)
            self._workers = [
                ForkedProcess(
                    f"worker {worker.node}",
                    partial(
                        run_worker, replace(shared, node=worker.node), redis_url, worker, inherited, self._wake_out
                    ),
                )
                for worker in workers
            ]
            self._admin = ForkedProcess(
                "the admin port",
                partial(run_admin, workers, self._status, inherited, folder, self._wake_out),
                STOP_ADMIN,
            )
            # A garbage collection in a child would otherwise write to every page that it shares with its siblings.
            gc.collect()
            gc.freeze()
            return self._supervise()

    def _open_ports(self, stack: ExitStack) -> tuple[int, int, list[socket.socket]]:
        s = self._settings
        if accepts_on_epoll(s):
            link = self._link_sockets = bind("link", s.link_host, s.link_port)
            link_port = link[0].getsockname()[1]
        else:
            link, link_port = reserve("link", s.link_host, s.link_port)
        api, api_port = reserve("api", s.api_host, s.api_port)
        admin = bind("admin", s.admin_host, s.admin_port)
        for one in (*link, *api, *admin):
            stack.enter_context(one)
        for one in admin:
            one.listen()  # here, so that probes wait for a moment while the process that answers them is restarted
        self._addresses = ", ".join(
            "{} on {}:{}".format(name, *sockets[0].getsockname()[:2])
            for name, sockets in (("links", link), ("api", api), ("admin", admin))
        )
        return link_port, api_port, admin

    def _redis_url(self, stack: ExitStack) -> str:
        """The URL of Redis; the embedded Valkey is started for it."""
        if self._settings.redis != "embedded":
            return self._settings.redis
        self._valkey = server = EmbeddedValkey(
            self._settings.data / "valkey", options=SYNC_ALWAYS if self._settings.durability == "fsync" else ()
        )
        asyncio.run(server.start())  # this event loop has ended before the first fork
        stack.callback(lambda: asyncio.run(server.stop()))
        return server.url

    def _supervise(self) -> int:
        assert self._admin is not None
        while not (self._stopping and not any(worker.pid for worker in self._workers)):
            self._status.record_pass()
            if self._ticket_keys is not None:
                self._ticket_keys.keys(time.monotonic())  # no process that is forked later learns keys of the past
            for child in (*self._workers, self._admin):
                if not child.pid and child.wait <= 0 and (not self._stopping or child is self._admin):
                    child.start()
            self._publish_status()
            self._wait_for_event(LONGEST_WAIT)
            self._reap()
            if self._valkey is not None and not self._valkey.running and not self._stopping:
                logger.error("%s; all workers stop", describe_valkey_end(self._valkey))
                self._code = exit_codes.FAILED
                self._stop()
            if self._stopping and time.monotonic() > self._deadline:
                self._kill("the drain took too long")
        self._stop_admin(self._admin)
        logger.info("all workers have ended")
        return self._code

    def _stop_admin(self, admin: ForkedProcess) -> None:
        """Stop the process of the admin port, as the last one: until then it reports which workers still drain."""
        admin.stop()
        deadline = time.monotonic() + STOP_SPARE
        while admin.pid:
            self._wait_for_event(LONGEST_WAIT)
            admin.reap()
            if time.monotonic() > deadline:
                admin.signal(signal.SIGKILL)

    def _wait_for_event(self, most: float) -> None:
        """Wait for a signal, a worker that is ready, or a restart that is due; act on the first two."""
        restart_delays = [child.wait for child in self._workers if not child.pid and not self._stopping]
        pause = max(0.0, min([most, *restart_delays]))
        if not select.select([self._wake_in], [], [], pause)[0]:
            return
        for byte in os.read(self._wake_in, 4096):
            if byte >= READY:
                self._note_ready(byte - READY)
            elif byte in (signal.SIGTERM, signal.SIGINT):
                self._handle_stop_signal()
            elif byte == signal.SIGHUP:
                for worker in self._workers:
                    worker.signal(signal.SIGHUP)

    def _note_ready(self, number: int) -> None:
        self._ready.add(number)
        if not self._all_ready and len(self._ready) == len(self._workers) + 1:
            self._all_ready = True
            logger.info("%d workers are ready: %s", len(self._workers), self._addresses)

    def _handle_stop_signal(self) -> None:
        if not self._stopping:
            self._first_stop_at = time.monotonic()
            self._stop()
        elif time.monotonic() - self._first_stop_at >= SAME_STOP:
            self._kill("told to stop twice")

    def _stop(self) -> None:
        self._stopping = True
        for one in self._link_sockets:
            one.close()  # the port closes with the last worker's
        leave = max(self._settings.drain_timeout, self._settings.shutdown_delay)
        self._deadline = time.monotonic() + leave + STOP_SPARE
        for worker in self._workers:
            worker.stop()

    def _kill(self, why: str) -> None:
        logger.warning("%s: killing the remaining workers", why)
        for worker in self._workers:
            worker.signal(signal.SIGKILL)

    def _reap(self) -> None:
        for number, worker in enumerate(self._workers):
            if (code := worker.reap()) is not None:
                self._ready.discard(number)
                self._loads.mark_ended(number)
                self._handle_end(worker, code)
        if self._admin is not None and (code := self._admin.reap()) is not None:
            self._ready.discard(len(self._workers))
            self._restart(self._admin, code)

    def _handle_end(self, worker: ForkedProcess, code: int) -> None:
        if self._stopping:
            # A worker that was told to stop before it could handle signals had nothing to drain.
            if code not in (exit_codes.OK, -signal.SIGTERM):
                self._code = self._code or exit_codes.FAILED
                logger.error("%s ended %s", worker.name, describe_exit(code))
        elif code == exit_codes.USAGE and not self._all_ready:
            logger.error("%s cannot start with these settings, and no restart would change that: stopping", worker.name)
            self._code = exit_codes.USAGE
            self._stop()
        else:
            self._restart(worker, code)

    def _restart(self, child: ForkedProcess, code: int) -> None:
        delay = child.schedule_restart()
        logger.error("%s ended %s; it is restarted in %.1f s", child.name, describe_exit(code), delay)

    def _publish_status(self) -> None:
        for number, worker in enumerate(self._workers):
            self._status.set(number, pid=worker.pid, restarts=worker.restarts)


def _private_folder() -> TemporaryDirectory[str]:
    try:
        return TemporaryDirectory(prefix="fairlead-")
    except OSError as e:
        raise ConfigError(
            f"cannot create a folder for the workers' admin sockets: {e} (set TMPDIR to another folder)"
        ) from e
