"""Holds back answers of Redis until a replica, or the disk, has what they rest on: the setting `durability`.

The pipeliner hands over the replies of each batch that are to be told (`Call.told`), and goes on with the next batch. A
connection beside it writes a key, which comes after all of them, and waits for that key alone (WAIT, WAITAOF). So one
wait confirms everything that was answered before it, nothing else waits for replicas, and heartbeats go on without any.
What cannot be confirmed in time fails as not answered: it may have been executed, and must not be told.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from enum import StrEnum
from typing import Any, Final

from redis.exceptions import RedisError, ResponseError

from fairlead.errors import BusUnavailable, NotAnswered
from fairlead.store.backlog import Call
from fairlead.store.endpoint import (
    ASKING,
    ELSEWHERE,
    Endpoint,
    RedisConnection,
    connect_timeout,
    keys_of,
    pack,
    reconnect_delay,
)
from fairlead.store.errors import OUT_OF_MEMORY, reply_code
from fairlead.store.reply import Arg, Reply, items
from fairlead.store.script import WRITE
from fairlead.store.servers.server_identity import SECTIONS, parse_identity

logger = logging.getLogger(__name__)

WAIT_MS: Final = 1_000
"""How long replicas, or the disk, have for one confirmation: as long as the server has for a batch."""
PROBE: Final = 1.0
"""Seconds between two attempts while nothing is confirmed, so that it is known when replicas are back."""
KEY: Final = "fl1:confirmed:{%s}"
KEY_MS: Final = 1_000


class Durability(StrEnum):
    """What an answer of Redis must have survived before a node tells it."""

    LOCAL = "local"
    """Nothing more: the primary has executed it."""
    FSYNC = "fsync"
    """The append-only file of the primary is on its disk."""
    REPLICATED = "replicated"
    """A replica has it."""


_WAITS: Final[dict[Durability, tuple[Arg, ...]]] = {
    Durability.FSYNC: ("WAITAOF", 1, 0, WAIT_MS),
    Durability.REPLICATED: ("WAIT", 1, WAIT_MS),
}
_LACKING: Final = {
    Durability.FSYNC: "its append-only file was not written to the disk",
    Durability.REPLICATED: "no replica has confirmed it",
}

KEYS_LIMIT: Final = 16
"""Answers whose keys are tried for one confirmation while slots move."""

Held = tuple[Call, Any, str]
"""A call, its reply, and the id of the server that gave it."""


class Confirmer:
    @classmethod
    def make(cls, durability: Durability, endpoint: Endpoint, sharded: bool = False) -> Confirmer | None:
        """None if nothing is to be held back."""
        return None if durability is Durability.LOCAL else cls(durability, endpoint, sharded)

    def __init__(self, durability: Durability, endpoint: Endpoint, sharded: bool) -> None:
        """`sharded`: the server has only some of the keys, so a key beside one that it was asked for is written."""
        self._wait = pack(_WAITS[durability])
        self._lacking = _LACKING[durability]
        self._endpoint = endpoint
        self._sharded = sharded
        self._held: list[Held] = []
        self._wake = asyncio.Event()
        self._key = KEY % "0"
        self.problem = ""
        """Why nothing is confirmed at present; "" while answers are."""
        self.confirmations = 0
        self.failures = 0

    def hold(self, answered: list[tuple[Call, Any]], server: str) -> None:
        """Confirm these replies of `server`, and then give them to those who wait for them."""
        self._held += [(call, reply, server) for call, reply in answered]
        self._wake.set()

    async def aclose(self) -> None:
        await self._endpoint.aclose()

    async def run(self) -> None:
        """Confirm what is held, until this is cancelled."""
        connection: RedisConnection | None = None
        held: list[Held] = []
        attempt = 0
        try:
            while True:
                await self._pause()
                held, self._held = self._held, []
                try:
                    if connection is None:
                        connection = await self._endpoint.connect(connect_timeout(1.0, attempt))
                    self._give(held, await self._confirm(connection, held))
                    attempt = 0
                    continue
                except (BusUnavailable, RedisError, OSError, TimeoutError) as e:
                    self._fail(held, f"the connection that confirms answers was lost: {e or type(e).__name__}")
                except Exception as e:
                    # A bug of ours may fail answers but must not end this task: none would ever be given again.
                    logger.exception("confirming answers of Redis at %s failed", self._endpoint.address)
                    self._fail(held, f"confirming has failed: {e!r}")
                if connection is not None:
                    await connection.close()
                connection, attempt = None, attempt + 1
                await asyncio.sleep(reconnect_delay(attempt))
        finally:
            for call, _, _ in (*held, *self._held):
                call.fail(NotAnswered(f"this node has closed its connection to Redis at {self._endpoint.address}"))
            if connection is not None:
                await connection.close()

    async def _pause(self) -> None:
        """Wait until something is held, or until it is time to find out whether answers are confirmed again."""
        try:
            async with asyncio.timeout(PROBE if self.problem else None):
                await self._wake.wait()
        except TimeoutError:
            pass
        self._wake.clear()

    async def _confirm(self, connection: RedisConnection, held: list[Held]) -> str:
        """Wait for replicas or the disk. Returns the id of the server if they have everything so far, or ""."""
        written = reply = facts = None
        async with asyncio.timeout(2 * WAIT_MS / 1000):
            for key in self._keys(held):
                self._key = key
                value = ("", "PX", KEY_MS)
                written, reply, facts = await self._exchange(connection, ("SET", key, *value))
                if _code(written) == OUT_OF_MEMORY:
                    await connection.call("SCRIPT", "LOAD", WRITE.source)
                    scripted = ("EVALSHA", WRITE.sha, 1, key, "SET", *value)
                    written, reply, facts = await self._exchange(connection, scripted)
                if _code(written) not in ELSEWHERE:
                    break
        if not held and _code(written) in ELSEWHERE:
            written = None  # the slot has moved, and there is no other key to try: the next answer will tell
        for error in (written, reply, facts):
            if isinstance(error, ResponseError):
                raise BusUnavailable(f"the server does not confirm: {error}") from error
        count = items(reply)[0] if isinstance(reply, list) else reply
        # The id does not come back once it has changed. So what this server had answered under it is confirmed.
        return parse_identity(facts).id if isinstance(count, int) and count >= 1 else ""

    def _keys(self, held: list[Held]) -> Iterator[str]:
        """The keys to try, one after the other: the last one that was written, and in a Cluster those beside the keys
        of `held`, whose slots this server had a moment ago."""
        yield self._key
        for call, _, _ in held[:KEYS_LIMIT] if self._sharded else ():
            for found in keys_of(call.packed, int(call.packed.startswith(ASKING)))[:1]:
                key = found.decode(errors="replace")
                tag = key.partition("{")[2].partition("}")[0] or key
                # Of its own for each server: while the slot moves, a key that both have would end the move.
                yield f"{KEY % tag}:{self._endpoint.address}"

    async def _exchange(self, connection: RedisConnection, write: tuple[Arg, ...]) -> list[Any]:
        """The replies, or errors, to a write, to the wait for it, and to the question which server this is. In a
        Cluster the slot of the key may be just arriving."""
        connection.send((ASKING if self._sharded else b"") + pack(write) + self._wait + pack(SECTIONS))
        replies = [await _reply_or_error(connection) for _ in range(3 + self._sharded)]
        return replies[-3:]

    def _give(self, held: list[Held], server: str) -> None:
        if not server:
            self._fail(held, f"{self._lacking} within {WAIT_MS / 1000:g} s")
            return
        if self.problem:
            logger.info("Redis at %s confirms answers again", self._endpoint.address)
        self.problem = ""
        self.confirmations += 1
        lost = [one for one in held if one[2] != server]
        for call, reply, before in held:
            if before == server and not call.future.done():
                call.future.set_result(reply)
        for call, _, _ in lost:
            call.fail(NotAnswered("another server has taken over before it was confirmed: the outcome is unknown"))

    def _fail(self, held: list[Held], why: str) -> None:
        if not self.problem:
            logger.warning("what Redis at %s answers is not told: %s", self._endpoint.address, why)
        self.problem = why
        self.failures += 1
        for call, _, _ in held:
            call.fail(NotAnswered(f"Redis at {self._endpoint.address} has answered, but {why}: it may be lost"))


async def _reply_or_error(connection: RedisConnection) -> Reply | ResponseError:
    try:
        return await connection.read()
    except ResponseError as e:
        return e


def _code(reply: Any) -> str:
    return reply_code(reply) if isinstance(reply, ResponseError) else ""
