"""How a link ends that a newer one has overtaken: which of the two codes its agent must hear.

Used where only a larger generation tells that there is a newer link: a refused append, a row that names another owner.
The same process may come back (4007); another start of the agent must make this one stay away (4507), or the older
process would claim the agent again and send the newer one away for good.
"""

from __future__ import annotations

from fairlead.errors import BusUnavailable
from fairlead.fleet.directory import Directory
from fairlead.hub.session import Session
from fairlead.routing.timeouts import wait_for_redis
from fairlead.store.pipeliner import Pipeliner
from fairlead.wire.close_codes import CloseCode

PATIENCE = 120.0
"""Seconds to wait for Redis, which alone knows: a link that says the wrong code does more harm than one that waits."""


async def close_superseded(session: Session, directory: Directory, store: Pipeliner) -> None:
    while session.open:
        try:
            owner = await directory.owner(session.agent)
        except BusUnavailable:
            if await wait_for_redis(store, PATIENCE):
                continue
            session.close(CloseCode.BUS_AWAY, "the gateway has lost Redis: connect elsewhere")
            return
        if owner.boot in ("", session.boot):
            session.close(CloseCode.SUPERSEDED, "superseded by a newer link of the same process")
        else:
            session.close(CloseCode.REPLACED, "another start of this agent has taken over")
