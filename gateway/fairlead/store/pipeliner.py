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
import random
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from fairlead.errors import BusUnavailable, FairleadError, NotAnswered
from fairlead.store.backlog import EXPECTED_REPLY, Backlog, Call, Priority
from fairlead.store.batch import CallBatch, Redirected
from fairlead.store.endpoint import CONNECT_TIMEOUT, Endpoint, RedisConnection, connect_timeout, reconnect_delay
from fairlead.store.reply import Arg, Reply
from fairlead.store.reply_limit import ReplyLimit
from fairlead.store.servers.confirmer import Confirmer
from fairlead.store.servers.server_identity import identify
from fairlead.store.store import Store

logger = logging.getLogger(__name__)

BATCH_TIMEOUT = 1.0
"""Seconds without a reply after which a batch has failed. A healthy batch takes milliseconds."""
WAITING_TIMEOUT = 30.0
"""Seconds that a call may wait to be sent, accurate to one batch. It is longer than any caller waits. Batches take
milliseconds, and all waiting calls fail when one batch fails, so this limit applies only to a server that answers, but
too slowly."""
SENTINEL_PERIOD = 3.0
"""Seconds between two questions to Sentinels whether the primary is still the same one."""


class Pipeliner(Store):
    """One connection to Redis, its backlog and its circuit breaker."""

    def __init__(
        self,
        url: str,
        *,
        batch_timeout: float = BATCH_TIMEOUT,
        connect_timeout: float = CONNECT_TIMEOUT,
        waiting_timeout: float = WAITING_TIMEOUT,
        client_name: str = "fairlead",
        allowance: ReplyLimit | None = None,
        endpoint: Endpoint | None = None,
        confirmer: Confirmer | None = None,
    ) -> None:
        """`endpoint` is the server, if it is not simply the one that `url` leads to. A `confirmer` holds answers
        back."""
        super().__init__()
        self._url, self._client_name = url, client_name
        self._endpoint = endpoint or Endpoint(url, client_name, allowance)
        self._batch_timeout = batch_timeout
        self._connect_timeout = connect_timeout
        self._waiting_timeout = waiting_timeout
        self._backlog = Backlog()
        self._confirmer = confirmer
        self._confirming: asyncio.Task[None] | None = None
        self._server = ""
        """The server of the newest connection."""
        self._loaded: set[bytes] = set()
        """The digests of the scripts that the server has."""
        self._batch = CallBatch(deque(), self._loaded, self.address)
        self._wake = asyncio.Event()
        self._owner: asyncio.Task[None] | None = None
        self._successor = ""
        """The address of the server that has taken the place of this one, as the Sentinels say."""
        self.last_error = BusUnavailable(f"Redis at {self.address} is not connected yet")
        self.on_redirect: Callable[[Redirected], None] | None = None
        """Takes the calls that were not executed because their keys are on another server of the Cluster. Without it
        they fail."""
        self.on_cluster_down: Callable[[], None] | None = None
        """Called after a batch in which this server has said that its Cluster is down."""
        self.low_memory = False
        self.last_latency = 0.0
        self.batches = 0
        self.commands = 0
        self.trips = 0

    @property
    def address(self) -> str:  # type: ignore[override]  # read-only here: the endpoint looks it up
        return self._endpoint.address

    @property
    def backlog(self) -> int:
        return len(self._backlog)

    def waiting(self, priority: Priority) -> int:
        return self._backlog.waiting(priority)

    def primaries(self) -> dict[str, bool]:
        return {self.address: self.available}

    @property
    def unconfirmed(self) -> str:
        return "" if self._confirmer is None else self._confirmer.problem

    @property
    def confirmations(self) -> tuple[int, int]:
        return (0, 0) if self._confirmer is None else (self._confirmer.confirmations, self._confirmer.failures)

    def answers(self, key: str) -> bool:
        return self.available

    def owner(self, key: str) -> str:
        return ""

    def owners(self) -> dict[str, bool]:
        return {"": self.available}

    def tag_of(self, owner: str) -> str:
        return ""

    async def look_at_servers(self) -> None:
        pass  # each connection looks it up

    def endpoint(self, key: str, client_name: str) -> Endpoint:
        return Endpoint(self._url, client_name)

    def start(self) -> None:
        if self._owner is not None:
            raise RuntimeError("the pipeliner has been started already")
        self._loop = asyncio.get_running_loop()
        self._owner = asyncio.create_task(self._own(), name=f"pipeliner {self.address}")
        if self._confirmer is not None:
            self._confirming = asyncio.create_task(self._confirmer.run(), name=f"confirmer {self.address}")

    async def aclose(self) -> None:
        if self._owner is not None and not self._owner.done():
            self._owner.cancel()
            await asyncio.wait([self._owner])
        if self._confirmer is not None and self._confirming is not None:
            self._confirming.cancel()
            await asyncio.wait([self._confirming])
            await self._confirmer.aclose()
        self._fail_all(BusUnavailable(f"this node has closed its connection to Redis at {self.address}"))
        await self._endpoint.aclose()

    def submit_to(
        self, address: str, *args: Arg, priority: Priority = Priority.COMMANDS, expected: int = EXPECTED_REPLY
    ) -> asyncio.Future[Reply]:
        return self.submit(*args, priority=priority, expected=expected)

    def _enqueue_each(
        self, packed: list[bytes], words: Sequence[Sequence[Arg]], like: Call
    ) -> asyncio.Future[list[Reply | FairleadError]]:
        count = len(packed)
        call = Call(like.future, b"".join(packed), like.script, like.priority, like.expected * count, count, [])
        return self._enqueue(call, ())

    def _enqueue(self, call: Call, words: Sequence[Arg]) -> asyncio.Future[Any]:
        if self._loop is not None:
            call.since = self._loop.time()
        if not self._up.is_set():
            call.fail(BusUnavailable(self.last_error.message), self.last_error)
        elif why := self._backlog.put(call):
            call.fail(BusUnavailable(f"{why} for Redis at {self.address}; the call was not sent"))
        else:
            self._wake.set()
        return call.future

    def send_first(self, calls: list[Call]) -> None:
        """Queue calls that another server of a Cluster has passed on before the others of their priorities."""
        if not self._up.is_set():
            for call in calls:
                call.fail(BusUnavailable(f"{self.last_error.message}; the call was not executed"), self.last_error)
            return
        now = asyncio.get_running_loop().time()
        for call in calls:
            call.since = now
        self._backlog.put_back(calls)
        self._wake.set()

    # -- the connection ----------------------------------------------------------------------------

    async def _own(self) -> None:
        """Connect and exchange batches; reconnect whenever the connection is lost. Runs until it is cancelled."""
        attempt = 0
        while True:
            connection = None
            served = self.batches
            try:
                connection = await self._endpoint.connect(connect_timeout(self._connect_timeout, attempt))
                seconds = connect_timeout(self._connect_timeout, attempt)
                server = await identify(connection, self._client_name, self.address, seconds)
                if self._server not in ("", server):  # those who wait relied on the data of the server before
                    self._backlog.fail_all(f"another server has taken over at {self.address}; the call was not sent")
                self._server = server
                self._loaded.clear()
                self._close_breaker()
                if self.on_connect is not None:
                    self.on_connect("")
                await self._serve(connection)
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

    async def _serve(self, connection: RedisConnection) -> None:
        """Exchange batches, while the Sentinels are asked whether this server still is the primary, if there are
        any."""
        self._successor = ""
        if self._endpoint.sentinels is None:
            await self._pump(connection)
            return
        watch = asyncio.create_task(self._watch_sentinels(), name=f"sentinels of {self.address}")
        try:
            await self._pump(connection)
        finally:
            watch.cancel()

    async def _watch_sentinels(self) -> None:
        while not self._successor:
            await asyncio.sleep(SENTINEL_PERIOD * random.uniform(0.75, 1.25))
            self._successor = await self._endpoint.superseded()
        self._wake.set()

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
            if self._successor:
                raise BusUnavailable(f"Redis at {self.address} is no longer the primary: {self._successor} is")
            if not answered and connection.spent:
                if self.batches > served:
                    return
                raise BusUnavailable(f"Redis at {self.address} closed the connection")
            self._fail_overdue()
            if self._backlog:
                await self._exchange(connection)

    def _fail_overdue(self) -> None:
        assert self._loop is not None
        for call in self._backlog.take_overdue(self._loop.time() - self._waiting_timeout):
            waited = f"a call of priority {call.priority.label} has waited for {self._waiting_timeout:g} s"
            call.fail(BusUnavailable(f"{waited} for Redis at {self.address}, which is too slow; it was not sent"))

    async def _exchange(self, connection: RedisConnection) -> None:
        """Exchange the next batch. If that fails, `_batch` holds the calls without a reply, which `_trip` fails."""
        batch = self._batch = CallBatch(
            self._backlog.take(), self._loaded, self.address, self.on_redirect is not None, self._confirmer is not None
        )
        try:
            seconds = await batch.exchange(connection, self._batch_timeout)
        finally:
            if batch.held and self._confirmer is not None:
                self._confirmer.hold(batch.held, self._server)
            self._backlog.put_back(batch.again)  # also when the batch fails: `_fail_all` then fails these calls
            if batch.redirected and self.on_redirect is not None:
                self.on_redirect(batch.redirected)
        if batch.demoted:
            # After a failover, the host name may resolve to the new primary, but only a new connection resolves it.
            raise BusUnavailable(f"Redis at {self.address} has become a replica; looking for the primary")
        if batch.cluster_down and self.on_cluster_down is not None:
            self.on_cluster_down()
        self.low_memory = self.low_memory or batch.out_of_memory
        self.last_latency = seconds
        self._backlog.answered(seconds)
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
        self._backlog.fail_all(f"{error.message}; the call was not sent", error)
