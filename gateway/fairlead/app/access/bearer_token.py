"""Bearer tokens: all agents share one, and the platform has one. They are compared in constant time.

The guard of each port calls `check` before it looks at anything else in a request but Host and Origin.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable

from fairlead.errors import Unauthorized


class BearerToken:
    def __init__(self, secret: str, whose: str) -> None:
        self._header = b"Bearer " + secret.encode()
        self._whose = whose

    def check(self, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Raises Unauthorized unless the raw ASGI headers carry this token."""
        given = next((value for name, value in headers if name == b"authorization"), None)
        if given is None:
            raise Unauthorized(f"missing credential: send `Authorization: Bearer <{self._whose} token>`")
        scheme, _, secret = given.partition(b" ")
        if not hmac.compare_digest(scheme.capitalize() + b" " + secret.strip(), self._header):
            raise Unauthorized(f"wrong credential: expected the {self._whose} token")
