"""Bearer tokens: one shared by all agents, one for the platform. Compared in constant time.

Called by the link endpoint before the upgrade and by the API before anything else of a request is looked at.
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
            raise Unauthorized(f"no credential: send `Authorization: Bearer <{self._whose} token>`")
        scheme, _, secret = given.partition(b" ")
        if not hmac.compare_digest(scheme.capitalize() + b" " + secret.strip(), self._header):
            raise Unauthorized(f"the credential is not the {self._whose} token")
