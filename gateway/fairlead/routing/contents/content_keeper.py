"""Stores contents, and keeps those that a command or a run refers to until after its deadline.

Called by the API. A content lives for an hour after it was stored, and as long as whatever refers to it may need it:
there is no list of references that could be wrong, because a deadline is known when something is posted.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from fairlead.errors import InvalidRequest, QuotaExceeded
from fairlead.fleet.contents.content_store import Contents, content_name
from fairlead.routing.store_memory import StoreMemory

CONTENT_BYTES: Final = 1 << 20
UNUSED_MS: Final = 3600_000
"""How long a content is kept that nothing refers to, and how long after the deadline of what does: an agent may be at
its end of a slow link."""
NEW_BYTES: Final = 256 << 20
"""Octets of new contents that this node stores for one tenant while those before it are kept, which is an hour: a
content needs no agent and counts for no quota, so one caller could fill Redis for all."""
NEW_CONTENTS: Final = 5_000
"""How many they are at most, at some 300 bytes of Redis each besides their octets."""


class NewContent(NamedTuple):
    """`at` is in ms."""

    at: int
    size: int


class ContentKeeper:
    def __init__(
        self, contents: Contents, memory: StoreMemory, now: Callable[[], int], most_bytes: int = NEW_BYTES
    ) -> None:
        """`now` is Redis TIME in ms."""
        self._most_bytes = most_bytes
        self._contents = contents
        self._memory = memory
        self._now = now
        self._new: dict[str, deque[NewContent]] = {}
        """What was stored for each tenant in the last hour, oldest first."""

    async def put(self, tenant: str, digest: str, data: bytes) -> bool:
        """Store a content. False if it was there already. Raises InvalidRequest if it has another digest, QuotaExceeded
        if the tenant has stored too much in the last hour, StoreFull and BusUnavailable."""
        found = hashlib.sha256(data).hexdigest()
        if found != digest:
            raise InvalidRequest(
                f"the body has the SHA-256 {found}: expected {digest}, which the path names", field="digest"
            )
        self._memory.check_command(len(data))
        name = content_name(tenant, digest)
        if await self._contents.keep(name, UNUSED_MS):
            return False
        self._count(tenant, len(data))
        return await self._contents.put(name, data, UNUSED_MS)

    def _count(self, tenant: str, size: int) -> None:
        """Count a content before it is stored, so that many at once do not pass together. Raises QuotaExceeded."""
        now, stored = self._now(), self._new.setdefault(tenant, deque())
        while stored and stored[0].at <= now - UNUSED_MS:
            stored.popleft()
        total = sum(one.size for one in stored)
        if len(stored) >= NEW_CONTENTS or total + size > self._most_bytes:
            raise QuotaExceeded(
                f"this tenant has stored {len(stored)} contents of {total >> 20} MiB here in the last hour: expected "
                f"{NEW_CONTENTS} of {self._most_bytes >> 20} MiB at most (name those that are stored again, or wait)",
                quota="contents", limit=self._most_bytes, retry_after=60,
            )  # fmt: skip
        stored.append(NewContent(now, size))

    async def refer(self, tenant: str, digest: str, life: int) -> str:
        """The name of a content, which is kept for `life` ms and longer. Raises InvalidRequest if there is none."""
        name = content_name(tenant, digest)
        if not await self._contents.keep(name, life + UNUSED_MS):
            raise InvalidRequest(
                f"there is no content {digest}, or it has expired: store it first (PUT /v1/contents/{digest})",
                field="content",
            )
        return name
