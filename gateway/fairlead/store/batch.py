"""One batch: the calls that go to Redis together, and their replies in the same order.

Only the pipeliner uses it, and makes one `CallBatch` for each exchange. A call of a script that the server does not
have was not executed, so it is kept for one repetition, and so is one that must fit into a full memory. No other call
is ever sent twice.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, TypeAlias

from redis.exceptions import AskError, NoScriptError, ReadOnlyError, RedisError, ResponseError, TryAgainError

from fairlead.errors import BusUnavailable, FairleadError
from fairlead.store.backlog import Call
from fairlead.store.endpoint import RedisConnection, keys_of, pack, words_of
from fairlead.store.errors import CLUSTER_DOWN, OUT_OF_MEMORY, WRONG_TYPE, ScriptError, reply_code, reply_error
from fairlead.store.reply import Reply
from fairlead.store.reply_deadline import ReplyDeadline
from fairlead.store.script import WRITE, Script
from fairlead.store.servers.server_identity import GET_NAME

PROGRESS = 16
"""Number of replies after which the timeout of a batch begins again: large replies on a slow line take long, although
nothing is wrong."""
BATCH_LIMIT = 5
"""Multiple of the timeout that a batch may take at most while its replies keep arriving."""

Redirected: TypeAlias = "list[tuple[Call, AskError | TryAgainError]]"
"""Calls that a server of a Cluster did not execute, and why: MOVED (an `AskError` too), ASK or TRYAGAIN."""


class CallBatch:
    """The calls of one batch. `loaded` has the digests of the scripts that the server has, and is kept up to date.

    After `exchange`, `unanswered` holds the calls without a reply (none, unless the exchange failed), and `again` the
    calls to send once more. `redirected` has those that belong to another server of a Cluster. `demoted` is True if a
    reply said that the server has become a replica, `cluster_down` if one said that its cluster is down, and
    `out_of_memory` if one said that its memory is full. `mistyped` are the keys of commands that found a value of
    another type. `count` is the number of commands.
    """

    __slots__ = (
        "_address", "_hold", "_loaded", "_redirects", "_refused", "again", "cluster_down", "count", "demoted", "held",
        "mistyped", "out_of_memory", "redirected", "unanswered",
    )  # fmt: skip

    def __init__(
        self, calls: deque[Call], loaded: set[bytes], address: str, redirects: bool = False, hold: bool = False
    ) -> None:
        """`redirects` tells that somebody sends calls to where they belong; without it they fail."""
        self.unanswered = calls
        self._hold = hold
        self.held: list[tuple[Call, Any]] = []
        self.redirected: Redirected = []
        self._redirects = redirects
        self.again: list[Call] = []
        self.demoted = False
        self.cluster_down = False
        self.out_of_memory = False
        self.mistyped: list[bytes] = []
        self.count = sum([call.count for call in calls])
        self._loaded = loaded
        self._refused: dict[bytes, ResponseError] = {}
        """The server's errors for the scripts that it would not load."""
        self._address = address

    async def exchange(self, connection: RedisConnection, timeout: float) -> float:
        """Send all calls and read their replies; return the seconds that it took. Raises `BusUnavailable` if the
        connection is lost or no reply comes within `timeout` seconds.
        """
        # Scripts are loaded at the start of the same batch, so that the first call of a script, also after a restart
        # of the server, keeps its place in the order.
        missing = self._missing_scripts()
        chunks = [pack((b"SCRIPT", b"LOAD", script.source)) for script in missing]
        chunks += [call.packed for call in self.unanswered]
        if connection.name:
            chunks.insert(0, GET_NAME)
        clock = asyncio.get_running_loop().time
        started = clock()
        deadline = ReplyDeadline(timeout, timeout * BATCH_LIMIT)
        try:
            async with deadline.timeout:
                connection.send(b"".join(chunks))
                if connection.name and await connection.read() != connection.name:
                    # Something between has led it to another server: its answers are no answers to whoever asked.
                    raise BusUnavailable(f"the connection to Redis at {self._address} leads to another server now")
                for script in missing:
                    await self._read_loaded(connection, script)
                await self._read_replies(connection, deadline.progress)
        except TimeoutError as e:
            raise BusUnavailable(f"Redis at {self._address} did not answer within {timeout:g} s") from e
        except (RedisError, OSError) as e:
            raise BusUnavailable(f"the connection to Redis at {self._address} was lost: {e}") from e
        finally:
            deadline.stop()
        return clock() - started

    def _missing_scripts(self) -> list[Script]:
        """The scripts of this batch that the server does not have yet."""
        missing: dict[bytes, Script] = {}
        loaded = self._loaded
        for call in self.unanswered:
            script = call.script
            if script is not None and script.sha not in loaded:
                missing[script.sha] = script
        return list(missing.values())

    async def _read_loaded(self, connection: RedisConnection, script: Script) -> None:
        try:
            await connection.read()
            self._loaded.add(script.sha)
        except ResponseError as e:
            self._refused[script.sha] = e

    async def _read_replies(self, connection: RedisConnection, progress: Callable[[], None]) -> None:
        calls = self.unanswered
        while calls:
            call = calls[0]
            if call.replies is not None:
                await self._read_each(connection, call, call.replies, progress)
                calls.popleft()
                continue
            try:
                reply = await connection.read()
            except ResponseError as e:
                self._fail(call, e)
            else:
                self._answer(call, reply)
            calls.popleft()
            if len(calls) % PROGRESS == 0:
                progress()

    def _answer(self, call: Call, reply: Reply | list[Reply | FairleadError]) -> None:
        if self._hold and call.told:
            self.held.append((call, reply))
        elif not call.future.done():
            call.future.set_result(reply)

    def _fail(self, call: Call, error: ResponseError) -> None:
        """Fail a call with the server's error, unless the server only lacks its script, which the next batch loads."""
        script = call.script
        if isinstance(error, NoScriptError) and script is not None:
            if script.sha in self._refused or call.repeated:
                why = self._refused.get(script.sha, error)
                call.fail(ScriptError(script.name, f"the server does not accept it: {why}"), why)
                return
            self._loaded.discard(script.sha)
            call.repeated = True
            self.again.append(call)
            return
        if self._redirects and isinstance(error, AskError | TryAgainError):
            self.redirected.append((call, error))
            return
        if call.must_fit and reply_code(error) == OUT_OF_MEMORY:  # so it was not executed
            fit(call)
            self.out_of_memory = True
            self.again.append(call)
            return
        call.fail(self._error(call, error, 0), error)

    def _error(self, call: Call, error: ResponseError, number: int) -> FairleadError:
        """Our error for the server's; `number` is the place of the command in its call."""
        self.demoted = self.demoted or isinstance(error, ReadOnlyError)
        self.cluster_down = self.cluster_down or reply_code(error) == CLUSTER_DOWN
        self.out_of_memory = self.out_of_memory or reply_code(error) == OUT_OF_MEMORY
        keys = keys_of(call.packed, number) if reply_code(error) == WRONG_TYPE else []
        self.mistyped += keys
        return reply_error(error, self._address, call.script.name if call.script else None, keys)

    async def _read_each(
        self,
        connection: RedisConnection,
        call: Call,
        replies: list[Reply | FairleadError],
        progress: Callable[[], None],
    ) -> None:
        """Read the replies to all commands of one call.

        If the server lacked the script for every command, none was executed: the call is left without a result and is
        repeated once. If the server lost the script in between (SCRIPT FLUSH), the commands after that get an error.
        """
        missing = 0
        while len(replies) < call.count:
            try:
                replies.append(await connection.read())
            except ResponseError as e:
                if isinstance(e, NoScriptError) and call.script is not None:
                    self._loaded.discard(call.script.sha)
                    missing += 1
                error = self._error(call, e, len(replies))
                error.__cause__ = e
                replies.append(error)
            if len(replies) % PROGRESS == 0:
                progress()
        if call.future.done():
            return
        if missing == call.count and not call.repeated:
            call.repeated = True
            replies.clear()
            self.again.append(call)
        else:
            self._answer(call, replies)


def fit(call: Call) -> None:
    """Let a call of one command with one key be run by a script that a full server starts, from now on."""
    name, key, *args = words_of(call.packed)
    call.packed, call.script = pack((b"EVALSHA", WRITE.sha, 1, key, name, *args)), WRITE
    call.must_fit = False
