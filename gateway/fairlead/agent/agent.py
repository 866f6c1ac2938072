"""The agent: its methods, the commands that run, and the one link that is held for ever.

Made by the user of the SDK. It accepts each command once, runs it by its handler, and keeps what the gateway has
not stored until it is, across any number of links. It reconnects by the policy that welcome gave, with full jitter.
"""

from __future__ import annotations

import asyncio
import logging
import os
import platform
import secrets
import signal
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeVar
from urllib.parse import urlsplit, urlunsplit

from fairlead.agent.command import Command, CommandError
from fairlead.agent.connector import Connector, Outcome
from fairlead.agent.handlers import Handler, Place, handler
from fairlead.agent.runner import Runner, encode
from fairlead.agent.session import Session
from fairlead.errors import ConfigError, ConnectionRefused, Unavailable
from fairlead.version import __version__
from fairlead.wire.agent_link import Outbox, OutStream
from fairlead.wire.identity import check_agent_id
from fairlead.wire.messages import (
    CHUNK_LIMIT,
    SUBPROTOCOL_JSON,
    SUBPROTOCOL_MSGPACK,
    Ack,
    Cancel,
    Chunk,
    Cmd,
    Credit,
    End,
    EndState,
    Error,
    Event,
    Hello,
    Message,
    Numbered,
    Scalar,
    Welcome,
)

logger = logging.getLogger("fairlead.agent")

REMEMBERED = 1_024
"""Ended commands whose ids are kept, so that a repeated cmd is not run again; the protocol's least."""
EVENTS = 1_000
"""Events not stored yet: above it `emit` fails rather than grow."""
STOP_TIMEOUT = 8.0
"""Seconds for running commands to end when the agent stops: an exec needs 3 before it is killed."""

F = TypeVar("F", bound=Callable[..., Any])


class Agent:
    def __init__(
        self,
        url: str,
        id: str,
        token: str,
        *,
        facts: Mapping[str, str] | None = None,
        encoding: Literal["msgpack", "json"] = "msgpack",
        ssl: Any = None,
    ) -> None:
        """`url` is ws:// or wss://; without a path it gets /v1/link. `ssl` is an ssl.SSLContext for wss.

        Raises InvalidRequest and ConfigError when the id or the url cannot be.
        """
        self.id = check_agent_id(id)
        self._facts = _facts() | dict(facts or {})
        self._handlers: dict[str, Handler] = {}
        self._outbox = Outbox()
        self._running: dict[str, tuple[Command, asyncio.Task[None]]] = {}
        self._why: dict[str, EndState] = {}
        self._ended: OrderedDict[str, None] = OrderedDict()
        self._boot = secrets.token_hex(8)
        self._conn = 0
        self._session: Session | None = None
        self._runner: Runner | None = None
        self._stopping: asyncio.Event | None = None
        self.chunk_limit = CHUNK_LIMIT
        self._connector = Connector(
            _endpoint(url),
            {"Authorization": f"Bearer {token}"},
            SUBPROTOCOL_JSON if encoding == "json" else SUBPROTOCOL_MSGPACK,
            ssl,
            self._hello,
            self._outbox,
            self,
        )

    # -- for the user ------------------------------------------------------------------------------

    def command(self, method: str, *, run: Place | None = None) -> Callable[[F], F]:
        """Decorate a function, coroutine or generator (sync or async) to serve `method`.

        `run` says where: coroutines run on the event loop, plain functions in a "thread" unless "process" is
        asked for (CPU-bound work, killed at the deadline; must stand at the top level of a module). A thread
        cannot be killed: its command ends at the deadline and what it still yields is dropped.
        """

        def register(function: F) -> F:
            if method in self._handlers:
                raise ConfigError(f"method {method!r} is registered twice")
            self._handlers[method] = handler(method, function, run)
            return function

        return register

    def emit(self, type: str, payload: object = None, *, qos: Literal[0, 1] = 1) -> None:
        """Send an event. With `qos` 1 it is kept and repeated until it is stored; call it on the event loop.

        Raises Unavailable when 1,000 events wait already.
        """
        event = Event(
            id=secrets.token_hex(8), type=type, payload=encode(payload), time=int(time.time() * 1000), qos=qos
        )
        if qos == 1:
            if len(self._outbox.events) >= EVENTS:
                raise Unavailable(f"{EVENTS} events wait to be stored, the limit: drop some or wait")
            self._outbox.events[event.id] = event
        self.transmit(event)

    def run(self) -> None:
        """Hold the link until SIGTERM or Ctrl-C; then end what runs, say goodbye and return.

        Raises ConnectionRefused when the gateway says not to come back (close codes from 4500 on).
        """
        asyncio.run(self._until_signal())

    async def _until_signal(self) -> None:
        serving = asyncio.ensure_future(self.serve())
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)
        await serving

    def stop(self) -> None:
        """Make `serve` end: running commands are cancelled and told as such, then the link is closed."""
        if self._stopping is not None:
            self._stopping.set()

    async def serve(self) -> None:
        """Hold the link until `stop`; see `run`."""
        self._runner = Runner()
        self._stopping = asyncio.Event()
        try:
            refused: Outcome | None = await self._connector.hold(self._stopping)
        finally:
            await self._end_all()
            if self._session is not None:
                await self._connector.leave(self._session)
            self._runner.close()
        if refused is not None:
            raise ConnectionRefused(f"the gateway does not want this agent back: {refused.why}")

    async def _end_all(self) -> None:
        for command in tuple(self._running):
            self._end(command, "cancelled")
        tasks = [task for _, task in self._running.values()]
        if tasks:
            await asyncio.wait(tasks, timeout=STOP_TIMEOUT)

    def _hello(self) -> Hello:
        self._conn += 1
        return Hello(
            agent=self.id,
            boot=self._boot,
            conn=self._conn,
            sdk=f"fairlead-python/{__version__}",
            facts=self._facts,
            have=self._outbox.have(),
        )

    # -- Sender: what commands use -----------------------------------------------------------------

    def transmit(self, message: Numbered) -> None:
        """Write it now if there is a link; what must not be lost stands in the outbox and goes on the next."""
        session = self._session
        if session is not None and session.ready:
            session.send_numbered(message)

    def tell(self, message: Message) -> None:
        session = self._session
        if session is not None and session.ready:
            session.send(message)

    # -- Core: what sessions tell ------------------------------------------------------------------

    def welcomed(self, session: Session, welcome: Welcome) -> None:
        replaced, self._session = self._session, session
        if replaced is not None:
            replaced.core = None
        self.chunk_limit = min(CHUNK_LIMIT, welcome.limits.chunk)
        lost, again = session.link.resend(welcome)
        for command in lost:
            logger.info("the gateway has ended %s meanwhile", command)
            self._end(command, "cancelled")
        for message in again:
            session.send_numbered(message)
        for running, _ in self._running.values():
            running.more_room()

    def commanded(self, cmd: Cmd) -> None:
        if cmd.id in self._running or cmd.id in self._ended or cmd.id in self._outbox.streams:
            self.transmit(Ack(id=cmd.id, state="duplicate"))
            return
        assert self._runner is not None
        found = self._handlers.get(cmd.method)
        try:
            if found is None:
                raise CommandError("unknown_method", f"this agent has no method {cmd.method!r}")
            if found.place != "loop" and self._runner.busy:
                raise CommandError("busy", "too many commands wait for their turn", temporary=True)
            arguments = found.parse(cmd.payload)
        except CommandError as e:
            self.transmit(Ack(id=cmd.id, state="refused", error=_error(e)))
            return
        loop = asyncio.get_running_loop()
        stream = self._outbox.opened(cmd)
        command = Command(cmd.id, cmd.method, cmd.payload, loop.time() + cmd.deadline / 1000, stream, self)
        self.transmit(Ack(id=cmd.id))
        task = loop.create_task(self._run(found, command, stream, arguments))
        self._running[cmd.id] = (command, task)

    def input(self, message: Chunk | End) -> None:
        running = self._running.get(message.id)
        if running is None:
            return
        running[0].stdin.news()

    def granted(self, credit: Credit) -> None:
        if (running := self._running.get(credit.id)) is not None:
            running[0].more_room()

    def cancelled(self, cancel: Cancel) -> None:
        self._end(cancel.id, "cancelled")

    # -- running a command -------------------------------------------------------------------------

    def _end(self, command: str, why: EndState) -> None:
        running = self._running.get(command)
        if running is not None and command not in self._why:
            self._why[command] = why
            # Behind the task's first step: one that is cancelled before it began would never clean up.
            asyncio.get_running_loop().call_soon(running[1].cancel)

    async def _run(self, found: Handler, command: Command, stream: OutStream, arguments: dict[str, Any]) -> None:
        """From accepted to end, whatever the handler does."""
        assert self._runner is not None
        state: EndState = "ok"
        payload, error = b"", None
        limit = asyncio.timeout_at(command.deadline)
        try:
            async with limit:
                result = await self._runner.run(found, command, arguments)
                payload = b"" if result is None else encode(result)
        except asyncio.CancelledError:
            state = self._why.get(command.id, "cancelled")
            error = Error(code="cancelled", message="cancelled while it ran")
        except CommandError as e:
            state, error = "error", _error(e)
        except Exception as e:
            if isinstance(e, TimeoutError) and limit.expired():
                state, error = (
                    "timeout",
                    Error(code="deadline", message="the deadline passed", temporary=False),
                )
            else:
                logger.exception("the handler of %s failed", command.method)
                what = f"{type(e).__name__}: {e}"[:500]
                state, error = "error", Error(code="handler_failed", message=what)
        command.abandon()
        del self._running[command.id]
        self._why.pop(command.id, None)
        self._ended[command.id] = None
        if len(self._ended) > REMEMBERED:
            self._ended.popitem(last=False)
        if command.id in self._outbox.streams and not stream.ended:
            self.transmit(stream.end(state, payload, error))


def _error(e: CommandError) -> Error:
    details: dict[str, Scalar] = {k: v for k, v in e.details.items() if isinstance(v, str | int | float | bool)}
    return Error(code=e.error_code[:64], message=e.message[:1024], temporary=e.is_temporary, details=details)


def _facts() -> dict[str, str]:
    """What every agent tells of its host."""
    return {
        "os": platform.system().lower(),
        "arch": platform.machine(),
        "hostname": platform.node()[:256],
        "kernel": platform.release()[:256],
        "python": platform.python_version(),
        "sdk": __version__,
        "pid": str(os.getpid()),
    }


def _endpoint(url: str) -> str:
    """`url` with the link's path. Raises ConfigError when it is no ws:// or wss:// address."""
    parts = urlsplit(url)
    if parts.scheme not in ("ws", "wss") or not parts.hostname:
        raise ConfigError(f"gateway URL {url!r} must be ws://host[:port] or wss://host[:port]")
    return urlunsplit(parts._replace(path=parts.path if parts.path not in ("", "/") else "/v1/link"))
