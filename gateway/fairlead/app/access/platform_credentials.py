"""Who calls the platform API: whoever has the shared platform token, or a service token.

The guard of the API asks it for every request. The shared token is compared first, and in constant time, because it
costs less than to look a service token up.
"""

from __future__ import annotations

from collections.abc import Iterable

from fairlead.app.access.guard import BearerToken, bearer_credential
from fairlead.authorization.subject import ADMINISTRATOR, Subject
from fairlead.authorization.token_snapshot import TokenSnapshot


class PlatformCredentials:
    def __init__(self, shared: BearerToken, tokens: TokenSnapshot) -> None:
        self._shared = shared
        self._tokens = tokens

    def check(self, headers: Iterable[tuple[bytes, bytes]]) -> Subject:
        """The caller. Raises Unauthorized, and BusUnavailable for a service token while those cannot be read."""
        scheme, credential = bearer_credential(headers, "platform")
        if self._shared.matches(scheme, credential):
            return ADMINISTRATOR
        subject = self._tokens.authenticate(credential) if scheme == b"Bearer" else None
        if subject is None:
            raise self._shared.refusal()
        return subject
