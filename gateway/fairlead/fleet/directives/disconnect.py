"""Which links the nodes should close because a LinkOperation asks for it, and how far each node is.

The operator renews the directive in every pass while the operation runs; each node reads it as often as heartbeats are
sent, closes its links that match, and reports its progress. Only links that had begun before the directive are meant,
so nobody is disconnected twice. The directive is also a token bucket with its own rate (`moves.move_bucket` takes from
it), which grants nothing once the directive is withdrawn or has expired. Raises BusUnavailable if Redis does not
answer.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from fairlead.errors import FairleadError
from fairlead.fleet import lua, schema
from fairlead.fleet.directives.disconnect_report import DisconnectReport
from fairlead.fleet.selector import Selector, parse
from fairlead.store.backlog import Priority
from fairlead.store.reply import integer, items, table, text
from fairlead.store.store import Store

DISCONNECT_MS = 30_000
"""How long a Disconnect holds: three passes of the operator."""
DISCONNECT_KEPT_MS = 3600_000
"""How long a Disconnect is kept without being renewed. An operator that is back within this time continues it; after
that it begins again."""


@dataclass(frozen=True, slots=True)
class Disconnect:
    """Close the links of these `agents`, or if there are none, of the agents that match `selector`."""

    operation: str
    """The uid of the LinkOperation."""
    selector: str = ""
    agents: tuple[str, ...] = ()
    rate: float = 1.0
    """Links that all nodes together close per second at most."""
    retry_ms: int | None = None
    """When the agents come back; None leaves it to their policy."""
    reason: str = ""
    began: int = 0
    """Redis TIME in ms when the directive was written. Links that began later stay."""

    def matching(self) -> Selector:
        """The parsed selector. Raises InvalidRequest if it is not valid."""
        return parse(self.selector)


class Disconnects:
    def __init__(self, store: Store) -> None:
        self._store = store

    async def write(self, wanted: Disconnect) -> None:
        """Begin the directive, or renew it for another half minute. The operator calls it. The agents are sent only
        once, because there may be many."""
        head = (wanted.operation, DISCONNECT_MS, DISCONNECT_KEPT_MS)
        if not integer(await self._store.run(lua.SET_DISCONNECT, (schema.DISCONNECT,), head)):
            fields = (
                "selector", wanted.selector, "agents", json.dumps(wanted.agents), "rate", f"{wanted.rate:.6f}",
                "retry", "" if wanted.retry_ms is None else wanted.retry_ms, "reason", wanted.reason,
            )  # fmt: skip
            await self._store.run(lua.SET_DISCONNECT, (schema.DISCONNECT,), (*head, *fields))

    async def withdraw(self) -> None:
        """End the directive: once this is answered, no more links are closed. The operator calls it."""
        await self._store.submit("DEL", schema.DISCONNECT, priority=Priority.CONTROL)

    async def progress(self, operation: str) -> dict[str, DisconnectReport]:
        """What the nodes have reported, by lease. The operator calls it."""
        found = table(await self._store.submit("HGETALL", schema.disconnected_key(operation)))
        reported = {lease.decode(errors="replace"): DisconnectReport.parse(value) for lease, value in found.items()}
        return {lease: progress for lease, progress in reported.items() if progress is not None}

    async def current(self) -> tuple[str, int]:
        """The operation whose directive Redis holds ("" for none), and when it expires (Redis TIME in ms). Nodes call
        it."""
        reply = await self._store.submit("HMGET", schema.DISCONNECT, "operation", "until", priority=Priority.CONTROL)
        operation, until = items(reply)
        return (text(operation), integer(until)) if operation and until else ("", 0)

    async def read(self, operation: str) -> Disconnect | None:
        """The directive of this operation, or None if Redis holds none, that of another operation, or one that this
        version cannot read. Nodes call it."""
        names = "operation", "selector", "agents", "rate", "retry", "reason", "began"
        reply = items(await self._store.submit("HMGET", schema.DISCONNECT, *names))
        if None in reply or text(reply[0]) != operation:
            return None
        _, selector, agents, rate, retry, reason, began = (text(one) for one in reply)
        retry_ms = int(retry) if retry else None
        found = Disconnect(operation, selector, tuple(json.loads(agents)), float(rate), retry_ms, reason, int(began))
        try:
            found.matching()
        except FairleadError:
            return None  # an operator of another version wrote it
        return found

    async def report(self, operation: str, lease: str, progress: DisconnectReport) -> None:
        """Tell the operator how far this node is."""
        key = schema.disconnected_key(operation)
        written = self._store.write("HSET", key, lease, progress.encode(), priority=Priority.BACKGROUND)
        kept = self._store.submit("PEXPIRE", key, DISCONNECT_KEPT_MS, priority=Priority.BACKGROUND)
        await written
        await kept
