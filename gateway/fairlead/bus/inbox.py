"""A node's inbox: a Redis stream in which other nodes ring this one, and the sender that rings them.

The node owns one inbox; `routing` rings through it. A doorbell is a hint: of the node that dispatches a command and the
node that claims its agent, whichever comes second finds the other's work in Redis, and sweeps find the rest. Therefore
`ring` never waits and never fails. The reader's connection can stop receiving without an error (a half-open TCP
connection blocks for ever), so `check` sends a canary through Redis and waits for it. Doorbells are added with
NOMKSTREAM: a plain XADD for a dead node would create a key that nobody reads and nothing expires.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from fairlead.bus.doorbell import Canary, Doorbell, decode, encode, in_entries
from fairlead.bus.sibling_doorbells import SiblingDoorbells
from fairlead.errors import BusUnavailable, FairleadError
from fairlead.store.backlog import Priority
from fairlead.store.blocking_reader import BlockingReader, Entry
from fairlead.store.pipeliner import Pipeliner
from fairlead.store.reply import Reply, integer

logger = logging.getLogger(__name__)

TTL = 150
"""Seconds that the inbox outlives its node's last heartbeat: as long as the node's row."""
MAX_ENTRIES = 10_000
"""The bound of an inbox whose node does not read. A node that reads trims its inbox with each heartbeat."""
CANARY_DEADLINE = 3.0
"""Seconds in which a canary must come back. It takes milliseconds, and a reader that is reconnecting (at most 1 s)
still receives it in time."""
STALLED_AFTER = 2
"""Consecutive late canaries: the first one restarts the reader, the second one shows that this did not help."""


def inbox_key(lease: str) -> str:
    """The key of a lease's inbox. A lease is `node#epoch`, so each epoch of a node has an inbox of its own."""
    return f"fl1:inbox:{{{lease}}}"


class Inbox:
    def __init__(
        self,
        pipeliner: Pipeliner,
        url: str,
        node: str,
        epoch: str,
        on_doorbells: Callable[[list[Doorbell]], None] | None = None,
        siblings: SiblingDoorbells | None = None,
    ) -> None:
        self._pipeliner = pipeliner
        self._url = url
        self._node = node
        self.on_doorbells = on_doorbells
        """Called with all doorbells for this node, including its own, but never from within `ring`."""
        self._address = f"{node}#{epoch}"
        self._siblings = siblings
        self._reader = self._new_reader()
        self._outgoing: dict[str, list[Doorbell]] = {}
        self._canaries: dict[str, asyncio.Future[None]] = {}
        self._canary_count = 0
        self._late_canaries = 0
        self.sent = 0
        """Doorbells that were handed to Redis or to a sibling."""
        self.lost = 0
        """Doorbells that reached no inbox, because Redis was away or the node is dead."""
        self.received = 0

    @property
    def address(self) -> str:
        """The lease of this node, `node#epoch`."""
        return self._address

    @property
    def key(self) -> str:
        return inbox_key(self._address)

    @property
    def stalled(self) -> bool:
        """True after two consecutive late canaries while Redis answered."""
        return self._late_canaries >= STALLED_AFTER

    async def start(self) -> None:
        """Create the inbox and start to receive. Raises BusUnavailable if it cannot be created; the next `refresh` then
        creates it."""
        if self._siblings is not None:
            self._siblings.start(self._rung_by_sibling)
        self._reader.start()
        await self._create()

    async def rename(self, epoch: str) -> None:
        """Receive under a new epoch of this node. Doorbells for the old epoch are dropped."""
        old_key, old_reader = self.key, self._reader
        self._address = f"{self._node}#{epoch}"
        self._reader = self._new_reader()
        self._reader.start()
        await old_reader.aclose()
        self._ignore_result(self._pipeliner.submit("UNLINK", old_key, priority=Priority.CONTROL))
        await self._create()

    async def aclose(self) -> None:
        if self._siblings is not None:
            self._siblings.stop()
        await self._reader.aclose()
        try:
            await self._pipeliner.submit("UNLINK", self.key, priority=Priority.RESULTS)  # after the last doorbells
        except FairleadError:
            pass  # its TTL removes it

    async def refresh(self) -> None:
        """Extend the inbox's life, trim what was read, and create it again if Redis lost it. Runs with each
        heartbeat."""
        trimmed = self._pipeliner.submit(
            "XTRIM", self.key, "MINID", "~", self._reader.last_id, priority=Priority.CONTROL
        )
        kept = self._pipeliner.submit("EXPIRE", self.key, TTL, priority=Priority.CONTROL)
        await trimmed
        if not integer(await kept):
            logger.warning("the inbox %s is missing in Redis: creating it again", self.key)
            await self._recreate()

    def ring(self, lease: str, doorbells: Iterable[Doorbell]) -> None:
        """Ring the node that has this lease. All doorbells for a node in one turn of the event loop form one entry."""
        if not self._outgoing:
            asyncio.get_running_loop().call_soon(self._send)
        self._outgoing.setdefault(lease, []).extend(doorbells)

    async def check(self, deadline: float = CANARY_DEADLINE) -> bool:
        """Whether a canary comes back within `deadline` seconds. If not, and Redis answers, the reader is restarted."""
        self._canary_count += 1
        token = str(self._canary_count)
        returned = self._canaries[token] = asyncio.get_running_loop().create_future()
        try:
            if await self._add(self.key, [Canary(token)], Priority.CONTROL) is None:
                await self._recreate(token)
            async with asyncio.timeout(deadline):
                await returned
        except BusUnavailable:
            return False  # Redis is away, which says nothing about the reader
        except TimeoutError:
            return await self._handle_late_canary()
        finally:
            del self._canaries[token]
        self._late_canaries = 0
        return True

    async def _handle_late_canary(self) -> bool:
        try:
            await self._pipeliner.submit("PING", priority=Priority.CONTROL)
        except BusUnavailable:
            return False
        self._late_canaries += 1
        logger.warning("%d consecutive canaries are late in %s: restarting the reader", self._late_canaries, self.key)
        self._reader.restart()
        return False

    def _new_reader(self) -> BlockingReader:
        return BlockingReader(self._url, self.key, self._receive, client_name="fairlead-inbox")

    async def _create(self, token: str = "") -> None:
        """Create the stream by its first entry, and expire it in the same batch: no inbox stays for ever."""
        made = self._add(self.key, [Canary(token)], Priority.CONTROL, create=True)
        await self._pipeliner.submit("EXPIRE", self.key, TTL, priority=Priority.CONTROL)
        await made

    async def _recreate(self, token: str = "") -> None:
        await self._create(token)
        # Its ids may be lower than the last one read, if both streams are of one millisecond: read it from the start.
        self._reader.restart()

    def _add(
        self, key: str, doorbells: list[Doorbell], priority: Priority, *, create: bool = False
    ) -> asyncio.Future[Reply]:
        mode = () if create else ("NOMKSTREAM",)
        return self._add_entry(key, encode(doorbells), priority, mode)

    def _add_entry(
        self, key: str, entry: bytes, priority: Priority, mode: Sequence[str] = ("NOMKSTREAM",)
    ) -> asyncio.Future[Reply]:
        return self._pipeliner.submit(
            "XADD", key, *mode, "MAXLEN", "~", MAX_ENTRIES, "*", "d", entry, priority=priority
        )  # fmt: skip

    def _send(self) -> None:
        outgoing, self._outgoing = self._outgoing, {}
        own = outgoing.pop(self._address, None)
        for lease, doorbells in outgoing.items():
            for part in in_entries(doorbells):
                self.sent += len(part)
                entry = encode(part)
                if self._siblings is not None and self._siblings.ring(lease, entry):
                    continue
                sent = self._add_entry(inbox_key(lease), entry, Priority.RESULTS)
                sent.add_done_callback(partial(self._count_lost, len(part)))
        if own:
            self._dispatch(own)

    def _count_lost(self, count: int, sent: asyncio.Future[Reply]) -> None:
        if sent.cancelled():
            return
        error = sent.exception()
        if error is not None or sent.result() is None:
            self.lost += count
        if error is not None and not isinstance(error, BusUnavailable):
            logger.error("doorbells could not be sent: %s", error)

    def _ignore_result(self, sent: asyncio.Future[Reply]) -> None:
        sent.add_done_callback(lambda done: None if done.cancelled() else done.exception())

    def _rung_by_sibling(self, lease: str, entry: bytes) -> None:
        if lease == self._address and (doorbells := list(decode(entry))):
            self._dispatch(doorbells)

    def _receive(self, entries: list[Entry]) -> None:
        for entry in entries:
            others: list[Doorbell] = []
            for doorbell in decode(entry.fields.get(b"d", b"")):
                if not isinstance(doorbell, Canary):
                    others.append(doorbell)
                elif (returned := self._canaries.get(doorbell.token)) is not None and not returned.done():
                    returned.set_result(None)
            if others:
                self._dispatch(others)

    def _dispatch(self, doorbells: list[Doorbell]) -> None:
        self.received += len(doorbells)
        if self.on_doorbells is None:
            return
        try:
            self.on_doorbells(doorbells)
        except Exception:
            logger.exception("handling doorbells failed")
