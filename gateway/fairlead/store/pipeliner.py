"""The pipeliner: sends all Redis commands of this process over one connection, in batches.

`fleet` and `bus` call it. The commands that are submitted while a batch is under way form the next batch, so a command
costs less the busier the node is, and no timer delays any command. Calls of one priority keep their order. The backlog
decides how many calls of each priority a batch takes and how many may wait; `CallBatch` sends a batch and reads its
replies.

The pipeliner never repeats a command whose outcome is unknown, because a repeated XADD is worse than an error. When
Redis does not answer a batch in time, the calls of the batch fail, the connection is closed and the circuit breaker
opens: later calls fail at once until a new connection has answered PING. A call of a script that the server does not
have was not executed, so the pipeliner repeats it once.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from fairlead.errors import BusUnavailable, FairleadError, NotAnswered
from fairlead.store.backlog import EXPECTED_REPLY, Backlog, Call, Priority
from fairlead.store.batch import CallBatch
from fairlead.store.endpoint import CONNECT_TIMEOUT, Endpoint, RedisConnection, connect_timeout, pack, reconnect_delay
from fairlead.store.reply import Arg, Reply
from fairlead.store.reply_limit import ReplyLimit
from fairlead.store.script import Script

logger = logging.getLogger(__name__)

BATCH_TIMEOUT = 1.0
"""Seconds without a reply after which a batch has failed. A healthy batch takes milliseconds."""
WAITING_TIMEOUT = 30.0
"""Seconds that a call may wait to be sent, accurate to one batch. It is longer than any caller waits. Batches take
milliseconds, and all waiting calls fail when one batch fails, so this limit applies only to a server that answers, but
too slowly."""


class Pipeliner:
    """One connection to Redis, its backlog and its circuit breaker.

    All calls belong to one event loop. `available`, `last_error` and the counters may be read at any time.
    """

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
        self._loaded: set[bytes] = set()
        """The digests of the scripts that the server has."""
        self._batch = CallBatch(deque(), self._loaded, self.address)
        self._wake = asyncio.Event()
        self._up = asyncio.Event()
        self._owner: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        """The running loop. It is kept because each lookup costs a system call in Python 3.11: it asks for the process
        id."""
        self.last_error = BusUnavailable(f"Redis at {self.address} is not connected yet")
        self.on_change: list[Callable[[bool], None]] = []
        """Functions to call with the new value of `available` whenever it changes."""
        self.on_connect: Callable[[], None] | None = None
        """Called after each new connection, because the server may have lost data since the previous connection."""
        self.on_batch: Callable[[float, int], None] | None = None
        """Called with the seconds and the number of commands of each answered batch."""
        self.on_wrong_type: Callable[[list[bytes]], None] | None = None
        """Called after a batch with the keys of its commands that found a value of another type."""
        self.last_latency = 0.0
        self.batches = 0
        self.commands = 0
        self.trips = 0

    @property
    def available(self) -> bool:
        """True while the circuit breaker is closed. A lost server is noticed only when a call is sent."""
        return self._up.is_set()

    @property
    def backlog(self) -> int:
        """The number of calls that wait to be sent."""
        return len(self._backlog)

    def waiting(self, priority: Priority) -> int:
        """The number of calls of one priority that wait to be sent."""
        return self._backlog.waiting(priority)

    def start(self) -> None:
        """Begin to connect; `wait_available` waits for the connection. The first connection is made like any later
        one."""
        if self._owner is not None:
            raise RuntimeError("the pipeliner has been started already")
        self._owner = asyncio.create_task(self._own(), name=f"pipeliner {self.address}")

    async def aclose(self) -> None:
        """Close the connection. Calls that have no reply yet fail."""
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
        """Send one command, for example `submit("HSET", key, "field", 1)`, and return a future of its reply.

        Commands of one priority run in the order in which they were submitted. `expected` is the expected size of the
        reply in bytes, by which batches are bounded. The future fails with `StoreError` or with `BusUnavailable`: at
        once if the circuit breaker is open or the backlog of this priority is full. Cancelling the future does not
        withdraw the command.
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
        """Run a script. It works like `submit`, and the future may also fail with `ScriptError`."""
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
        """Run a script once for each pair of keys and arguments in `calls`, as one call with one future.

        This is for work on many records of one kind whose replies are handled together. It costs this process a tenth
        less than as many calls of `run`; the server sees the same commands, each with its own keys. The future gives
        the replies in the order of `calls`, and in place of an error reply the error that `run` would raise. The whole
        future fails when the server is unavailable. `calls` must not be empty and must fit into one batch; `expected`
        is the expected size of each single reply.
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
        """Send many commands as one call with one future, as `run_each` does for a script."""
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

    # -- the connection ----------------------------------------------------------------------------

    async def _own(self) -> None:
        """Connect and exchange batches; reconnect whenever the connection is lost. Runs until it is cancelled."""
        attempt = 0
        while True:
            connection = None
            served = self.batches
            try:
                connection = await self._endpoint.connect(connect_timeout(self._connect_timeout, attempt))
                self._loaded.clear()
                self._close_breaker()
                if self.on_connect is not None:
                    self.on_connect()
                await self._pump(connection)
                continue  # the server closed the connection between two batches: nothing is lost, reconnect at once
            except BusUnavailable as e:
                self._trip(e)
            except Exception as e:
                # A bug of ours may fail calls but must not end this task: without it, no call is ever sent again.
                logger.exception("the pipeliner of Redis at %s failed", self.address)
                self._trip(BusUnavailable(f"the pipeliner of Redis at {self.address} failed: {e!r}"))
            finally:
                if connection is not None:
                    await connection.close()
            attempt = 0 if self.batches > served else attempt + 1
            await asyncio.sleep(reconnect_delay(attempt))

    async def _pump(self, connection: RedisConnection) -> None:
        """Exchange batches until the server closes the connection between two of them."""
        served = self.batches
        while True:
            # After an answered batch, the next one is sent at once. Checking the connection first would let the event
            # loop run before the batch is sent, and the server would be idle meanwhile.
            answered = self.batches > served and bool(self._backlog)
            if not self._backlog:
                self._wake.clear()
                await self._wake.wait()
                await asyncio.sleep(0)  # what the other callbacks of this turn submit belongs to the same batch
            if not answered and await connection.is_spent():
                if self.batches > served:
                    return
                raise BusUnavailable(f"Redis at {self.address} closed the connection")
            self._fail_overdue()
            if self._backlog:
                await self._exchange(connection)

    def _fail_overdue(self) -> None:
        for call in self._backlog.take_overdue(asyncio.get_running_loop().time() - self._waiting_timeout):
            waited = f"a call of priority {call.priority.label} has waited for {self._waiting_timeout:g} s"
            call.fail(BusUnavailable(f"{waited} for Redis at {self.address}, which is too slow; it was not sent"))

    async def _exchange(self, connection: RedisConnection) -> None:
        """Exchange the next batch. If that fails, `_batch` holds the calls without a reply, which `_trip` fails."""
        batch = self._batch = CallBatch(self._backlog.take(), self._loaded, self.address)
        try:
            seconds = await batch.exchange(connection, self._batch_timeout)
        finally:
            self._backlog.put_back(batch.again)  # also when the batch fails: `_fail_all` then fails these calls
        if batch.demoted:
            # After a failover, the host name may resolve to the new primary, but only a new connection resolves it.
            raise BusUnavailable(f"Redis at {self.address} has become a replica; looking for the primary")
        self.last_latency = seconds
        self.batches += 1
        self.commands += batch.count
        if self.on_batch is not None:
            self.on_batch(seconds, batch.count)
        if batch.mistyped and self.on_wrong_type is not None:
            self.on_wrong_type(batch.mistyped)

    # -- the circuit breaker -----------------------------------------------------------------------

    def _close_breaker(self) -> None:
        if not self._up.is_set():
            self._up.set()
            logger.info("Redis at %s answers", self.address)
            self._tell()

    def _trip(self, error: BusUnavailable) -> None:
        """Open the circuit breaker, log that once, and fail every call that has no reply."""
        was_up = self._up.is_set()
        self._fail_all(error)
        if was_up:
            self.trips += 1
            logger.warning("%s; calls fail until it answers again", error.message)
            self._tell()

    def _fail_all(self, error: BusUnavailable) -> None:
        self._up.clear()
        self.last_error = error
        while self._batch.unanswered:
            call = self._batch.unanswered.popleft()
            call.fail(NotAnswered(f"{error.message}; the outcome of the call is unknown"), error)
        for call in self._backlog.clear():
            call.fail(BusUnavailable(f"{error.message}; the call was not sent"), error)

    def _tell(self) -> None:
        for callback in list(self.on_change):
            try:
                callback(self._up.is_set())
            except Exception:
                logger.exception("a callback for the availability of Redis at %s failed", self.address)
