"""The checks of all servers of a Redis with Sentinels, or of a Redis Cluster, and with them all checks of a Redis.

`fairlead redis check` and `fairlead doctor` run them after those of one server. They find the servers as a node does,
and write nothing.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import asynccontextmanager
from typing import TypeVar

from fairlead.cli.doctor.checks import STEP_TIMEOUT, Check, CheckFailed
from fairlead.cli.redis.redis_checks import RedisChecks
from fairlead.errors import BusUnavailable, FairleadError
from fairlead.redis_url import StoreKind, parse_redis_url, shown
from fairlead.store.cluster.slot_table import SlotTable
from fairlead.store.endpoint import Endpoint
from fairlead.store.reply import integer, items, text
from fairlead.store.servers.opening import open_store
from fairlead.store.servers.server_check import ServerFacts
from fairlead.store.store import Store

T = TypeVar("T")

CLOCKS = 0.1
"""Seconds by which the clocks of a Cluster's servers may differ: a tenth of the time for which a post is valid."""
ACCESS = "give the user of the URL the commands that fairlead uses, on the keys fl1:* and fl2:*"


@asynccontextmanager
async def checks_of_redis(url: str, user: str) -> AsyncIterator[tuple[str, list[Check]]]:
    """The address and all checks of the Redis at `url`, with the rights of `user` in `USERS`. Raises ConfigError if the
    URL is not valid."""
    first, servers = RedisChecks(url, user), ServerChecks(url)
    try:
        yield first.address, [*first.checks, *servers.checks]
    finally:
        await servers.aclose()


class ServerChecks:
    """The checks of the servers that one URL leads to. Each uses what the ones before it found."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._parsed = parse_redis_url(url)
        self._store: Store | None = None

    @property
    def checks(self) -> list[Check]:
        """None for one server."""
        if self._parsed.kind is StoreKind.SENTINEL:
            return [("sentinels", self._check_sentinels), ("primary", self._check_primaries),
                    ("servers", self._check_servers)]  # fmt: skip
        if self._parsed.kind is StoreKind.CLUSTER:
            return [("slots", self._check_slots), ("primaries", self._check_primaries),
                    ("servers", self._check_servers), ("clocks", self._check_clocks)]  # fmt: skip
        return []

    async def aclose(self) -> None:
        if self._store is not None:
            await self._store.aclose()

    async def _check_sentinels(self) -> str:
        """Every Sentinel of the URL answers, and all name the same primary."""
        sentinels = Endpoint(self._url).sentinels
        assert sentinels is not None
        try:
            views = await sentinels.views()
        finally:
            await sentinels.aclose()
        problems = [view.message for view in views.values() if isinstance(view, BusUnavailable)]
        if problems:
            raise CheckFailed("; ".join(problems), "start these Sentinels, or correct the URL and its passwords")
        primaries = set(views.values())
        if len(primaries) > 1:
            said = ", ".join(f"{asked} says {primary}" for asked, primary in views.items())
            raise CheckFailed(f"the Sentinels do not agree on the primary: {said}", "wait until the failover is over")
        return f"{len(views)} Sentinels name {primaries.pop()}"

    async def _check_slots(self) -> str:
        table = SlotTable(self._parsed)
        try:
            table.owners = await table.read()
        except BusUnavailable as e:
            raise CheckFailed(e.message, "start the Cluster, or correct the URL") from e
        missing = table.owners.count(None)
        if missing:
            raise CheckFailed(f"{missing} hash slots have no primary", "give them one: valkey-cli --cluster fix")
        primaries = table.primaries()
        return f"{len(primaries)} primaries have all slots: {', '.join(shown(*one) for one in primaries)}"

    async def _check_primaries(self) -> str:
        self._store = store = open_store(self._url, client_name="fairlead-doctor")
        store.start()
        up = await store.wait_available(STEP_TIMEOUT)
        away = [address for address, answers in store.primaries().items() if not answers]
        if not up or away:
            raise CheckFailed(store.last_error.message, "check that the server runs, its firewall, user and password")
        return f"connected to {', '.join(store.primaries())}"

    async def _check_servers(self) -> str:
        assert self._store is not None
        problems: list[tuple[str, str]] = []
        for address, reply in self._store.submit_to_each("INFO").items():
            problems += _problems(address, text(await _told(reply)))
        if self._parsed.kind is StoreKind.CLUSTER:
            problems += await _uncovered(self._store)
        if problems:
            whats, hows = zip(*problems, strict=True)
            raise CheckFailed("; ".join(whats), "; ".join(dict.fromkeys(hows)))
        return "their versions, eviction, append-only files and replicas are as a fleet needs them"

    async def _check_clocks(self) -> str:
        """Posts are valid for a second by the clock of a server, and a node knows the time of one server."""
        assert self._store is not None
        offsets = {}
        for address in self._store.primaries():
            asked = time.time()
            seconds, micros = items(await _told(self._store.submit_to(address, "TIME")))
            offsets[address] = integer(seconds) + integer(micros) / 1e6 - (asked + time.time()) / 2
        first, last = min(offsets, key=offsets.__getitem__), max(offsets, key=offsets.__getitem__)
        apart = offsets[last] - offsets[first]
        if apart > CLOCKS:
            raise CheckFailed(
                f"the clock of {last} is {apart:.2f} s before that of {first}: expected at most {CLOCKS:g} s",
                "synchronise the clocks of all servers of Redis (NTP)",
            )
        return f"{apart * 1000:.0f} ms apart" if len(offsets) > 1 else "one server, one clock"


async def _told(reply: Awaitable[T]) -> T:
    """The reply; a server that refuses the call, or is away, fails the check."""
    try:
        return await reply
    except FairleadError as e:
        raise CheckFailed(e.message, ACCESS) from e


def _problems(address: str, info: str) -> Iterator[tuple[str, str]]:
    """What is wrong with a primary, and what to do."""
    facts = ServerFacts.parse(info)
    for what in [why] if (why := facts.unfit()) else facts.risks():
        yield f"{address} {what}", "see operations.md on Redis"
    if "connected_slaves:0\r" in info:
        yield f"{address} has no replica that could take over", "start a replica of it"


async def _uncovered(store: Store) -> list[tuple[str, str]]:
    """Servers that stop when another one is away. A user who may not ask is not asked to."""
    found = []
    for address, reply in store.submit_to_each("CONFIG", "GET", "cluster-require-full-coverage").items():
        try:
            value = items(await reply)
        except FairleadError:
            continue
        if value[1:] == [b"yes"]:
            how = "set cluster-require-full-coverage no on all servers"
            found.append((f"{address} serves nothing while any other primary is away", how))
    return found
