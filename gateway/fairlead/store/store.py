"""What `fleet` and `bus` call Redis by: commands and scripts in, futures of their replies out.

`Pipeliner` implements it for one server, `cluster.ClusterStore` for the primaries of a Cluster; `servers.opening` makes
the one that a URL asks for. A caller names keys and never servers. The few calls without a key, such as INFO, go to one
server, or to each of them with `submit_to_each`.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fairlead.errors import BusUnavailable, FairleadError
from fairlead.store.backlog import EXPECTED_REPLY, Call, Priority
from fairlead.store.endpoint import Endpoint, pack
from fairlead.store.reply import Arg, Reply
from fairlead.store.script import WRITE, Script

logger = logging.getLogger(__name__)


class Store(ABC):
    """All calls belong to one event loop. `available`, `last_error` and the counters may be read at any time."""

    address: str
    """Names the server in messages."""
    last_error: BusUnavailable
    last_latency: float
    batches: int
    commands: int
    trips: int
    """Times that a server was lost."""
    low_memory: bool
    """Whether the server refuses what needs memory, or may soon. Whoever watches its memory sets it, too."""
    on_connect: Callable[[str], None] | None
    """Called after each new connection with the name that `owner` gives its server, because that may have lost data
    since the previous connection."""
    on_batch: Callable[[float, int], None] | None
    """Called with the seconds and the number of commands of each answered batch."""
    on_wrong_type: Callable[[list[bytes]], None] | None
    """Called after a batch with the keys of its commands that found a value of another type."""

    def __init__(self) -> None:
        self._up = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        """The running loop, kept because each lookup costs a system call in Python 3.11."""
        self.on_change: list[Callable[[bool], None]] = []
        """Functions to call with the new value of `available` whenever it changes."""
        self.on_connect = None
        self.on_batch = None
        self.on_wrong_type = None

    @property
    def available(self) -> bool:
        """True while calls are sent: in a Cluster, to some of its primaries. A lost server is noticed only when a call
        is sent."""
        return self._up.is_set()

    async def wait_available(self, timeout: float) -> bool:
        try:
            async with asyncio.timeout(timeout):
                await self._up.wait()
        except TimeoutError:
            return False
        return True

    @property
    @abstractmethod
    def backlog(self) -> int:
        """The number of calls that wait to be sent."""

    @abstractmethod
    def waiting(self, priority: Priority) -> int:
        """The number of calls of one priority that wait to be sent."""

    @abstractmethod
    def primaries(self) -> Mapping[str, bool]:
        """Whether each server that calls are sent to answers, by its address."""

    @property
    def copies(self) -> int:
        """Into how many parts of the data the fleet writes what must not depend on one server."""
        return 1

    @property
    def partly_away(self) -> bool:
        """True while some servers of a Cluster answer and others do not."""
        return len(set(self.primaries().values())) > 1

    @property
    @abstractmethod
    def unconfirmed(self) -> str:
        """Why answers are not confirmed at present, in a Cluster those of some primary, so that they are not told; ""
        if they are, or need not be."""

    def unconfirmed_at(self, key: str) -> str:
        """The same of the server that has `key`."""
        return self.unconfirmed

    @property
    @abstractmethod
    def confirmations(self) -> tuple[int, int]:
        """How often answers were confirmed, and how often they could not be."""

    @abstractmethod
    def answers(self, key: str) -> bool:
        """Whether the server that has `key` answers, as far as this store knows."""

    @abstractmethod
    def owner(self, key: str) -> str:
        """Names the server that has `key`: in a Cluster by its address, and "" for a single server, whatever its
        address is at present. "" also if no server has the key."""

    @abstractmethod
    def owners(self) -> Mapping[str, bool]:
        """Whether each server that `owner` names answers."""

    @abstractmethod
    def tag_of(self, owner: str) -> str:
        """A hash tag whose keys the server that `owner` names has; "" if it has all keys, or too few to find one.
        Raises BusUnavailable if it has none."""

    @abstractmethod
    async def look_at_servers(self) -> None:
        """Find out again which server has which keys."""

    @abstractmethod
    def start(self) -> None:
        """Begin to connect; `wait_available` waits for the connection. The first connection is made like any later
        one."""

    @abstractmethod
    async def aclose(self) -> None:
        """Close the connection. Calls that have no reply yet fail."""

    @abstractmethod
    def endpoint(self, key: str, client_name: str) -> Endpoint:
        """The server that has `key`, for a connection beside this one: that of a blocking read."""

    @abstractmethod
    def submit_to(
        self, address: str, *args: Arg, priority: Priority = Priority.COMMANDS, expected: int = EXPECTED_REPLY
    ) -> asyncio.Future[Reply]:
        """Send a command to one of `primaries`, or of `owners`, whatever its keys are."""

    def submit_to_each(
        self, *args: Arg, priority: Priority = Priority.COMMANDS, expected: int = EXPECTED_REPLY
    ) -> dict[str, asyncio.Future[Reply]]:
        """Send a command without a key to every server. Returns the replies by the address of the server."""
        return {
            address: self.submit_to(address, *args, priority=priority, expected=expected)
            for address in self.primaries()
        }

    @abstractmethod
    def _enqueue(self, call: Call, words: Sequence[Arg]) -> asyncio.Future[Any]:
        """Queue a call. `words` are the keys of a script, or a whole command."""

    @abstractmethod
    def _enqueue_each(
        self, packed: list[bytes], words: Sequence[Sequence[Arg]], like: Call
    ) -> asyncio.Future[list[Reply | FairleadError]]:
        """Queue many commands, whose script, priority and expected size of each reply are those of `like`, with the
        future of `like`."""

    def submit(
        self, *args: Arg, priority: Priority = Priority.COMMANDS, expected: int = EXPECTED_REPLY,
        told: bool | None = None,
    ) -> asyncio.Future[Reply]:  # fmt: skip
        """Send one command, for example `submit("HSET", key, "field", 1)`, and return a future of its reply.

        Commands of one priority run in the order in which they were submitted. `expected` is the expected size of the
        reply in bytes, by which batches are bounded. The future fails with `StoreError` or with `BusUnavailable`: at
        once if the circuit breaker is open or the backlog of this priority is full. Cancelling the future does not
        withdraw the command. `told` says whether the reply is told, if its priority does not say it (see `Call`).
        """
        call = Call(self._future(), pack(args), None, priority, expected)
        if told is not None:
            call.told = told
        return self._enqueue(call, args)

    def run(
        self, script: Script, keys: Sequence[bytes | str], args: Sequence[Arg], *,
        priority: Priority = Priority.COMMANDS, expected: int = EXPECTED_REPLY, told: bool | None = None,
        count: int = 1,
    ) -> asyncio.Future[Reply]:  # fmt: skip
        """Run a script. It works like `submit`, and the future may also fail with `ScriptError`. `count` is how many
        calls it is in its batch, if it does the work of several."""
        packed = pack((b"EVALSHA", script.sha, len(keys), *keys, *args))
        call = Call(self._future(), packed, script, priority, expected, count)
        if told is not None:
            call.told = told
        return self._enqueue(call, keys)

    def write(
        self, name: str, key: bytes | str, *args: Arg, priority: Priority = Priority.COMMANDS, told: bool | None = None
    ) -> asyncio.Future[Reply]:
        """Send a command with one key as `submit` does, and so that it succeeds when the server is out of memory."""
        if self.low_memory:
            return self.run(WRITE, (key,), (name, *args), priority=priority, told=told)
        words = (name, key, *args)
        call = Call(self._future(), pack(words), None, priority, EXPECTED_REPLY)
        call.must_fit = True  # the memory may have become full a moment ago
        if told is not None:
            call.told = told
        return self._enqueue(call, words)

    def run_each(
        self,
        script: Script,
        calls: Sequence[tuple[Sequence[bytes | str], Sequence[Arg]]],
        *,
        priority: Priority = Priority.COMMANDS,
        expected: int = EXPECTED_REPLY,
    ) -> asyncio.Future[list[Reply | FairleadError]]:
        """Run a script once for each pair of keys and arguments in `calls`, as one call with one future.

        It costs this process a tenth less than as many calls of `run`; the server sees the same commands. The future
        gives the replies in the order of `calls`, and in place of an error reply the error that `run` would raise. The
        whole future fails when the server is unavailable. `calls` must not be empty and must fit into one batch;
        `expected` is the expected size of each single reply.
        """
        sha = script.sha
        packed = [pack((b"EVALSHA", sha, len(keys), *keys, *args)) for keys, args in calls]
        like = Call(self._future(), b"", script, priority, expected)
        return self._enqueue_each(packed, [keys for keys, _ in calls], like)

    def submit_each(
        self, commands: Sequence[tuple[Arg, ...]], *, priority: Priority = Priority.COMMANDS,
        expected: int = EXPECTED_REPLY,
    ) -> asyncio.Future[list[Reply | FairleadError]]:  # fmt: skip
        """Send many commands as one call with one future, as `run_each` does for a script."""
        like = Call(self._future(), b"", None, priority, expected)
        return self._enqueue_each([pack(command) for command in commands], commands, like)

    def _future(self) -> asyncio.Future[Any]:
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        return self._loop.create_future()

    def _tell(self) -> None:
        for callback in list(self.on_change):
            try:
                callback(self._up.is_set())
            except Exception:
                logger.exception("a callback for the availability of Redis at %s failed", self.address)
