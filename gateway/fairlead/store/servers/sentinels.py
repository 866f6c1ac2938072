"""Asks Redis Sentinels which server is the primary now, by redis-py's clients of Sentinels.

An `Endpoint` asks before each connection, and the pipeliner from time to time, because a primary that was cut off from
its Sentinels does not learn that another one was promoted. A Sentinel may be cut off with it, and name it on. So all
Sentinels are asked, and the one whose answer has the highest configuration epoch, which each failover raises, is
believed. Only while nothing has changed is one of them enough, each in turn.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from redis.asyncio.client import Redis
from redis.asyncio.connection import ConnectionPool
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, RedisError

from fairlead.errors import BusUnavailable
from fairlead.redis_url import RedisUrl, shown

SENTINEL_TIMEOUT = 0.5
"""Seconds that one Sentinel is given to connect, and to answer. It answers from memory, within a millisecond."""

_TLS_FAILURE = re.compile(r"\[SSL: \w+\][^(]*")
"""What OpenSSL says, within the text of redis-py."""


class PrimaryView(NamedTuple):
    """What one Sentinel says of the primary. `epoch` is that of its configuration; `serves` is False if it finds the
    primary down."""

    epoch: int
    serves: bool
    host: str
    port: int


class Sentinels:
    def __init__(self, url: RedisUrl, connection_class: type[Any], options: dict[str, Any]) -> None:
        """The class and the options are those of the data's connections; a Sentinel shares the options of TLS, but has
        its own user."""
        self.name = url.primary
        self.shown = ", ".join(shown(*node) for node in url.nodes)
        own = {name: value for name, value in options.items() if name.startswith("ssl_") or name == "parser_class"}
        own |= {
            "username": url.sentinel_user or None,
            "password": url.sentinel_password or None,
            "socket_connect_timeout": SENTINEL_TIMEOUT,
            "socket_timeout": SENTINEL_TIMEOUT,
            "retry": Retry(NoBackoff(), 0),  # the caller asks again
            "protocol": 2,
            "decode_responses": True,
            "client_name": "fairlead-discovery",
            "driver_info": None,
            "connection_class": connection_class,
        }
        nodes = list(url.nodes)
        random.shuffle(nodes)  # so that a fleet does not ask one Sentinel alone
        self._clients = [Redis(connection_pool=ConnectionPool(host=host, port=port, **own)) for host, port in nodes]
        self._turn = 0
        """Which of them is asked next when one is enough."""
        self._asking = asyncio.Lock()

    async def primary(self, known: str = "") -> tuple[str, int]:
        """Host and port of the primary. All Sentinels are asked, unless the next one in turn names `known`. Raises
        BusUnavailable if they know none that answers."""
        async with self._asking:
            if known:
                self._turn = (self._turn + 1) % len(self._clients)
                view = await self._ask(self._clients[self._turn])
                if isinstance(view, PrimaryView) and view.serves and shown(view.host, view.port) == known:
                    return view.host, view.port
            views = await asyncio.gather(*(self._ask(client) for client in self._clients))
        found = [view for view in views if isinstance(view, PrimaryView)]
        newest = max((view.epoch for view in found), default=0)
        for view in found:
            if view.epoch == newest and view.serves:
                return view.host, view.port
        errors = [view for view in views if isinstance(view, Exception)]
        why = _reason(errors, bool(found))
        raise BusUnavailable(f"the Sentinels at {self.shown} name no primary of {self.name}: {why}") from (
            errors[0] if errors else None
        )

    async def _ask(self, client: Redis) -> PrimaryView | Exception | None:
        """What one Sentinel says; None if it does not know the name."""
        try:
            async with asyncio.timeout(SENTINEL_TIMEOUT * 2):
                masters = await client.sentinel_masters()
        except (RedisError, OSError, TimeoutError) as e:
            return e
        state = masters.get(self.name) if isinstance(masters, dict) else None
        if state is None:
            return None
        serves = bool(state["is_master"] and not state["is_sdown"] and not state["is_odown"])
        return PrimaryView(int(state["config-epoch"]), serves, str(state["ip"]), int(state["port"]))

    async def views(self) -> dict[str, str | BusUnavailable]:
        """What each Sentinel says: the address of the primary, or why it names none. For whoever looks for a fault."""
        views: dict[str, str | BusUnavailable] = {}
        for client in self._clients:
            options = client.connection_pool.connection_kwargs
            asked = shown(options["host"], options["port"])
            view = await self._ask(client)
            if isinstance(view, PrimaryView) and view.serves:
                views[asked] = shown(view.host, view.port)
            else:
                why = _reason([view] if isinstance(view, Exception) else [], view is not None)
                views[asked] = BusUnavailable(f"the Sentinel at {asked} names no primary of {self.name}: {why}")
        return views

    async def aclose(self) -> None:
        for client in self._clients:
            try:
                await client.connection_pool.disconnect()
            except (RedisError, OSError):
                pass  # the connection is gone either way


def _reason(errors: Sequence[Exception], known: bool) -> str:
    """Why no primary was found; `known`: a Sentinel knows the name. redis-py's own texts show the options of its
    clients, so they are not used."""
    if any(isinstance(error, AuthenticationError) for error in errors):
        return "they refuse the user and password (options sentinel_username and sentinel_password)"
    for error in errors:
        if (failure := _TLS_FAILURE.search(str(error))) is not None:
            return f"TLS with them fails ({failure.group().strip()})"
    if errors or known:
        return "none answers that knows one that serves"
    return "no primary of that name serves as far as they know"
