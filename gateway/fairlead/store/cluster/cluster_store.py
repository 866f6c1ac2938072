"""The store on a Redis Cluster: sends each call to the primary that has its key, with one pipeliner for each.

`servers.opening` makes it. Every primary has a connection, a backlog and a circuit breaker of its own, so a primary
that is away costs the calls to its own keys, and their errors name it. The table of slots is read at the start, now and
then, and at once when a primary is lost or says that a slot has moved; calls meanwhile are passed on (see
`redirects`).
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Sequence
from functools import partial
from typing import Any

from redis.exceptions import RedisError

from fairlead.errors import BusUnavailable, ConfigError, FairleadError
from fairlead.redis_url import RedisUrl, shown
from fairlead.store.backlog import EXPECTED_REPLY, Call, Priority
from fairlead.store.cluster.redirects import Redirects
from fairlead.store.cluster.reply_merge import MergedReplies
from fairlead.store.cluster.running_tasks import cancel_all
from fairlead.store.cluster.slot_table import Address, SlotTable
from fairlead.store.cluster.slots import key_of, slot_of
from fairlead.store.endpoint import CONNECT_TIMEOUT, Endpoint, keys_of
from fairlead.store.pipeliner import Pipeliner
from fairlead.store.reply import Arg, Reply
from fairlead.store.reply_limit import ReplyLimit
from fairlead.store.servers.confirmer import Confirmer, Durability
from fairlead.store.store import Store

logger = logging.getLogger(__name__)

PERIOD = 30.0
"""Seconds between two looks at the slots while nothing is wrong: a primary that has no slots any more is left then."""
SOON = 0.5
"""Seconds between two looks while a primary is away. Its replica is promoted within seconds."""
PRIMARIES_LIMIT = 64
"""Primaries that a store connects to: a fleet's keys have 64 shards. Twice as many while slots move, those that lose
their slots included."""
TAGS_LIMIT = 4_096
"""Hash tags among which one is looked for whose slot a primary has. The first 64 are those of the shards, so a primary
with agents has one of them; of those without, one with 20 of the 16,384 slots has one of the others."""
RETIRE = 5.0
"""Seconds for which a server that has lost its slots keeps its connection, so that it answers what it has been sent."""


class ClusterStore(Store):
    def __init__(
        self,
        raw: str,
        url: RedisUrl,
        client_name: str = "fairlead",
        allowance: ReplyLimit | None = None,
        durability: Durability = Durability.LOCAL,
    ) -> None:
        super().__init__()
        self.address = ", ".join(shown(*node) for node in url.nodes)
        self._raw, self._client_name, self._allowance = raw, client_name, allowance
        self._durability = durability
        Endpoint(raw, client_name, allowance)  # raises ConfigError for unknown options now
        try:
            self._table = SlotTable(url, allowance)
        except (TypeError, ValueError, RedisError) as e:
            raise ConfigError(f"invalid option in the Redis URL for {self.address}: {e}") from e
        self._redirects = Redirects(self._moved, self._send_first, self._send_again)
        self._pipeliners: dict[Address, Pipeliner] = {}
        self._owner: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._look = asyncio.Event()
        self._looked = asyncio.Event()
        """Set after each look at the slots, and cleared by those who wait for the next one."""
        self.last_error = BusUnavailable(f"the Redis Cluster at {self.address} is not connected yet")
        self.low_memory = False
        self.last_latency = 0.0
        self.batches = self.commands = self.trips = 0

    # -- what callers use --------------------------------------------------------------------------

    @property
    def backlog(self) -> int:
        return sum(pipeliner.backlog for pipeliner in self._pipeliners.values())

    def waiting(self, priority: Priority) -> int:
        return sum(pipeliner.waiting(priority) for pipeliner in self._pipeliners.values())

    @property
    def copies(self) -> int:
        return 3

    def primaries(self) -> dict[str, bool]:
        found = [(address, self._pipeliners.get(address)) for address in self._table.primaries()]
        return {shown(*address): pipeliner is not None and pipeliner.available for address, pipeliner in found}

    @property
    def unconfirmed(self) -> str:
        return next((why for pipeliner in self._pipeliners.values() if (why := pipeliner.unconfirmed)), "")

    def unconfirmed_at(self, key: str) -> str:
        pipeliner = self._at(slot_of(key))
        return "" if pipeliner is None else pipeliner.unconfirmed

    @property
    def confirmations(self) -> tuple[int, int]:
        counts = [pipeliner.confirmations for pipeliner in self._pipeliners.values()]
        return sum(good for good, _ in counts), sum(bad for _, bad in counts)

    def answers(self, key: str) -> bool:
        pipeliner = self._at(slot_of(key))
        return pipeliner is not None and pipeliner.available

    def owner(self, key: str) -> str:
        address = self._table.owners[slot_of(key)]
        return "" if address is None else shown(*address)

    def owners(self) -> dict[str, bool]:
        return self.primaries()

    def tag_of(self, owner: str) -> str:
        if owner not in self.owners():
            raise BusUnavailable(f"Redis at {owner} has no hash slots of the Cluster")
        return next((tag for tag in map(str, range(TAGS_LIMIT)) if self.owner(f"{{{tag}}}") == owner), "")

    async def look_at_servers(self) -> None:
        self._looked.clear()
        self._look.set()
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT * 2):
                await self._looked.wait()
        except TimeoutError:
            pass

    def endpoint(self, key: str, client_name: str) -> Endpoint:
        return Endpoint(self._raw, client_name, self._allowance, partial(self._locate, slot_of(key)))

    def start(self) -> None:
        if self._owner is not None:
            raise RuntimeError("the store has been started already")
        self._owner = asyncio.create_task(self._own(), name=f"cluster {self.address}")

    async def aclose(self) -> None:
        await cancel_all([task for task in (self._owner, *self._tasks) if task is not None])
        self._up.clear()
        await asyncio.gather(*(pipeliner.aclose() for pipeliner in self._pipeliners.values()))

    def submit_to(
        self, address: str, *args: Arg, priority: Priority = Priority.COMMANDS, expected: int = EXPECTED_REPLY
    ) -> asyncio.Future[Reply]:
        pipeliner = next((one for key, one in self._pipeliners.items() if shown(*key) == address), None)
        if pipeliner is None:
            call = Call(self._future(), b"", None, priority, expected)
            call.fail(BusUnavailable(f"Redis at {address} is not a primary of the Cluster any more"))
            return call.future
        return pipeliner.submit(*args, priority=priority, expected=expected)

    def _enqueue(self, call: Call, words: Sequence[Arg]) -> asyncio.Future[Any]:
        key = key_of(tuple(words)) if call.script is None else words[0]
        if key is None:
            pipeliner = next((one for one in self._pipeliners.values() if one.available), None)
        else:
            pipeliner = self._at(slot_of(key if isinstance(key, bytes | str) else str(key)))
        if pipeliner is None:
            call.fail(BusUnavailable(self.last_error.message), self.last_error)
            return call.future
        return pipeliner._enqueue(call, ())  # the pipeliners are parts of this store

    def _enqueue_each(
        self, packed: list[bytes], words: Sequence[Sequence[Arg]], like: Call
    ) -> asyncio.Future[list[Reply | FairleadError]]:
        calls = [Call(self._future(), one, like.script, like.priority, like.expected) for one in packed]
        for call, words_of_call in zip(calls, words, strict=True):
            self._enqueue(call, words_of_call)
        MergedReplies(like.future, [call.future for call in calls])
        return like.future

    # -- the primaries -----------------------------------------------------------------------------

    def _at(self, slot: int) -> Pipeliner | None:
        address = self._table.owners[slot]
        return None if address is None else self._pipeliners.get(address)

    def _pipeliner(self, address: Address) -> Pipeliner:
        """The pipeliner of a primary, which begins to connect if it is new."""
        pipeliner = self._pipeliners.get(address)
        if pipeliner is None:
            endpoint = Endpoint(self._raw, self._client_name, self._allowance, partial(_constant, address))
            endpoint.address = shown(*address)
            pipeliner = self._pipeliners[address] = Pipeliner(
                self._raw, endpoint=endpoint, confirmer=Confirmer.make(self._durability, endpoint, sharded=True)
            )
            pipeliner.on_redirect = lambda calls: self._redirects.take(calls, address)
            pipeliner.on_cluster_down = lambda: self._doubt(address)
            pipeliner.on_change.append(lambda up: self._changed(pipeliner, up))
            pipeliner.on_connect = lambda _: self._connected(address)
            pipeliner.on_batch = partial(self._answered, pipeliner)
            pipeliner.on_wrong_type = lambda keys: self.on_wrong_type and self.on_wrong_type(keys)
            pipeliner.start()
        return pipeliner

    def _connected(self, address: Address) -> None:
        if self.on_connect is not None:
            self.on_connect(shown(*address))

    def _answered(self, pipeliner: Pipeliner, seconds: float, count: int) -> None:
        self.last_latency = seconds
        self.batches += 1
        self.commands += count
        if pipeliner.low_memory:
            self.low_memory, pipeliner.low_memory = True, False
        if self.on_batch is not None:
            self.on_batch(seconds, count)

    def _changed(self, pipeliner: Pipeliner, up: bool) -> None:
        if not up:
            self.trips += 1
            self.last_error = pipeliner.last_error
            self._look.set()
        self._judge()

    def _doubt(self, address: Address) -> None:
        """This primary sees no majority of the others. It may be cut off, and not know that its replica was promoted:
        the others are asked."""
        self._table.doubt(address)
        self._look.set()

    def _judge(self) -> None:
        """Open or close the breaker of the whole store: it is closed while any primary answers."""
        up = any(self.primaries().values())
        if up != self._up.is_set():
            (self._up.set if up else self._up.clear)()
            self._tell()

    # -- the table of slots ------------------------------------------------------------------------

    async def _own(self) -> None:
        """Keep the table of slots and the pipeliners up to date. Runs until it is cancelled."""
        while True:
            self._look.clear()
            try:
                await self._refresh()
            except BusUnavailable as e:
                self.last_error = e
                logger.debug("the slots are not known: %s", e.message)
            except Exception:
                logger.exception("reading the slots of the Redis Cluster at %s failed", self.address)
            self._looked.set()
            complete = all(self.primaries().values()) and None not in self._table.owners
            await asyncio.sleep(SOON * random.uniform(0.5, 1.0))  # paces looks, whoever asks for them
            if complete:
                try:
                    async with asyncio.timeout(PERIOD * random.uniform(0.75, 1.25)):
                        await self._look.wait()
                except TimeoutError:
                    pass

    async def _refresh(self) -> None:
        owners = await self._table.read()
        addresses = {owner for owner in owners if owner is not None}
        if len(addresses) > PRIMARIES_LIMIT:
            found = f"has {len(addresses)} primaries: expected at most {PRIMARIES_LIMIT}"
            raise BusUnavailable(f"the Redis Cluster at {self.address} {found}")
        new = [self._pipeliner(address) for address in addresses - self._pipeliners.keys()]
        # Calls go to a new primary once it is connected; until then the one before it passes them on, or is away.
        await asyncio.gather(*(pipeliner.wait_available(CONNECT_TIMEOUT * 2) for pipeliner in new))
        before = set(self._table.primaries())
        self._table.owners = owners
        for address in addresses - before:
            self._connected(address)  # once more: whoever asked the primaries before asked the one that is replaced
        for address in self._pipeliners.keys() - addresses:
            self._spawn(self._retire(address))
        self._judge()

    async def _retire(self, address: Address) -> None:
        await asyncio.sleep(RETIRE)
        if address not in self._table.primaries() and (pipeliner := self._pipeliners.pop(address, None)) is not None:
            pipeliner.on_change.clear()
            await pipeliner.aclose()

    async def _locate(self, slot: int) -> Address:
        """The primary that has a slot, after a new look at the slots: whoever connects has lost the one before."""
        await self.look_at_servers()
        address = self._table.owners[slot]
        if address is None:
            raise BusUnavailable(f"no primary of the Redis Cluster at {self.address} has the hash slot {slot}")
        return address

    def _moved(self, slot: int, address: Address) -> None:
        self._look.set()
        pipeliner = self._pipeliners.get(address)
        if pipeliner is not None and pipeliner.available:
            new = address not in self._table.owners
            self._table.owners[slot] = address
            if new:
                self._connected(address)

    # -- calls that are passed on ------------------------------------------------------------------

    def _send_first(self, calls: list[Call], address: Address) -> None:
        if address not in self._pipeliners and len(self._pipeliners) >= 2 * PRIMARIES_LIMIT:
            for call in calls:
                call.fail(BusUnavailable(f"the Redis Cluster at {self.address} names too many primaries"))
            return
        pipeliner = self._pipeliner(address)
        if pipeliner.available:
            pipeliner.send_first(calls)
        else:
            self._spawn(self._send_when_connected(calls, pipeliner))

    async def _send_when_connected(self, calls: list[Call], pipeliner: Pipeliner) -> None:
        try:
            await pipeliner.wait_available(CONNECT_TIMEOUT)
        finally:
            pipeliner.send_first(calls)  # which fails them if it is not connected

    def _send_again(self, call: Call) -> None:
        [key, *_] = keys_of(call.packed)
        pipeliner = self._at(slot_of(key))
        if pipeliner is None:
            call.fail(BusUnavailable(self.last_error.message), self.last_error)
        else:
            pipeliner.send_first([call])

    def _spawn(self, coroutine: Any) -> None:
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _constant(address: Address) -> Address:
    return address
