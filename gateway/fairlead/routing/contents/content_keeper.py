"""Stores contents, and keeps those that a command or a run refers to until after its deadline.

Called by the API and the keeper of schedules. A content lives for an hour after it was stored, and as long as whatever
refers to it may need it: there is no list of references that could be wrong, because a deadline is known when something
is posted. What begins only in weeks is renewed meanwhile, so that nothing is kept for long that nobody needs any more.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from fairlead.errors import InvalidRequest, QuotaExceeded
from fairlead.fleet.contents.content_store import Contents, content_name
from fairlead.routing.contents.content_quota import ContentQuota
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


KEPT_BYTES: Final = 1 << 30
"""Octets of contents of one tenant that this node keeps for longer than that, because something refers to them."""
LEAST_SIZE: Final = 16 << 10
"""What a content counts at least among those, so that this node remembers 65,536 of a tenant at most."""
AHEAD_MS: Final = 8 * 24 * 3600_000
"""How long a content is kept for what has not begun. Whoever begins it later renews that: see `renew`."""


class NewContent(NamedTuple):
    """`at` is in ms."""

    at: int
    size: int


class ContentKeeper:
    def __init__(
        self, contents: Contents, memory: StoreMemory, now: Callable[[], int], most_bytes: int = NEW_BYTES,
        most_kept: int = KEPT_BYTES,
    ) -> None:  # fmt: skip
        """`now` is Redis TIME in ms."""
        self._most_bytes = most_bytes
        self._most_kept = most_kept
        self._contents = contents
        self._memory = memory
        self._now = now
        self._new: dict[str, deque[NewContent]] = {}
        """What was stored for each tenant in the last hour, oldest first."""
        self._kept: dict[str, ContentQuota] = {}
        """What something refers to, or was stored again, for each tenant."""

    async def put(self, tenant: str, digest: str, data: bytes) -> bool:
        """Store a content. False if it was there already, and is kept for longer now, which counts as a reference to
        it: otherwise more and more would be kept by storing it again each hour. Raises InvalidRequest if it has another
        digest, QuotaExceeded if the tenant has stored too much in the last hour, or this node keeps too much for it,
        StoreFull and BusUnavailable."""
        found = hashlib.sha256(data).hexdigest()
        if found != digest:
            raise InvalidRequest(
                f"the body has the SHA-256 {found}: expected {digest}, which the path names", field="digest"
            )
        self._memory.check_command(len(data))
        name = content_name(tenant, digest)
        if await self._contents.size(name) is not None:
            self._count_kept(tenant, digest, len(data), self._now() + UNUSED_MS)
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
        """The name of a content, which is kept for `life` ms and longer. Raises InvalidRequest if there is none, and
        QuotaExceeded if this node keeps too much for the tenant."""
        name = content_name(tenant, digest)
        kept = self._kept.get(tenant)
        size = None if kept is None else kept.size_of(digest)
        if size is None:
            size = await self._contents.size(name)
        if size is not None:
            self._count_kept(tenant, digest, size, self._now() + life + UNUSED_MS)
        if size is None or not await self._contents.keep(name, life + UNUSED_MS):
            raise InvalidRequest(
                f"there is no content {digest}, or it has expired: store it first (PUT /v1/contents/{digest})",
                field="content",
            )
        return name

    async def refer_ahead(self, tenant: str, digest: str, wait: int, life: int) -> str:
        """As `refer`, for what begins in `wait` ms and has `life` ms then. Call `renew` every day until it begins."""
        return await self.refer(tenant, digest, min(wait, AHEAD_MS) + life)

    async def renew(self, name: str, wait: int, life: int) -> bool:
        """Keep what `refer_ahead` has named. False if there is no such content any more."""
        return await self._contents.keep(name, min(wait, AHEAD_MS) + life + UNUSED_MS)

    def _count_kept(self, tenant: str, digest: str, size: int, until: int) -> None:
        """Count a content before it is kept, once however much refers to it. Raises QuotaExceeded."""
        kept = self._kept.setdefault(tenant, ContentQuota())
        if not kept.add(digest, max(size, LEAST_SIZE), until, self._now(), self._most_kept):
            raise QuotaExceeded(
                f"commands, runs and schedules of this tenant refer to {len(kept)} contents of {kept.bytes >> 20} MiB "
                f"here: expected {self._most_kept >> 20} MiB at most (wait until some have ended)",
                quota="contents", limit=self._most_kept, retry_after=60,
            )  # fmt: skip

    async def read(self, tenant: str, digest: str) -> bytes | None:
        """The octets of a content; None if it is gone. Raises BusUnavailable."""
        return await self._contents.get(content_name(tenant, digest))
