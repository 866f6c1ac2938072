"""Contents in Redis: octets under the name of their digest, for as long as a command or run may need them.

`routing.contents` calls it. A content never changes, so writing it again is the same as keeping it longer. Nothing
counts who refers to it: whoever does so lets it live until after its own deadline. Raises BusUnavailable if Redis does
not answer.
"""

from __future__ import annotations

import hashlib
import logging

from fairlead.store.reply import integer, octets
from fairlead.store.store import Store

logger = logging.getLogger(__name__)


def content_name(tenant: str, digest: str) -> str:
    """The name of a content: that of another tenant is another content, even if it has the same octets."""
    return f"{tenant}/{digest}" if tenant else digest


def digest_of(name: str) -> str:
    return name.rpartition("/")[2]


def content_key(name: str) -> str:
    return f"fl1:content:{{{name}}}"


class Contents:
    def __init__(self, store: Store) -> None:
        self._store = store

    async def put(self, name: str, data: bytes, life: int) -> bool:
        """Store a content for at least `life` ms. False if it was there already."""
        key = content_key(name)
        made = self._store.submit("SET", key, data, "NX", "PX", life)
        await self._store.submit("PEXPIRE", key, life, "GT")
        return await made is not None

    async def keep(self, name: str, life: int) -> bool:
        """Keep a content for at least `life` ms from now on. False if there is none."""
        key = content_key(name)
        longer = self._store.submit("PEXPIRE", key, life, "GT")
        there = self._store.submit("EXISTS", key)
        await longer
        return integer(await there) == 1

    async def size(self, name: str) -> int | None:
        """The size of a content in octets; None if there is no such content."""
        key = content_key(name)
        there, size = self._store.submit("EXISTS", key), self._store.submit("STRLEN", key)
        return integer(await size) if integer(await there) else None

    async def get(self, name: str) -> bytes | None:
        """The octets of a content; None if it is gone. What Redis answers is compared with the digest, so that nobody
        gets octets that no caller has named."""
        reply = await self._store.submit("GET", content_key(name), expected=1 << 20)
        if reply is None:
            return None
        data = octets(reply)
        if hashlib.sha256(data).hexdigest() != digest_of(name):
            logger.error("the content %s in Redis has other octets than its digest says: it counts as gone", name)
            return None
        return data
