"""The agent as its author sees it: methods, facts, events, and one call that keeps the link for ever.

Made by users of the SDK, and by `builtin_agent` for the command line. It joins the parts (command runner, sender,
connector, journal) and owns their start and end.
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
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from fairlead.agent.commands import output
from fairlead.agent.commands.handler import Handler, RunsIn, make_handler
from fairlead.agent.commands.runner import CommandRunner
from fairlead.agent.host.fact_reader import FactReader
from fairlead.agent.host.sd_notify import SystemdNotifier
from fairlead.agent.host.signals import reset_ignored_signals
from fairlead.agent.identity import AgentIdentity
from fairlead.agent.journal.journal import SIZE_LIMIT, Journal
from fairlead.agent.link.connector import Connector
from fairlead.agent.link.options import connect_options
from fairlead.agent.link.sender import Sender
from fairlead.errors import ConfigError, ConnectionRefused, FairleadError
from fairlead.version import __version__
from fairlead.wire.ids import check_agent_id, uuid7
from fairlead.wire.messages import OWN_EVENTS, SUBPROTOCOL_JSON, SUBPROTOCOL_MSGPACK, Caps, Event, Hello, Resume

if TYPE_CHECKING:
    from fairlead.agent.verification.command_verifier import CommandVerifier
    from fairlead.agent.verification.key_rotation import KeyRotation
    from fairlead.agent.verification.trusted_keys import TrustedKeys

logger = logging.getLogger("fairlead.agent")

FLUSH_TIMEOUT = 2.0
"""Seconds to wait, when the agent stops, until the gateway has stored the last results."""
FLUSH_STEP = 0.02

EXIT_MISCONFIGURED, EXIT_UNWANTED = 2, 3
"""Exit codes after which a service manager should not start the agent again: it would fail in the same way."""

F = TypeVar("F", bound=Callable[..., Any])


class Agent:
    """One agent: `command` registers handlers, `run` keeps the link until a signal, `emit` sends events."""

    def __init__(
        self,
        url: str,
        id: str,
        token: str | Callable[[], str] | AgentIdentity | None = None,
        *,
        facts: Mapping[str, str] | None = None,
        encoding: Literal["msgpack", "json"] = "msgpack",
        ssl: tls.SSLContext | Callable[[], tls.SSLContext] | None = None,
        proxy: str | None = None,
        journal: str | os.PathLike[str] | None = None,
        journal_limit: int = SIZE_LIMIT,
        trusted_keys: TrustedKeys | None = None,
    ) -> None:
        """`url` is ws:// or wss://; without a path it gets /v1/link. `ssl` replaces the system's certificate
        authorities; a function, such as `TlsFiles` with a client certificate, is called before each attempt. A `token`
        that is a function is called then too, and raises ConfigError when there is no token. An agent that enrols has
        an `AgentIdentity` in place of a token, and one that has only its client certificate has None. `proxy` is the
        http:// or https:// URL of a proxy that supports CONNECT.

        `journal` is a folder of this agent alone, on a local disk: accepted commands, and results and events that the
        gateway has not stored, survive the process there. Without one, a restart ends what was running. New commands
        are refused once three quarters of `journal_limit` bytes are in use, and handlers that write wait when all of it
        is.

        With `trusted_keys`, which need a journal, every command must be signed by one; `keys.update` replaces them.

        Raises InvalidRequest or ConfigError when the id, the URL, the proxy or a fact is invalid.
        """
        self.id = check_agent_id(id)
        self._facts = FactReader(facts or {}, self._tell_facts)
        self._handlers: dict[str, Handler] = {}
        self._disabled: dict[str, str] = {}
        self._sender, self._boot = Sender(), secrets.token_hex(8)
        self._journal_folder, self._journal_limit = journal, journal_limit
        self._journal: Journal | None = None
        self._verifier, self._rotation = _verification(self, trusted_keys, journal)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread, self._notifier = 0, SystemdNotifier()
        self._stopping: asyncio.Event | None = None
        if encoding not in ("msgpack", "json"):
            raise ConfigError(f"invalid encoding {encoding!r}: expected msgpack or json")
        self._identity = token if isinstance(token, AgentIdentity) else None
        self._connector = Connector(
            connect_options(self.id, url, token, ssl, proxy),
            SUBPROTOCOL_JSON if encoding == "json" else SUBPROTOCOL_MSGPACK,
            self._sender,
            self._hello,
            self._notifier,
        )

    def command(self, method: str, *, run: RunsIn | None = None) -> Callable[[F], F]:
        """Decorate a function, coroutine or generator (sync or async) to serve `method`.

        The parameters are the arguments: the payload must be a JSON object with these names and types. A first
        parameter annotated `Command` gets the command itself. What a generator yields is output (bytes and str go to
        "stdout", anything else is a row of JSON), and what a function returns is the payload of the end. Raise
        CommandError to end the command with an error code of your own.

        `run` says where the function runs: coroutines on the event loop, plain functions in a "thread" or, on request,
        in a "process". A process is for CPU-bound work; it is killed at the deadline, and its function must be at the
        top level of a module. A thread cannot be killed: its command is ended, what it still writes is discarded, and
        `Command.cancelled` is set. Raises ConfigError when the function cannot be a handler.
        """

        def register(function: F) -> F:
            if method in self._handlers:
                raise ConfigError(f"method {method!r} is registered twice")
            self._handlers[method] = make_handler(method, function, run)
            return function

        return register

    def switch_off(self, method: str, why: str) -> None:
        """Refuse `method` with the error `unknown_method` and the message `why`: the configuration disables it."""
        self._disabled[method] = why

    def emit(self, type: str, payload: object = None, *, qos: Literal[0, 1] = 1) -> None:
        """Send an event, from any thread. With `qos` 1 it is kept and repeated until the gateway has stored it.

        Raises Unavailable when 1,000 events are waiting already or the journal cannot keep it, and ValueError when it
        is too large or its type begins with `fairlead.`, as those of gateways do.
        """
        if type.startswith(OWN_EVENTS):
            raise ValueError(f"invalid event type {type[:140]!r}: expected one that does not begin with {OWN_EVENTS}")
        if not 0 < len(type) <= 128:
            raise ValueError(f"invalid event type {type[:140]!r}: expected 1 to 128 characters")
        now = int(time.time() * 1000)
        event = Event(uuid7(now, os.urandom(10)), type, output.result(payload), now, qos)
        loop = self._loop
        if loop is None:
            if multiprocessing.parent_process() is not None:
                raise RuntimeError("emit() is not available in a handler's own process: yield output instead")
            self._sender.emit(event)
        elif self._thread == threading.get_ident():
            self._sender.emit(event)
        else:
            asyncio.run_coroutine_threadsafe(self._emit(event), loop).result()

    async def refresh_facts(self) -> dict[str, str | None]:
        """Read the facts of the host again now, and tell the gateway those that have changed. Returns them; None for
        those that are gone. The agent does so by itself every few minutes. Call it on the agent's event loop."""
        return await self._facts.read_again()

    def _tell_facts(self, facts: Mapping[str, str]) -> None:
        self._connector.tell_facts(facts)

    async def _emit(self, event: Event) -> None:
        self._sender.emit(event)

    def run(self) -> None:
        """Keep the link until SIGTERM or Ctrl-C; then end what runs, close the link and return.

        systemd is notified of readiness and status (sd_notify). When the agent cannot continue it logs why and exits
        the process: with 2 when its configuration is invalid, 3 when the gateway does not want it back, otherwise 1.
        """
        if getattr(multiprocessing.current_process(), "_inheriting", False):
            # multiprocessing sets this while it imports the main module for a child: this call is not guarded there,
            # and would open a second link under the same name.
            raise RuntimeError('run="process" needs agent.run() to be under `if __name__ == "__main__":`')
        if not logging.getLogger().handlers:
            logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
        self._notifier.attach(os.environ)
        reset_ignored_signals()
        try:
            asyncio.run(self._until_signal())
        except FairleadError as e:
            logger.error("%s", e.message)
            sys.exit(_exit_code(e))
        finally:
            self._notifier.close()

    async def _until_signal(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)
        self._stopping = asyncio.Event()
        self._notifier.start_watchdog()
        await self.serve()

    def stop(self) -> None:
        """Make `serve` return: it cancels the running commands, reports their ends and closes the link."""
        self._notifier.stopping()
        if self._stopping is not None:
            self._stopping.set()

    async def serve(self) -> None:
        """Keep the link until `stop` is called. Raises ConnectionRefused when the gateway does not want this agent
        back, and ConfigError when the journal's folder cannot be used.
        """
        for handler in self._handlers.values():
            handler.check_importable()
        if self._journal_folder is None:
            await self._serve(CommandRunner(self._handlers, self._sender, disabled=self._disabled), set())
            return
        # Not earlier: a child process that imports the agent's module must not lock the folder.
        self._journal = journal = Journal(self._journal_folder, self.id, self._journal_limit)
        try:
            if self._rotation is not None:
                self._rotation.open()
            commands = CommandRunner(
                self._handlers, self._sender, journal, self._sender.use_journal(journal), self._disabled,
                self._verifier,
            )  # fmt: skip
            await self._serve(commands, {journal.start(commands.on_journal_room)})
        finally:
            self._sender.drop_journal()
            await journal.close()

    async def _serve(self, commands: CommandRunner, others: set[asyncio.Task[None]]) -> None:
        """`others` are tasks that end only because of a defect; the agent then ends, too."""
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()
        self._stopping = self._stopping or asyncio.Event()
        renewing: asyncio.Task[None] | None = None
        if self._identity is not None:
            renewing = asyncio.create_task(self._identity.run())
            others = others | {renewing}
        reading = asyncio.create_task(self._facts.run())
        others = others | {reading}
        linking = asyncio.create_task(self._connector.run(commands, commands.on_resume))
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            try:
                await asyncio.wait({linking, stopping} | others, return_when=asyncio.FIRST_COMPLETED)
            finally:
                await commands.close()  # also when this task is cancelled: no command may keep running
            await self._flush()
        finally:
            stopping.cancel()
            linking.cancel()
            reading.cancel()
            if renewing is not None:
                renewing.cancel()
            await asyncio.wait({linking, stopping})
            await self._connector.leave()
            self._loop = self._stopping = None
        for task in (linking, *others):
            if task.done() and not task.cancelled():
                task.result()

    async def _flush(self) -> None:
        """Give the last results a moment to be stored; without a link there is nothing to wait for."""
        deadline = time.monotonic() + FLUSH_TIMEOUT
        while (  # noqa: ASYNC110  # only as the agent stops; an Event would have to be maintained all the time
            self._sender.linked and not self._sender.empty and time.monotonic() < deadline
        ):
            await asyncio.sleep(FLUSH_STEP)

    def _hello(self, number: int, sid: str) -> Hello:
        return Hello(
            agent=self.id,
            boot=self._boot,
            conn=number,
            sdk=f"fairlead-python/{__version__}",
            caps=Caps(journal=self._journal.id if self._journal is not None else ""),
            facts=dict(self._facts.facts),
            resume=Resume(sid) if sid else None,
            have=self._sender.outbox.have(),
        )


def _verification(
    agent: Agent, keys: TrustedKeys | None, journal: str | os.PathLike[str] | None
) -> tuple[CommandVerifier | None, KeyRotation | None]:
    """What checks the signatures of commands, and what replaces the keys, as a method of the agent; None if every
    command is run. Imported only by agents that need it."""
    if keys is None:
        return None, None
    if journal is None:
        raise ConfigError(
            "trusted_keys need a journal, which remembers the signed commands that have run: set journal to a folder"
        )
    from fairlead.agent.verification.command_verifier import CommandVerifier
    from fairlead.agent.verification.key_rotation import KeyRotation
    from fairlead.signing.key_statement import METHOD

    rotation = KeyRotation(agent.id, keys, Path(journal), _now)
    agent.command(METHOD)(rotation.update)
    return CommandVerifier(agent.id, keys, _now), rotation


def _now() -> int:
    """Unix time in ms, by which signatures expire."""
    return int(time.time() * 1000)


def _exit_code(e: FairleadError) -> int:
    if isinstance(e, ConfigError):
        return EXIT_MISCONFIGURED
    return EXIT_UNWANTED if isinstance(e, ConnectionRefused) else 1
