"""Closes a link that a newer link of its agent has superseded, with the close code that fits.

Called where only a larger generation shows that there is a newer link: a refused append, or a row that names another
owner. If the same process of the agent has the newer link, it may come back (4007). If another process has it, this one
must stay away (4507); otherwise it would claim the agent again and keep the newer process out for good.
"""

from __future__ import annotations

from fairlead.errors import BusUnavailable
from fairlead.fleet.directory import Directory
from fairlead.hub.session import Session
from fairlead.routing.timeouts import wait_for_redis
from fairlead.store.store import Store
from fairlead.wire.close_codes import CloseCode

TIMEOUT = 120.0
"""Seconds to wait for Redis, which alone knows the owner: a wrong close code does more harm than a late one."""


async def close_superseded(session: Session, directory: Directory, store: Store) -> None:
    while session.open:
        try:
            owner = await directory.owner(session.agent)
        except BusUnavailable:
            if await wait_for_redis(store, TIMEOUT):
                continue
            session.close(CloseCode.BUS_AWAY, "the gateway has lost Redis: connect elsewhere")
            return
        if owner.boot in ("", session.boot):
            session.close(CloseCode.SUPERSEDED, "superseded by a newer link of the same process")
        else:
            session.close(CloseCode.REPLACED, "another start of this agent has taken over")
