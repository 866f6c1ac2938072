"""The auto-pipeliner: every command of this process over one connection, in batches, in order.

Called by `fleet` and `bus`. What is submitted while a batch is out forms the next batch, so the busier the
node, the cheaper a command; no timer delays anything. It never repeats a command whose outcome is unknown (a
doubled XADD is worse than an error): when a batch is not answered in time, its calls fail, the connection is
closed and the breaker opens, which makes later calls fail at once until a probe has seen the server answer
again. A call of a script the server does not have was not executed, so that one is repeated, once.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence

from redis.exceptions import NoScriptError, ReadOnlyError, RedisError, ResponseError

from fairlead.errors import BusUnavailable, FairleadError, NotAnswered
from fairlead.store.endpoint import CONNECT_TIMEOUT, Connection, Endpoint, pack, patience, reconnect_delay
from fairlead.store.errors import ScriptError, reply_error
from fairlead.store.reply import Arg, Reply
from fairlead.store.script import Script

logger = logging.getLogger(__name__)

BATCH_COMMANDS = 256
"""Where the gain per command levels off; it also bounds how long one batch keeps the loop (about 1 ms)."""
BATCH_BYTES = 4 << 20
"""What a server takes in some milliseconds, far inside the time-out. A larger command goes alone."""
BACKLOG_COMMANDS = 8192
"""About 32 full batches, a tenth of a second of work: whoever queues more should hear of it."""
BACKLOG_BYTES = 64 << 20
"""The node's memory bound for waiting commands."""
BATCH_TIMEOUT = 1.0
"""Seconds from the first byte out to the last reply in. A healthy batch takes milliseconds."""


class _Call:
    __slots__ = ("future", "packed", "repeated", "script")

    def __init__(self, future: asyncio.Future[Reply], packed: bytes, script: Script | None) -> None:
        self.future = future
        self.packed = packed
        self.script = script
        self.repeated = False

    def fail(self, error: FairleadError, cause: BaseException | None = None) -> None:
        if self.future.done():
            return
        error.__cause__ = cause
        self.future.set_exception(error)
        if isinstance(error, BusUnavailable):
            # An abandoned call must not fill the log during an outage; a defect (ScriptError) should.
            self.future.exception()


class Pipeliner:
    """`available`, `last_error` and the counters may be read at any time; all calls belong to one event
    loop."""

    def __init__(
        self,
        url: str,
        *,
        batch_timeout: float = BATCH_TIMEOUT,
        connect_timeout: float = CONNECT_TIMEOUT,
        client_name: str = "fairlead",
    ) -> None:
        self._endpoint = Endpoint(url, client_name)
        self.address = self._endpoint.address
        self._batch_timeout = batch_timeout
        self._connect_timeout = connect_timeout
        self._backlog: deque[_Call] = deque()
        self._backlog_bytes = 0
        self._out: deque[_Call] = deque()
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
        return len(self._backlog)

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

    def submit(self, *args: Arg) -> asyncio.Future[Reply]:
        """Send one command, `submit("HSET", key, "field", 1)`. Commands run in the order of submission.

        The future fails with `BusUnavailable` (at once when the breaker is open or the backlog is full) or
        `StoreError`. Cancelling it does not take the command back.
        """
        return self._enqueue(_Call(self._future(), pack(args), None))

    def run(self, script: Script, keys: Sequence[bytes | str], args: Sequence[Arg]) -> asyncio.Future[Reply]:
        """Run a script; like `submit`, and the future may fail with `ScriptError`."""
        packed = pack((b"EVALSHA", script.sha, len(keys), *keys, *args))
        return self._enqueue(_Call(self._future(), packed, script))

    def _future(self) -> asyncio.Future[Reply]:
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        return self._loop.create_future()

    def _enqueue(self, call: _Call) -> asyncio.Future[Reply]:
        if not self._up.is_set():
            call.fail(BusUnavailable(self.last_error.message), self.last_error)
        elif len(self._backlog) >= BACKLOG_COMMANDS or self._backlog_bytes + len(call.packed) > BACKLOG_BYTES:
            call.fail(
                BusUnavailable(
                    f"backlog full: {len(self._backlog)} commands of {self._backlog_bytes} bytes wait for "
                    f"Redis at {self.address} (limits {BACKLOG_COMMANDS} and {BACKLOG_BYTES}); "
                    "the call was not sent"
                )
            )
        else:
            self._backlog.append(call)
            self._backlog_bytes += len(call.packed)
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

    async def _pump(self, connection: Connection) -> None:
        """Exchange batches until the server hangs up between two of them."""
        served = self.batches
        while True:
            if not self._backlog:
                self._wake.clear()
                await self._wake.wait()
            if await connection.is_spent():
                if self.batches > served:
                    return
                raise BusUnavailable(f"Redis at {self.address} hangs up on us")
            await self._exchange(connection)

    def _take_batch(self) -> list[Script]:
        """Move the next batch from the backlog to `_out`; return the scripts this connection has yet to
        load."""
        missing: dict[bytes, Script] = {}
        size = 0
        while self._backlog and len(self._out) < BATCH_COMMANDS:
            call = self._backlog[0]
            if self._out and size + len(call.packed) > BATCH_BYTES:
                break
            self._backlog.popleft()
            self._out.append(call)
            size += len(call.packed)
            if call.script is not None and call.script.sha not in self._loaded:
                missing[call.script.sha] = call.script
        self._backlog_bytes -= size
        return list(missing.values())

    async def _exchange(self, connection: Connection) -> None:
        """One batch out, all its replies in; `BusUnavailable` when that fails, with `_out` left to
        `_trip`."""
        missing = self._take_batch()
        count = len(self._out)
        # Loading first, in the same batch: the usual first call or first call after a restart keeps its
        # place.
        chunks = [pack((b"SCRIPT", b"LOAD", script.source)) for script in missing]
        chunks += [call.packed for call in self._out]
        loop = asyncio.get_running_loop()
        started = loop.time()
        demoted = False
        again: list[_Call] = []
        refused: dict[bytes, ResponseError] = {}
        try:
            async with asyncio.timeout(self._batch_timeout):
                await connection.send(b"".join(chunks))
                for script in missing:
                    try:
                        await connection.read()
                        self._loaded.add(script.sha)
                    except ResponseError as e:
                        refused[script.sha] = e
                while self._out:
                    call = self._out[0]
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
        except TimeoutError as e:
            raise BusUnavailable(f"Redis at {self.address} did not answer within {self._batch_timeout:g} s") from e
        except (RedisError, OSError) as e:
            raise BusUnavailable(f"the connection to Redis at {self.address} was lost: {e}") from e
        self._backlog.extendleft(reversed(again))
        self._backlog_bytes += sum(len(call.packed) for call in again)
        if demoted:
            # After a failover the name may lead to the new primary, but only a new connection looks it up.
            raise BusUnavailable(f"Redis at {self.address} has become a replica; looking for the primary")
        self.last_latency = loop.time() - started
        self.batches += 1
        self.commands += count
        if self.on_batch is not None:
            self.on_batch(self.last_latency, count)

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
        while self._backlog:
            self._backlog.popleft().fail(BusUnavailable(f"{error.message}; the call was not sent"), error)
        self._backlog_bytes = 0

    def _tell(self) -> None:
        for callback in list(self.on_change):
            try:
                callback(self._up.is_set())
            except Exception:
                logger.exception("a watcher of Redis at %s failed", self.address)
