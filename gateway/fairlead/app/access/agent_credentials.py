"""Who opens a link: whoever has the shared agent token, or an agent with a credential of its own.

The guard of the link port asks it for every upgrade request. The shared token is compared first, and in constant time,
because it costs less than to verify a signature. A credential alone proves nothing, because it is no secret: the link
that it opens has to answer a `LinkChallenge`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

from fairlead.app.access.guard import BearerToken, bearer_credential
from fairlead.identity.credential import AgentCredential

Presented: TypeAlias = "tuple[AgentCredential, str] | None"
"""The credential and its text; None for the shared token."""


class AgentCredentials:
    def __init__(self, shared: BearerToken, verify: Callable[[str], AgentCredential]) -> None:
        """`verify` raises Unauthorized for a credential that is not valid."""
        self._shared = shared
        self._verify = verify

    def check(self, headers: Iterable[tuple[bytes, bytes]]) -> Presented:
        """Raises Unauthorized for anything but the shared token and a valid credential."""
        scheme, credential = bearer_credential(headers, "agent")
        if self._shared.matches(scheme, credential):
            return None
        # Three parts between dots are a JWT. Anything else is a wrong token, and costs no more than to say so.
        if scheme != b"Bearer" or credential.count(b".") != 2:
            raise self._shared.refusal()
        text = credential.decode("latin-1")
        return self._verify(text), text
