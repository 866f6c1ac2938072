"""Who calls the platform API: whoever has the shared platform token, a service token, or a JWT of a trusted
issuer.

The guard of the API asks it for every request. The shared token is compared first, and in constant time, because it
costs less than to look a service token up.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fairlead.app.access.guard import BearerToken, bearer_credential
from fairlead.authorization.subject import ADMINISTRATOR, Subject
from fairlead.authorization.token_snapshot import TokenSnapshot
from fairlead.authorization.users import Users


class PlatformCredentials:
    def __init__(self, shared: BearerToken, tokens: TokenSnapshot, users: Users) -> None:
        self._shared = shared
        self._tokens = tokens
        self._users = users

    def check(self, scope: Mapping[str, Any]) -> Subject:
        """The caller. Raises Unauthorized, and Unavailable for a service token or a JWT while it cannot be checked."""
        scheme, credential = bearer_credential(scope["headers"], "platform")
        if self._shared.matches(scheme, credential):
            return ADMINISTRATOR
        subject = None
        if scheme == b"Bearer":
            subject = self._tokens.authenticate(credential) or self._users.authenticate(credential)
        if subject is None:
            raise self._shared.refusal()
        return subject
