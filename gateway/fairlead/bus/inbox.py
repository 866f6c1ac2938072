"""A node's inbox: a Redis stream in which other nodes ring this one, and the sender that rings them.

The node owns one inbox; `routing` rings through it. A doorbell is a hint: of the node that dispatches a command and the
node that claims its agent, whichever comes second finds the other's work in Redis, and sweeps find the rest. Therefore
`ring` never waits and never fails. `ring_and_wait` says whether the doorbell has reached an inbox:
the command sweeper rings again if not.

In a Cluster an inbox is two streams on different primaries. Doorbells go into the first one, and into the second one
while the primary of the first is away: so a primary that is away delays no doorbell for agents of the others.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from functools import partial

from fairlead.bus.doorbell import Doorbell, decode, encode, in_entries
from fairlead.bus.inbox_stream import InboxStream, add_entry
from fairlead.bus.sibling_doorbells import SiblingDoorbells
from fairlead.errors import BusUnavailable
from fairlead.store.answer import answers_or_errors
from fairlead.store.backlog import Priority
from fairlead.store.cluster.slots import opposite
from fairlead.store.reply import Reply
from fairlead.store.store import Store

logger = logging.getLogger(__name__)

CANARY_DEADLINE = 3.0
"""Seconds in which a canary must come back. It takes milliseconds, and a reader that is reconnecting (at most 1 s)
still receives it in time."""


def inbox_key(lease: str) -> str:
    """The key of a lease's inbox. A lease is `node#epoch`, so each epoch of a node has an inbox of its own."""
    return f"fl1:inbox:{{{lease}}}"


class Inbox:
    def __init__(
        self,
        store: Store,
        node: str,
        epoch: str,
        on_doorbells: Callable[[list[Doorbell]], None] | None = None,
        siblings: SiblingDoorbells | None = None,
    ) -> None:
        self._store = store
        self._node = node
        self.on_doorbells = on_doorbells
        """Called with all doorbells for this node, including its own, but never from within `ring`."""
        self._address = f"{node}#{epoch}"
        self._siblings = siblings
        self._streams = self._new_streams()
        self._outgoing: dict[str, list[Doorbell]] = {}
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
        """The key of the first stream."""
        return self._streams[0].key

    @property
    def stalled(self) -> bool:
        """True after two consecutive late canaries while Redis answered."""
        return any(stream.stalled for stream in self._streams)

    async def start(self) -> None:
        """Create the inbox and start to receive. Raises BusUnavailable if it cannot be created; the next `refresh` then
        creates it."""
        if self._siblings is not None:
            self._siblings.start(self._rung_by_sibling)
        await self._begin()

    async def _begin(self) -> None:
        for stream in self._streams:
            stream.start()
        await self._each(InboxStream.create)

    async def rename(self, epoch: str) -> None:
        """Receive under a new epoch of this node. Doorbells for the old epoch are dropped."""
        old = self._streams
        self._address = f"{self._node}#{epoch}"
        self._streams = self._new_streams()
        try:
            await self._begin()
        finally:
            await asyncio.gather(*(stream.aclose(Priority.CONTROL) for stream in old))

    async def aclose(self) -> None:
        if self._siblings is not None:
            self._siblings.stop()
        # After the last doorbells, which have the same priority.
        await asyncio.gather(*(stream.aclose(Priority.RESULTS) for stream in self._streams))

    async def refresh(self) -> None:
        """Extend the inbox's life, trim what was read, and create it again if Redis lost it. Runs with each
        heartbeat."""
        await self._each(InboxStream.refresh)

    async def check(self, deadline: float = CANARY_DEADLINE) -> bool:
        """Whether a canary comes back within `deadline` seconds. If not, and Redis answers, the reader is restarted."""
        return all(await asyncio.gather(*(stream.check(deadline) for stream in self._streams)))

    def ring(self, lease: str, doorbells: Iterable[Doorbell]) -> None:
        """Ring the node that has this lease. All doorbells for a node in one turn of the event loop form one entry."""
        if not self._outgoing:
            asyncio.get_running_loop().call_soon(self._send)
        self._outgoing.setdefault(lease, []).extend(doorbells)

    async def ring_and_wait(self, lease: str, doorbell: Doorbell) -> bool:
        """Ring the node that has this lease, and wait. Returns False if the doorbell was handed to no inbox."""
        if lease == self._address:
            asyncio.get_running_loop().call_soon(self._dispatch, [doorbell])
            return True
        self.sent += 1
        entry = encode([doorbell])
        if self._siblings is not None and self._siblings.ring(lease, entry):
            return True
        for key in self._in_order(self._keys(lease)):
            try:
                if await add_entry(self._store, key, entry, Priority.RESULTS) is not None:
                    return True
            except BusUnavailable as e:
                logger.debug("a doorbell could not be sent: %s", e)
        self.lost += 1
        return False

    def _keys(self, lease: str) -> list[str]:
        keys = [inbox_key(lease)]
        return [*keys, inbox_key(opposite(lease))] if self._store.copies > 1 else keys

    def _new_streams(self) -> list[InboxStream]:
        return [InboxStream(self._store, key, self._dispatch) for key in self._keys(self._address)]

    async def _each(self, call: Callable[[InboxStream], Awaitable[None]]) -> None:
        """Raises the error of the first stream if all fail, and every error that is not BusUnavailable."""
        errors = [e for e in await answers_or_errors([call(one) for one in self._streams]) if isinstance(e, Exception)]
        for error in errors:
            if len(errors) == len(self._streams) or not isinstance(error, BusUnavailable):
                raise error

    def _send(self) -> None:
        outgoing, self._outgoing = self._outgoing, {}
        own = outgoing.pop(self._address, None)
        for lease, doorbells in outgoing.items():
            for part in in_entries(doorbells):
                self.sent += len(part)
                entry = encode(part)
                if self._siblings is not None and self._siblings.ring(lease, entry):
                    continue
                self._send_entry(self._keys(lease), entry, len(part))
        if own:
            self._dispatch(own)

    def _in_order(self, keys: list[str]) -> list[str]:
        """Those first whose servers answer."""
        return sorted(keys, key=lambda key: not self._store.answers(key)) if len(keys) > 1 else keys

    def _send_entry(self, keys: list[str], entry: bytes, count: int) -> None:
        key, *others = self._in_order(keys)
        sent = add_entry(self._store, key, entry, Priority.RESULTS)
        sent.add_done_callback(partial(self._sent, others, entry, count))

    def _sent(self, others: list[str], entry: bytes, count: int, sent: asyncio.Future[Reply]) -> None:
        """Try the other stream if the first one is away: a doorbell that arrives twice costs one look-up."""
        if sent.cancelled():
            return
        error = sent.exception()
        if error is not None and others:
            self._send_entry(others, entry, count)
            return
        if error is not None or sent.result() is None:
            self.lost += count
        if error is not None and not isinstance(error, BusUnavailable):
            logger.error("doorbells could not be sent: %s", error)

    def _rung_by_sibling(self, lease: str, entry: bytes) -> None:
        if lease == self._address and (doorbells := list(decode(entry))):
            self._dispatch(doorbells)

    def _dispatch(self, doorbells: list[Doorbell]) -> None:
        self.received += len(doorbells)
        if self.on_doorbells is None:
            return
        try:
            self.on_doorbells(doorbells)
        except Exception:
            logger.exception("handling doorbells failed")
