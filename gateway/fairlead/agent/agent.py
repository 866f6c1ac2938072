"""The agent as its author sees it: methods, facts, events, and one call that holds the link for ever.

Made by the user of the SDK, or by `builtin_agent` for the command line. It joins the parts (commands, outlet,
connector) and owns their start and end; what they do is theirs.
"""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import secrets
import signal
import ssl as tls
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeVar
from urllib.parse import urlsplit, urlunsplit

from fairlead.agent.commands import output
from fairlead.agent.commands.handler import Handler, RunsIn, make_handler
from fairlead.agent.commands.runner import CommandRunner
from fairlead.agent.host.facts import host_facts
from fairlead.agent.host.sd_notify import SystemdNotifier
from fairlead.agent.host.signals import reset_ignored_signals
from fairlead.agent.journal.journal import LIMIT, Journal
from fairlead.agent.link.connector import ConnectOptions, Connector
from fairlead.agent.link.sender import Sender
from fairlead.carrier.proxy_tunnel import parse_proxy
from fairlead.errors import ConfigError, ConnectionRefused, FairleadError
from fairlead.version import __version__
from fairlead.wire.ids import check_agent_id, uuid7
from fairlead.wire.messages import FACTS_LIMIT, SUBPROTOCOL_JSON, SUBPROTOCOL_MSGPACK, Caps, Event, Hello, Resume

logger = logging.getLogger("fairlead.agent")

FLUSH_TIMEOUT = 2.0
"""Seconds at the agent's end for the last results to be stored."""
FLUSH_STEP = 0.02

WRONG, UNWANTED = 2, 3
"""Exit codes after which a service manager should not start the agent again: the same would follow."""

F = TypeVar("F", bound=Callable[..., Any])


class Agent:
    def __init__(
        self,
        url: str,
        id: str,
        token: str | Callable[[], str],
        *,
        facts: Mapping[str, str] | None = None,
        encoding: Literal["msgpack", "json"] = "msgpack",
        ssl: tls.SSLContext | None = None,
        proxy: str | None = None,
        journal: str | os.PathLike[str] | None = None,
        journal_limit: int = LIMIT,
    ) -> None:
        """`url` is ws:// or wss://; without a path it gets /v1/link. `ssl` replaces the system's roots. A `token` that
        is a function is asked before each attempt, and raises ConfigError when it cannot be had. `proxy` is the
        http:// or https:// address of one that knows CONNECT.

        `journal` is a folder of this agent alone, on a local disk: what was accepted, and results and events that
        the gateway has not stored, outlive the process there. Without one a restart ends what ran. A journal of
        `journal_limit` bytes takes no new commands, and lets handlers wait that write.

        Raises InvalidRequest or ConfigError when the id, the url or a fact cannot be.
        """
        self.id = check_agent_id(id)
        self._facts = _checked({key: value[:256] for key, value in host_facts().items()} | dict(facts or {}))
        self._handlers: dict[str, Handler] = {}
        self._off: dict[str, str] = {}
        self._sender = Sender()
        self._boot = secrets.token_hex(8)
        self._conn = 0
        self._folder = journal
        self._journal_limit = journal_limit
        self._journal: Journal | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = 0
        self._stopping: asyncio.Event | None = None
        self._notifier = SystemdNotifier()
        if proxy is not None:
            try:
                parse_proxy(proxy)
            except ValueError as e:
                raise ConfigError(str(e)) from e
        if encoding not in ("msgpack", "json"):
            raise ConfigError(f"encoding {encoding!r} must be msgpack or json")
        self._connector = Connector(
            ConnectOptions(_endpoint(url), token if callable(token) else lambda: token, ssl, proxy),
            SUBPROTOCOL_JSON if encoding == "json" else SUBPROTOCOL_MSGPACK,
            self._sender,
            self._hello,
            self._notifier,
        )

    def command(self, method: str, *, run: RunsIn | None = None) -> Callable[[F], F]:
        """Decorate a function, coroutine or generator (sync or async) to serve `method`.

        `run` says where: coroutines run on the event loop; plain functions in a "thread", unless a "process" is
        asked for: CPU-bound work, killed at the deadline, at the top level of a module. A thread cannot be killed:
        its command is ended, what it still says is dropped, and `Command.cancelled` tells it so.
        Raises ConfigError when the function cannot be a handler.
        """

        def register(function: F) -> F:
            if method in self._handlers:
                raise ConfigError(f"method {method!r} is registered twice")
            self._handlers[method] = make_handler(method, function, run)
            return function

        return register

    def switch_off(self, method: str, why: str) -> None:
        """Refuse `method` as unknown, and say `why` rather than nothing: someone has decided it."""
        self._off[method] = why

    def emit(self, type: str, payload: object = None, *, qos: Literal[0, 1] = 1) -> None:
        """Send an event, from any thread. With `qos` 1 it is kept and repeated until it is stored.

        Raises Unavailable when 1,000 events wait already or the journal cannot keep it, ValueError when it is too
        large.
        """
        if not 0 < len(type) <= 128:
            raise ValueError(f"event type {type[:140]!r} must have 1 to 128 characters")
        now = int(time.time() * 1000)
        event = Event(uuid7(now, os.urandom(10)), type, output.result(payload), now, qos)
        loop = self._loop
        if loop is None:
            if multiprocessing.parent_process() is not None:
                raise RuntimeError("no agent serves in this process: a handler in a process yields what it has to say")
            self._sender.emit(event)
        elif self._thread == threading.get_ident():
            self._sender.emit(event)
        else:
            asyncio.run_coroutine_threadsafe(self._emit(event), loop).result()

    async def _emit(self, event: Event) -> None:
        self._sender.emit(event)

    def run(self) -> None:
        """Hold the link until SIGTERM or Ctrl-C: then end what runs, say goodbye and return.

        A service manager that speaks sd_notify is told of it. Exits the process after a line in the log when the agent
        cannot go on: with 2 when its configuration is wrong, 3 when the gateway does not want it back, else 1.
        """
        if getattr(multiprocessing.current_process(), "_inheriting", False):
            # multiprocessing's own mark for "the main module is being imported for a child": this call stands
            # there unguarded, and would open a second link under the same name.
            raise RuntimeError('agent.run() is not under `if __name__ == "__main__":`, as run="process" needs')
        if not logging.getLogger().handlers:
            logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
        self._notifier.attach(os.environ)
        reset_ignored_signals()
        try:
            asyncio.run(self._until_signal())
        except FairleadError as e:
            logger.error("%s", e.message)
            sys.exit(WRONG if isinstance(e, ConfigError) else UNWANTED if isinstance(e, ConnectionRefused) else 1)
        finally:
            self._notifier.close()

    async def _until_signal(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)
        self._stopping = asyncio.Event()
        self._notifier.begin()
        await self.serve()

    def stop(self) -> None:
        """Make `serve` end: running commands are cancelled and reported so, then the link is closed."""
        self._notifier.stopping()
        if self._stopping is not None:
            self._stopping.set()

    async def serve(self) -> None:
        """Hold the link until `stop`. Raises ConnectionRefused when the gateway does not want this agent back, and
        ConfigError when the journal's folder cannot be used.
        """
        for handler in self._handlers.values():
            handler.check_runs_in()
        if self._folder is None:
            await self._serve(CommandRunner(self._handlers, self._sender, off=self._off), set())
            return
        # Not before: a child process that imports the agent's module must not take the folder.
        self._journal = journal = Journal(self._folder, self.id, self._journal_limit)
        try:
            commands = CommandRunner(self._handlers, self._sender, journal, self._sender.remember(journal), self._off)
            await self._serve(commands, {journal.start(commands.freed)})
        finally:
            self._sender.forget()
            await journal.close()

    async def _serve(self, commands: CommandRunner, others: set[asyncio.Task[None]]) -> None:
        """`others` end only by a defect, and the agent with them."""
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()
        self._stopping = self._stopping or asyncio.Event()
        holding = asyncio.create_task(self._connector.hold(commands, commands.resumed))
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            try:
                await asyncio.wait({holding, stopping} | others, return_when=asyncio.FIRST_COMPLETED)
            finally:
                await commands.close()  # whoever cancels this task leaves no command behind either
            await self._flush()
        finally:
            stopping.cancel()
            holding.cancel()
            await asyncio.wait({holding, stopping})
            await self._connector.leave()
            self._loop = self._stopping = None
        for task in (holding, *others):
            if task.done() and not task.cancelled():
                task.result()

    async def _flush(self) -> None:
        """Give the last results a moment to be stored; without a link there is nothing to wait for."""
        deadline = time.monotonic() + FLUSH_TIMEOUT
        while (  # noqa: ASYNC110  # at the end of the process only; an event would have to be kept all its life
            self._sender.linked and not self._sender.empty and time.monotonic() < deadline
        ):
            await asyncio.sleep(FLUSH_STEP)

    def _hello(self, sid: str) -> Hello:
        self._conn += 1
        return Hello(
            agent=self.id,
            boot=self._boot,
            conn=self._conn,
            sdk=f"fairlead-python/{__version__}",
            caps=Caps(journal=self._journal.id if self._journal is not None else ""),
            facts=self._facts,
            resume=Resume(sid) if sid else None,
            have=self._sender.outbox.have(),
        )


def _endpoint(url: str) -> str:
    """`url` with the link's path. Raises ConfigError when it is no ws:// or wss:// address."""
    try:
        parts = urlsplit(url)
        legal = parts.scheme in ("ws", "wss") and parts.hostname and parts.port != 0
    except ValueError:
        legal = False
    if not legal:
        raise ConfigError(f"gateway URL {url!r} must be ws://host[:port] or wss://host[:port]")
    return urlunsplit(parts._replace(path=parts.path if parts.path not in ("", "/") else "/v1/link"))


def _checked(facts: Mapping[str, str]) -> dict[str, str]:
    """`facts` within the protocol's bounds: hello is refused otherwise, each time."""
    if len(facts) > 64:
        raise ConfigError(f"{len(facts)} facts exceed max 64")
    for key, value in facts.items():
        if not (0 < len(key) <= 64 and len(value) <= 256):
            raise ConfigError(f"fact {key[:70]!r}: keys have 1 to 64 characters, values at most 256")
    clean = {key: value.encode(errors="replace").decode() for key, value in facts.items()}
    if (size := len(output.to_json(clean))) > FACTS_LIMIT:
        raise ConfigError(f"facts of {size} bytes as JSON exceed max {FACTS_LIMIT}: tell fewer, or in fewer words")
    return clean
