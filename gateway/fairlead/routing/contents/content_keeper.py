"""Stores contents, and keeps those that a command or a run refers to until after its deadline.

Called by the API. A content lives for an hour after it was stored, and as long as whatever refers to it may need it:
there is no list of references that could be wrong, because a deadline is known when something is posted.
"""

from __future__ import annotations

import hashlib
from typing import Final

from fairlead.errors import InvalidRequest
from fairlead.fleet.contents.content_store import Contents, content_name
from fairlead.routing.store_memory import StoreMemory

CONTENT_BYTES: Final = 1 << 20
UNUSED_MS: Final = 3600_000
"""How long a content is kept that nothing refers to, and how long after the deadline of what does: an agent may be at
its end of a slow link."""


class ContentKeeper:
    def __init__(self, contents: Contents, memory: StoreMemory) -> None:
        self._contents = contents
        self._memory = memory

    async def put(self, tenant: str, digest: str, data: bytes) -> bool:
        """Store a content. False if it was there already. Raises InvalidRequest if it has another digest, StoreFull and
        BusUnavailable."""
        found = hashlib.sha256(data).hexdigest()
        if found != digest:
            raise InvalidRequest(
                f"the body has the SHA-256 {found}: expected {digest}, which the path names", field="digest"
            )
        self._memory.check_command(len(data))
        return await self._contents.put(content_name(tenant, digest), data, UNUSED_MS)

    async def refer(self, tenant: str, digest: str, life: int) -> str:
        """The name of a content, which is kept for `life` ms and longer. Raises InvalidRequest if there is none."""
        name = content_name(tenant, digest)
        if not await self._contents.keep(name, life + UNUSED_MS):
            raise InvalidRequest(
                f"there is no content {digest}, or it has expired: store it first (PUT /v1/contents/{digest})",
                field="content",
            )
        return name
