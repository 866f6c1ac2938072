"""What a node knows about who its agents are: enrolment tokens, keys of agents, revocations, the issuer's keys.

The node creates one and runs its loops; the endpoints of enrolment and of its administration use the parts. Without an
issuer's key nobody enrols here, and what others have enrolled can still be seen and revoked.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Coroutine
from typing import Any

from fairlead.fleet.tokens.agent_keys import AgentKeys
from fairlead.fleet.tokens.enrolment_tokens import EnrolmentTokens
from fairlead.fleet.tokens.pending_enrolments import PendingEnrolments
from fairlead.fleet.tokens.revoked_keys import RevokedKeys
from fairlead.hub.hub import Hub
from fairlead.routing.agents.enrolment import Enrolment, EnrolmentStore
from fairlead.routing.agents.issuer_key import IssuerKeyFile
from fairlead.routing.agents.key_revocations import KeyRevocations
from fairlead.settings import Settings
from fairlead.store.pipeliner import Pipeliner
from fairlead.telemetry.metrics import Metrics


class IdentityRegistry:
    def __init__(self, settings: Settings, store: Pipeliner, hub: Hub, now: Callable[[], int]) -> None:
        """`now` is Redis TIME in ms. Raises ConfigError if the issuer's key cannot be used."""
        self.tokens = EnrolmentTokens(store)
        self.keys = AgentKeys(store)
        self.pending = PendingEnrolments(store)
        self.revocations = KeyRevocations(RevokedKeys(store), hub, now)
        self.enrolment: Enrolment | None = None
        """None if no key of an issuer is set: agents then have the shared token alone."""
        self._file: IssuerKeyFile | None = None
        if settings.issuer_key is not None:
            self._file = file = IssuerKeyFile(settings.issuer_key, settings.audience)
            self.enrolment = Enrolment(
                file.issuer, file.verifier, EnrolmentStore(self.tokens, self.keys, self.pending), now,
                lambda: secrets.token_hex(16),                int(settings.credential_lifetime), self.revocations.holds,
            )  # fmt: skip

    def watch(self, metrics: Metrics) -> None:
        """Have the metrics read what is counted here."""
        if self._file is not None:
            self._file.watch(metrics)
            self.revocations.watch(metrics)

    def loops(self) -> tuple[Coroutine[Any, Any, None], ...]:
        """The loops that run as long as the node is in the fleet. None of them returns."""
        if self._file is None or self.enrolment is None:
            return ()
        return self.revocations.run(), self._file.run(self.enrolment)
