"""The auto-pipeliner: every command of this process over one connection, in batches.

Called by `fleet` and `bus`. What is submitted while a batch is out forms the next batch, so the busier the
node, the cheaper a command; no timer delays anything. Calls of one priority keep their order; what a batch takes
of each priority, and how much of it may wait, is the backlog's to say. It never repeats a command whose outcome
is unknown (a doubled XADD is worse than an error): when a batch is not answered in time, its calls fail, the
connection is closed and the breaker opens, which makes later calls fail at once until a probe has seen the server
answer again. A call of a script the server does not have was not executed, so that one is repeated, once.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from redis.exceptions import NoScriptError, ReadOnlyError, RedisError, ResponseError

from fairlead.errors import BusUnavailable, FairleadError, NotAnswered
from fairlead.store.backlog import EXPECTED_REPLY, Backlog, Call, Priority
from fairlead.store.endpoint import CONNECT_TIMEOUT, Endpoint, RedisConnection, pack, patience, reconnect_delay
from fairlead.store.errors import ScriptError, reply_error
from fairlead.store.reply import Arg, Reply
from fairlead.store.reply_deadline import ReplyDeadline
from fairlead.store.reply_limit import ReplyLimit
from fairlead.store.script import Script

logger = logging.getLogger(__name__)

BATCH_TIMEOUT = 1.0
"""Seconds without a reply, from the first byte out to the last reply in. A healthy batch takes milliseconds."""
PROGRESS = 16
"""Replies after which a batch is given its time again: large ones on a slow line take long without anything wrong."""
BATCH_PATIENCE = 5
"""Times BATCH_TIMEOUT: the longest that a batch may take while its replies keep coming."""
WAITING_TIMEOUT = 30.0
"""Seconds that a call may wait to be sent, give or take a batch: longer than any caller waits. Batches take
milliseconds, and when one fails, so do all calls that wait: this ends the wait for a server that answers too slowly."""


class Pipeliner:
    """`available`, `last_error` and the counters may be read at any time; all calls belong to one event
    loop."""

    def __init__(
        self,
        url: str,
        *,
        batch_timeout: float = BATCH_TIMEOUT,
        connect_timeout: float = CONNECT_TIMEOUT,
        waiting_timeout: float = WAITING_TIMEOUT,
        client_name: str = "fairlead",
        allowance: ReplyLimit | None = None,
    ) -> None:
        self._endpoint = Endpoint(url, client_name, allowance)
        self.address = self._endpoint.address
        self._batch_timeout = batch_timeout
        self._connect_timeout = connect_timeout
        self._waiting_timeout = waiting_timeout
        self._backlog = Backlog()
        self._out: deque[Call] = deque()
        self._loaded: set[bytes] = set()
        self._wake = asyncio.Event()
        self._up = asyncio.Event()
        self._owner: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        """Kept, since Python 3.11 asks for its process id, a system call, whenever the running loop is looked up."""
        self.last_error = BusUnavailable(f"Redis at {self.address} is not connected yet")
        self.on_change: list[Callable[[bool], None]] = []
        """Called with `available` at each transition."""
        self.on_connect: Callable[[], None] | None = None
        """Called after each new connection: between it and the one before the server may have lost something."""
        self.on_batch: Callable[[float, int], None] | None = None
        """Called with the seconds and the number of commands of each answered batch."""
        self.last_latency = 0.0
        self.batches = 0
        self.commands = 0
        self.trips = 0

    @property
    def available(self) -> bool:
        """Whether the breaker is closed: calls go out. Without calls, a lost server goes unnoticed."""
        return self._up.is_set()

    @property
    def backlog(self) -> int:
        """Calls that wait to be sent."""
        return len(self._backlog)

    def waiting(self, priority: Priority) -> int:
        """Those of one priority."""
        return self._backlog.waiting(priority)

    def start(self) -> None:
        """Begin to connect. The first connection is made like any later one: see `wait_available`."""
        if self._owner is not None:
            raise RuntimeError("the pipeliner has been started already")
        self._owner = asyncio.create_task(self._own(), name=f"pipeliner {self.address}")

    async def aclose(self) -> None:
        """Close the connection. Calls that have no answer yet fail."""
        if self._owner is not None and not self._owner.done():
            self._owner.cancel()
            await asyncio.wait([self._owner])
        self._fail_all(BusUnavailable(f"this node has closed its connection to Redis at {self.address}"))

    async def wait_available(self, timeout: float) -> bool:
        try:
            async with asyncio.timeout(timeout):
                await self._up.wait()
        except TimeoutError:
            return False
        return True

    def submit(
        self, *args: Arg, priority: Priority = Priority.COMMANDS, expected: int = EXPECTED_REPLY
    ) -> asyncio.Future[Reply]:
        """Send one command, `submit("HSET", key, "field", 1)`. Those of one priority run in the order of submission.

        `expected`: bytes that the reply is expected to have, by which a batch is bounded. The future fails with
        `BusUnavailable` (at once when the breaker is open or the backlog of this priority is full) or `StoreError`.
        Cancelling it does not take the command back.
        """
        return self._enqueue(Call(self._future(), pack(args), None, priority, expected))

    def run(
        self,
        script: Script,
        keys: Sequence[bytes | str],
        args: Sequence[Arg],
        *,
        priority: Priority = Priority.COMMANDS,
        expected: int = EXPECTED_REPLY,
    ) -> asyncio.Future[Reply]:
        """Run a script; like `submit`, and the future may fail with `ScriptError`."""
        packed = pack((b"EVALSHA", script.sha, len(keys), *keys, *args))
        return self._enqueue(Call(self._future(), packed, script, priority, expected))

    def run_each(
        self,
        script: Script,
        calls: Sequence[tuple[Sequence[bytes | str], Sequence[Arg]]],
        *,
        priority: Priority = Priority.COMMANDS,
        expected: int = EXPECTED_REPLY,
    ) -> asyncio.Future[list[Reply | FairleadError]]:
        """Run a script once for each of `calls`, its keys and arguments, as one call with one answer.

        For work on many records of one kind, which is then dealt with as one answer: the call itself costs this process
        a tenth less than as many of `run`. The server sees the same commands, each with keys of its own. The future
        gives the replies in the order of `calls`; in place of an error reply stands the error that `run` would raise.
        It fails as a whole when the server is away. `calls` is not empty, and small enough for one batch; `expected` is
        meant for each of them.
        """
        sha = script.sha
        packed = b"".join([pack((b"EVALSHA", sha, len(keys), *keys, *args)) for keys, args in calls])
        future: asyncio.Future[list[Reply | FairleadError]] = self._future()
        self._enqueue(Call(future, packed, script, priority, expected * len(calls), len(calls), []))
        return future

    def submit_each(
        self,
        commands: Sequence[tuple[Arg, ...]],
        *,
        priority: Priority = Priority.COMMANDS,
        expected: int = EXPECTED_REPLY,
    ) -> asyncio.Future[list[Reply | FairleadError]]:
        """Send many commands as one call with one answer: as `run_each`, without a script."""
        future: asyncio.Future[list[Reply | FairleadError]] = self._future()
        packed = b"".join([pack(command) for command in commands])
        self._enqueue(Call(future, packed, None, priority, expected * len(commands), len(commands), []))
        return future

    def _future(self) -> asyncio.Future[Any]:
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        return self._loop.create_future()

    def _enqueue(self, call: Call) -> asyncio.Future[Reply]:
        if self._loop is not None:
            call.since = self._loop.time()
        if not self._up.is_set():
            call.fail(BusUnavailable(self.last_error.message), self.last_error)
        elif why := self._backlog.put(call):
            call.fail(BusUnavailable(f"{why} for Redis at {self.address}; the call was not sent"))
        else:
            self._wake.set()
        return call.future

    # -- the owner ---------------------------------------------------------------------------------

    async def _own(self) -> None:
        """Connect, pump until the connection is lost, again; until cancelled."""
        attempt = 0
        while True:
            connection = None
            served = self.batches
            try:
                connection = await self._endpoint.connect(patience(self._connect_timeout, attempt))
                self._loaded.clear()
                self._close_breaker()
                if self.on_connect is not None:
                    self.on_connect()
                await self._pump(connection)
                continue  # the server hung up between two batches: nothing is lost, connect again at once
            except BusUnavailable as e:
                self._trip(e)
            except Exception as e:
                # A defect of ours must cost calls, not the node: without its owner the store is dead for
                # ever.
                logger.exception("the pipeliner of Redis at %s failed", self.address)
                self._trip(BusUnavailable(f"the pipeliner of Redis at {self.address} failed: {e!r}"))
            finally:
                if connection is not None:
                    await connection.close()
            attempt = 0 if self.batches > served else attempt + 1
            await asyncio.sleep(reconnect_delay(attempt))

    async def _pump(self, connection: RedisConnection) -> None:
        """Exchange batches until the server hangs up between two of them."""
        served = self.batches
        while True:
            # Behind an answered batch the next one goes out at once: asking first would let the loop run before it is
            # sent, and the server would have nothing to do meanwhile.
            answered = self.batches > served and bool(self._backlog)
            if not self._backlog:
                self._wake.clear()
                await self._wake.wait()
            if not answered and await connection.is_spent():
                if self.batches > served:
                    return
                raise BusUnavailable(f"Redis at {self.address} hangs up on us")
            self._fail_overdue()
            if self._backlog:
                await self._exchange(connection)

    def _fail_overdue(self) -> None:
        for call in self._backlog.take_overdue(asyncio.get_running_loop().time() - self._waiting_timeout):
            waited = f"a call of priority {call.priority.label} has waited for {self._waiting_timeout:g} s"
            call.fail(BusUnavailable(f"{waited} for Redis at {self.address}, which is too slow; it was not sent"))

    def _take_batch(self) -> list[Script]:
        """Move the next batch from the backlog to `_out`; return the scripts this connection has yet to
        load."""
        self._out = self._backlog.take()
        missing: dict[bytes, Script] = {}
        loaded = self._loaded
        for call in self._out:
            script = call.script
            if script is not None and script.sha not in loaded:
                missing[script.sha] = script
        return list(missing.values())

    async def _exchange(self, connection: RedisConnection) -> None:
        """One batch out, all its replies in; `BusUnavailable` when that fails, with `_out` left to
        `_trip`."""
        missing = self._take_batch()
        count = sum([call.count for call in self._out])
        # Loading first, in the same batch: the usual first call or first call after a restart keeps its
        # place.
        chunks = [pack((b"SCRIPT", b"LOAD", script.source)) for script in missing]
        chunks += [call.packed for call in self._out]
        loop = asyncio.get_running_loop()
        started = loop.time()
        demoted = False
        again: list[Call] = []
        refused: dict[bytes, ResponseError] = {}

        deadline = ReplyDeadline(self._batch_timeout, self._batch_timeout * BATCH_PATIENCE)
        try:
            async with deadline.timeout:
                await connection.send(b"".join(chunks))
                for script in missing:
                    try:
                        await connection.read()
                        self._loaded.add(script.sha)
                    except ResponseError as e:
                        refused[script.sha] = e
                while self._out:
                    call = self._out[0]
                    if call.replies is not None:
                        demoted = await self._read_each(connection, call, call.replies, deadline.progress) or demoted
                        self._out.popleft()
                        if not call.future.done():
                            again.append(call)
                        continue
                    try:
                        reply = await connection.read()
                    except NoScriptError as e:
                        if call.script is None:
                            call.fail(reply_error(e, self.address, None), e)
                        elif call.script.sha in refused or call.repeated:
                            why = refused.get(call.script.sha, e)
                            call.fail(ScriptError(call.script.name, f"the server does not take it: {why}"), why)
                        else:
                            self._loaded.discard(call.script.sha)
                            call.repeated = True
                            again.append(call)
                    except ResponseError as e:
                        demoted = demoted or isinstance(e, ReadOnlyError)
                        call.fail(reply_error(e, self.address, call.script.name if call.script else None), e)
                    else:
                        if not call.future.done():
                            call.future.set_result(reply)
                    self._out.popleft()
                    if len(self._out) % PROGRESS == 0:
                        deadline.progress()
        except TimeoutError as e:
            raise BusUnavailable(f"Redis at {self.address} did not answer within {self._batch_timeout:g} s") from e
        except (RedisError, OSError) as e:
            raise BusUnavailable(f"the connection to Redis at {self.address} was lost: {e}") from e
        finally:
            deadline.stop()
            self._backlog.put_back(again)  # also when the batch fails: whoever awaits them must be told
        if demoted:
            # After a failover the name may lead to the new primary, but only a new connection looks it up.
            raise BusUnavailable(f"Redis at {self.address} has become a replica; looking for the primary")
        self.last_latency = loop.time() - started
        self.batches += 1
        self.commands += count
        if self.on_batch is not None:
            self.on_batch(self.last_latency, count)

    async def _read_each(
        self,
        connection: RedisConnection,
        call: Call,
        replies: list[Reply | FairleadError],
        progress: Callable[[], None],
    ) -> bool:
        """The replies to all commands of one call; whether one of them says that the server has become a replica.

        When the server has the script for none of them, none was executed: the call is left without an answer, to be
        repeated, once. Where it went missing amid them (SCRIPT FLUSH), that is an error of those commands.
        """
        demoted, missing = False, 0
        name = call.script.name if call.script else None
        while len(replies) < call.count:
            try:
                replies.append(await connection.read())
            except ResponseError as e:
                if isinstance(e, NoScriptError) and call.script is not None:
                    self._loaded.discard(call.script.sha)
                    missing += 1
                demoted = demoted or isinstance(e, ReadOnlyError)
                error = reply_error(e, self.address, name)
                error.__cause__ = e
                replies.append(error)
            if len(replies) % PROGRESS == 0:
                progress()
        if missing == call.count and not call.repeated:
            call.repeated = True
            replies.clear()
        elif not call.future.done():
            call.future.set_result(replies)
        return demoted

    # -- the breaker -------------------------------------------------------------------------------

    def _close_breaker(self) -> None:
        if not self._up.is_set():
            self._up.set()
            logger.info("Redis at %s answers", self.address)
            self._tell()

    def _trip(self, error: BusUnavailable) -> None:
        """Open the breaker, say so once, and fail every call that has no answer."""
        was_up = self._up.is_set()
        self._fail_all(error)
        if was_up:
            self.trips += 1
            logger.warning("%s; calls fail until it answers again", error.message)
            self._tell()

    def _fail_all(self, error: BusUnavailable) -> None:
        self._up.clear()
        self.last_error = error
        while self._out:
            self._out.popleft().fail(NotAnswered(f"{error.message}; the outcome of the call is unknown"), error)
        for call in self._backlog.clear():
            call.fail(BusUnavailable(f"{error.message}; the call was not sent"), error)

    def _tell(self) -> None:
        for callback in list(self.on_change):
            try:
                callback(self._up.is_set())
            except Exception:
                logger.exception("a watcher of Redis at %s failed", self.address)
