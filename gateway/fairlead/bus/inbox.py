"""A node's inbox: the stream other nodes ring, and the bell pull to theirs.

One per node, owned by `app`, rung by `routing`. A doorbell is a hint: whoever comes second, the one that
dispatches or the one that claims, sees the other in Redis, and sweeps find the rest. So ringing never waits
and never fails: a lost doorbell costs time, not a command. The reader that hears is a connection that may go
deaf unseen (a half-open TCP connection blocks and blocks), therefore `check` sends a canary through Redis and
listens for it. Rings use NOMKSTREAM: a plain XADD to a dead node's inbox would make a key that nobody reads
and nobody expires.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from functools import partial

from fairlead.bus.doorbell import Canary, Doorbell, decode, encode, in_entries
from fairlead.errors import BusUnavailable, FairleadError
from fairlead.store.backlog import Priority
from fairlead.store.blocking_reader import BlockingReader, Entry
from fairlead.store.pipeliner import Pipeliner
from fairlead.store.reply import Reply, integer

logger = logging.getLogger(__name__)

TTL = 150
"""Seconds the inbox outlives its last beat: as long as the node's own row."""
MAX_ENTRIES = 10_000
"""Bound of an inbox whose node does not read. A node that reads trims its inbox at each beat."""
CANARY_DEADLINE = 3.0
"""Seconds for a way that takes milliseconds; a reader that is just reconnecting (1 s at most) still makes
it."""
DEAF_AFTER = 2
"""Late canaries in a row: the first restarts the reader, the second says that this did not help."""


def inbox_key(lease_node: str) -> str:
    """`lease_node` is `node#epoch`: each life of a node has its own inbox."""
    return f"fl1:inbox:{{{lease_node}}}"


class Inbox:
    """`on_doorbells` hears all doorbells for this node, from others and from itself, never within `ring`."""

    def __init__(
        self,
        pipeliner: Pipeliner,
        url: str,
        node: str,
        epoch: str,
        on_doorbells: Callable[[list[Doorbell]], None],
    ) -> None:
        self._pipeliner = pipeliner
        self._url = url
        self._node = node
        self._on_doorbells = on_doorbells
        self._address = f"{node}#{epoch}"
        self._reader = self._new_reader()
        self._outgoing: dict[str, list[Doorbell]] = {}
        self._canaries: dict[str, asyncio.Future[None]] = {}
        self._canary_count = 0
        self._late = 0
        self.rung = 0
        """Doorbells handed to Redis."""
        self.lost = 0
        """Doorbells that reached no inbox: Redis was away, or the node is dead."""
        self.heard = 0

    @property
    def address(self) -> str:
        """`node#epoch`, as leases name it."""
        return self._address

    @property
    def key(self) -> str:
        return inbox_key(self._address)

    @property
    def deaf(self) -> bool:
        """Whether two canaries in a row came late although Redis answered."""
        return self._late >= DEAF_AFTER

    async def start(self) -> None:
        """Listen, and make the inbox. When that raises `BusUnavailable`, the next `refresh` makes it."""
        self._reader.start()
        await self._make()

    async def rename(self, epoch: str) -> None:
        """Begin a new life of this node; what was rung for the old one is not heard any more."""
        old_key, old_reader = self.key, self._reader
        self._address = f"{self._node}#{epoch}"
        self._reader = self._new_reader()
        self._reader.start()
        await old_reader.aclose()
        self._forget(self._pipeliner.submit("UNLINK", old_key, priority=Priority.CONTROL))
        await self._make()

    async def aclose(self) -> None:
        await self._reader.aclose()
        try:
            await self._pipeliner.submit("UNLINK", self.key, priority=Priority.RESULTS)  # behind the last rings
        except FairleadError:
            pass  # its TTL removes it

    async def refresh(self) -> None:
        """At each beat: keep the inbox alive, drop what has been read, make it again if Redis lost it."""
        trimmed = self._pipeliner.submit(
            "XTRIM", self.key, "MINID", "~", self._reader.last_id, priority=Priority.CONTROL
        )
        kept = self._pipeliner.submit("EXPIRE", self.key, TTL, priority=Priority.CONTROL)
        await trimmed
        if not integer(await kept):
            logger.warning("the inbox %s was gone; making it again", self.key)
            await self._make_again()

    def ring(self, lease_node: str, doorbells: Iterable[Doorbell]) -> None:
        """Ring at the node that holds a lease. All rings of one turn of the loop go out as one entry a
        node."""
        if not self._outgoing:
            asyncio.get_running_loop().call_soon(self._send)
        self._outgoing.setdefault(lease_node, []).extend(doorbells)

    async def check(self, deadline: float = CANARY_DEADLINE) -> bool:
        """Whether a canary came back in time. If it is late while Redis answers, the reader is restarted."""
        self._canary_count += 1
        token = str(self._canary_count)
        heard = self._canaries[token] = asyncio.get_running_loop().create_future()
        try:
            if await self._add(self.key, [Canary(token)], Priority.CONTROL) is None:
                await self._make_again(token)
            async with asyncio.timeout(deadline):
                await heard
        except BusUnavailable:
            return False  # Redis is away: that says nothing about our ears
        except TimeoutError:
            return await self._blame_reader()
        finally:
            del self._canaries[token]
        self._late = 0
        return True

    async def _blame_reader(self) -> bool:
        try:
            await self._pipeliner.submit("PING", priority=Priority.CONTROL)
        except BusUnavailable:
            return False
        self._late += 1
        logger.warning("canary %d in a row is late in %s; restarting the reader", self._late, self.key)
        self._reader.restart()
        return False

    def _new_reader(self) -> BlockingReader:
        return BlockingReader(self._url, self.key, self._hear, client_name="fairlead-inbox")

    async def _make(self, token: str = "") -> None:
        """A stream is made by its first entry. Both commands go out together: no inbox without an end."""
        made = self._add(self.key, [Canary(token)], Priority.CONTROL, create=True)
        await self._pipeliner.submit("EXPIRE", self.key, TTL, priority=Priority.CONTROL)
        await made

    async def _make_again(self, token: str = "") -> None:
        await self._make(token)
        # Its ids may lie behind those of the lost one, if both are of one millisecond: look at all of it, now.
        self._reader.restart()

    def _add(
        self, key: str, doorbells: list[Doorbell], priority: Priority, *, create: bool = False
    ) -> asyncio.Future[Reply]:
        mode = () if create else ("NOMKSTREAM",)
        entry = encode(doorbells)
        return self._pipeliner.submit(
            "XADD", key, *mode, "MAXLEN", "~", MAX_ENTRIES, "*", "d", entry, priority=priority
        )  # fmt: skip

    def _send(self) -> None:
        outgoing, self._outgoing = self._outgoing, {}
        own = outgoing.pop(self._address, None)
        for lease_node, doorbells in outgoing.items():
            for entry in in_entries(doorbells):
                self.rung += len(entry)
                sent = self._add(inbox_key(lease_node), entry, Priority.RESULTS)
                sent.add_done_callback(partial(self._count_lost, len(entry)))
        if own:
            self._tell(own)

    def _count_lost(self, count: int, sent: asyncio.Future[Reply]) -> None:
        if sent.cancelled():
            return
        error = sent.exception()
        if error is not None or sent.result() is None:
            self.lost += count
        if error is not None and not isinstance(error, BusUnavailable):
            logger.error("ringing failed: %s", error)

    def _forget(self, sent: asyncio.Future[Reply]) -> None:
        sent.add_done_callback(lambda done: None if done.cancelled() else done.exception())

    def _hear(self, entries: list[Entry]) -> None:
        for entry in entries:
            others: list[Doorbell] = []
            for doorbell in decode(entry.fields.get(b"d", b"")):
                if not isinstance(doorbell, Canary):
                    others.append(doorbell)
                elif (heard := self._canaries.get(doorbell.token)) is not None and not heard.done():
                    heard.set_result(None)
            if others:
                self._tell(others)

    def _tell(self, doorbells: list[Doorbell]) -> None:
        self.heard += len(doorbells)
        try:
            self._on_doorbells(doorbells)
        except Exception:
            logger.exception("the handler of doorbells failed")
