"""What a node knows about who its agents are: enrolment tokens, keys of agents, revocations, the issuer's keys.

The node creates one and runs its loops; the endpoints of enrolment and of its administration use the parts. Without an
issuer's key nobody enrols here, and what others have enrolled can still be seen and revoked.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Coroutine
from typing import Any

from fairlead.audit.log_writer import AuditLogWriter
from fairlead.errors import Unauthorized
from fairlead.fleet.tokens.agent_keys import AgentKeys
from fairlead.fleet.tokens.enrolment_tokens import EnrolmentTokens
from fairlead.fleet.tokens.pending_enrolments import PendingEnrolments
from fairlead.fleet.tokens.revoked_keys import RevokedKeys
from fairlead.hub.hub import Hub
from fairlead.identity.authenticated_agent import AuthenticatedAgent
from fairlead.routing.agents.enrolment import Enrolment, EnrolmentStore
from fairlead.routing.agents.issuer_key import IssuerKeyFile
from fairlead.routing.agents.key_revocations import KeyRevocations
from fairlead.routing.tenant_limits import TenantLimits
from fairlead.settings import Settings
from fairlead.store.store import Store
from fairlead.telemetry.metrics import Metrics
from fairlead.tenant import DEFAULT


class IdentityRegistry:
    def __init__(
        self, settings: Settings, store: Store, hub: Hub, now: Callable[[], int], tenants: TenantLimits
    ) -> None:
        """`now` is Redis TIME in ms, and `tenants` knows which tenants there are. Raises ConfigError if the issuer's
        key cannot be used."""
        self.tokens = EnrolmentTokens(store)
        self.keys = AgentKeys(store)
        self.pending = PendingEnrolments(store)
        self.revocations = KeyRevocations(RevokedKeys(store), hub, now, lambda: len({DEFAULT, *tenants.declared()}))
        self.enrolment: Enrolment | None = None
        """None if no key of an issuer is set: agents then have the shared token alone."""
        self._file: IssuerKeyFile | None = None
        self._identifies = settings.identifies_agents
        if settings.issuer_key is not None:
            self._file = file = IssuerKeyFile(settings.issuer_key, settings.audience)
            self.enrolment = Enrolment(
                file.issuer, file.verifier, EnrolmentStore(self.tokens, self.keys, self.pending), now,
                lambda: secrets.token_hex(16), int(settings.credential_lifetime),
                self.revocations.holds, tenants,
            )  # fmt: skip

    def check_revoked(self, agent: AuthenticatedAgent) -> None:
        """Raises Unauthorized if what the agent was authenticated by was revoked."""
        at = self.revocations.revoked_at(agent.thumbprint)
        # A certificate's key is refused for good. Of an issuer, what it has issued later counts again once the id is
        # released, because it can issue nothing else for the same agent.
        if at and (agent.certified or agent.issued * 1000 <= at):
            raise Unauthorized(
                f"the {agent.proof} of agent {agent.agent} was revoked: have an administrator release the id, and "
                "replace it",
                reason="revoked",
            )

    def record(self, log: AuditLogWriter | None) -> None:
        """Have what is decided here without a caller written to the audit log."""
        if self._file is not None:
            self._file.log = log
        if self.enrolment is not None:
            self.enrolment.log = log

    def watch(self, metrics: Metrics) -> None:
        """Have the metrics read what is counted here."""
        if self._file is not None:
            self._file.watch(metrics)
        if self._identifies:
            self.revocations.watch(metrics)

    def loops(self) -> tuple[Coroutine[Any, Any, None], ...]:
        """The loops that run as long as the node is in the fleet. None of them returns."""
        if not self._identifies:
            return ()
        if self._file is None or self.enrolment is None:
            return (self.revocations.run(),)
        return self.revocations.run(), self._file.run(self.enrolment, self.revocations)
