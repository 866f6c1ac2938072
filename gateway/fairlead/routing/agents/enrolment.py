"""Enrols agents: exchanges an enrolment token and a new key for a credential, and renews credentials.

The API's endpoint calls it. An id is bound to the key that enrolled it first: another key with the same id is refused,
whatever token it has, until an administrator releases the id. Nothing here depends on a clock of the agent.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

import msgspec

from fairlead.audit.log_writer import AuditLogWriter
from fairlead.audit.records import ENROLLED, AuditEvent
from fairlead.errors import ApprovalPending, EnrolmentDenied, Throttled, Unauthorized
from fairlead.fleet.tokens.agent_keys import AgentKeys
from fairlead.fleet.tokens.enrolment_tokens import EnrolmentTokens
from fairlead.fleet.tokens.pending_enrolments import PendingEnrolments
from fairlead.identity.agent_key import public_key, thumbprint
from fairlead.identity.credential import AgentCredential, CredentialIssuer, CredentialVerifier
from fairlead.identity.enrolment_token import EnrolmentToken, check_enrolment, split_token
from fairlead.identity.proof import check_proof, enrolment_statement, renewal_statement
from fairlead.routing.tenant_limits import TenantLimits
from fairlead.tenant import local_id, qualified, tenant_of
from fairlead.wire.ids import check_agent_id

logger = logging.getLogger(__name__)

_decode = msgspec.json.Decoder(EnrolmentToken).decode


class EnrolmentRequest(msgspec.Struct, frozen=True):
    token: str
    agent: str
    key: str
    """The public half, in base64url."""
    proof: str


PENDING_AGAIN = 15
"""Seconds until an agent whose enrolment waits asks again."""


class EnrolmentStore(NamedTuple):
    """What enrolment reads and writes in Redis."""

    tokens: EnrolmentTokens
    keys: AgentKeys
    pending: PendingEnrolments


class Enrolment:
    def __init__(
        self,
        issuer: CredentialIssuer,
        verifier: CredentialVerifier,
        stored: EnrolmentStore,
        now: Callable[[], int],
        new_id: Callable[[], str],
        lifetime: int,
        revoked: Callable[[str], bool],
        tenants: TenantLimits,
    ) -> None:
        """`now` is the time of Redis in ms, `new_id` makes the ids of credentials, which live `lifetime` seconds,
        `revoked` tells whether the key with a thumbprint was revoked, and `tenants` which there are."""
        self._issuer = issuer
        self._verifier = verifier
        self._tokens, self._keys, self._pending = stored
        self._now = now
        self._new_id = new_id
        self.lifetime = lifetime
        self._revoked = revoked
        self._tenants = tenants
        self.log: AuditLogWriter | None = None
        """The audit log of the node, if it has one; set by the node."""

    def replace_issuers(self, issuer: CredentialIssuer, verifier: CredentialVerifier) -> None:
        """Sign with another key from now on, and accept what `verifier` accepts."""
        self._issuer, self._verifier = issuer, verifier

    def verify(self, text: str, *, may_be_expired: bool = False) -> AgentCredential:
        """What a credential says, whose key was not revoked. Raises Unauthorized."""
        credential = self._verifier.verify(text, self._now() // 1000, may_be_expired=may_be_expired)
        if self._revoked(credential.thumbprint):
            raise _revoked(credential.agent)
        self._require_tenant(tenant_of(credential.agent))
        return credential

    async def enrol(self, request: EnrolmentRequest, address: str = "") -> str:
        """A credential for a new agent, which comes from `address`. Raises InvalidRequest, Unauthorized, Throttled if
        the token has enrolled too many in the last minute, QuotaExceeded, ApprovalPending, EnrolmentDenied,
        BusUnavailable, or AuditUnavailable."""
        name, public = check_agent_id(request.agent), public_key(request.key)
        id, secret = split_token(request.token) or ("", "")
        stored = await self._tokens.read(id) if id else None
        token = None if stored is None else _decode(stored.token)
        # Whether a use is left is decided by `use`, which knows an agent that repeats its enrolment.
        check_enrolment(token, secret, name, 0, self._now())
        assert token is not None
        self._require_tenant(token.tenant)
        check_proof(public, request.proof, enrolment_statement(id, name, public))
        agent = qualified(token.tenant, name)
        use = await self._tokens.use(id, agent, thumbprint(public), token.uses, token.rate)
        if use.wait_ms:
            raise Throttled(
                f"enrolment token {id} enrols {token.rate} agents a minute: try again later",
                retry_after=math.ceil(use.wait_ms / 1000),
            )
        if not use.taken:
            check_enrolment(token, secret, name, token.uses, self._now())
        # After the use is counted, so that a stolen token asks no more often than it may enrol.
        waits = token.approval and await self._must_wait(agent, thumbprint(public))
        if waits:
            await self._require_approval(token, agent, thumbprint(public), address)
        await self._tenants.admit_agent(agent, self._now())  # last: what is refused before must not count
        await self._check_binding(agent, public)
        if waits:
            await self._pending.forget(agent, thumbprint(public))
        await self._record(token, agent, thumbprint(public))
        logger.info("enrolled agent %s with key %s by token %s", agent, thumbprint(public), id)
        return self._issue(agent, public, token.labels)

    async def _record(self, token: EnrolmentToken, agent: str, key: str) -> None:
        """Have the audit log say who enrols, before there is a credential. Raises AuditUnavailable."""
        if self.log is not None:
            name = local_id(agent)
            await self.log.write(
                AuditEvent(
                    f"agent:{name}", "enrolment-token", ENROLLED, "allowed", agent=name,
                    detail=f"key {key} by token {token.id}", tenant=token.tenant,
                )
            )  # fmt: skip

    def _require_tenant(self, tenant: str) -> None:
        """Raises Unauthorized if the tenant is not, or no longer, declared."""
        if not self._tenants.declares(tenant):
            raise Unauthorized(
                f"this gateway has no tenant {tenant}: have an administrator declare it in the file of roles",
                reason="tenant",
            )

    async def _must_wait(self, agent: str, key: str) -> bool:
        """Whether the key is new to the id. Raises Unauthorized if no approval could let it in."""
        if self._revoked(key):
            raise _revoked(agent)
        bound = await self._keys.bound(agent)
        if bound not in ("", key):
            raise _refusal(agent, bound)
        return not bound

    async def _require_approval(self, token: EnrolmentToken, agent: str, key: str, address: str) -> None:
        state = await self._pending.ask(agent, key, token.id, address)
        if state == "approved":
            logger.info("the enrolment of agent %s with key %s was approved", agent, key)
        elif state == "denied":
            raise EnrolmentDenied(
                f"an administrator has denied agent {local_id(agent)} with key {key}: enrol with another key, or ask "
                "again a day after that"
            )
        elif state == "full":
            raise Throttled(
                "too many agents wait for an approval: try again later",
                retry_after=4 * PENDING_AGAIN,
            )
        else:
            raise ApprovalPending(
                f"agent {local_id(agent)} with key {key} waits for an administrator (`fairlead agents approve "
                f"{local_id(agent)}`)",
                key=key, retry_after=PENDING_AGAIN,
            )  # fmt: skip

    async def renew(self, text: str, proof: str) -> str:
        """A credential in place of an earlier one, which may have expired: an agent that was away for long still has
        its key, and whether the id is bound to it decides. Raises Unauthorized or BusUnavailable."""
        credential = self.verify(text, may_be_expired=True)
        check_proof(credential.public, proof, renewal_statement(local_id(credential.agent), text))
        await self.check_bound(credential)
        return self._issue(credential.agent, credential.public, credential.labels)

    async def check_bound(self, credential: AgentCredential) -> None:
        """Raises Unauthorized if the credential's id is not, or no longer, bound to its key."""
        bound = await self._keys.bound(credential.agent)
        if bound != credential.thumbprint:
            raise _refusal(credential.agent, bound)

    async def _check_binding(self, agent: str, public: bytes) -> None:
        if self._revoked(thumbprint(public)):
            raise _revoked(agent)
        bound = await self._keys.bind(agent, thumbprint(public))
        if bound != thumbprint(public):
            logger.warning("refused to enrol agent %s with key %s: the id has %s", agent, thumbprint(public), bound)
            raise _refusal(agent, bound)

    def _issue(self, agent: str, public: bytes, labels: Mapping[str, str]) -> str:
        return self._issuer.issue(self._new_id(), agent, public, self._now() // 1000, self.lifetime, labels)


def _refusal(agent: str, bound: str) -> Unauthorized:
    if bound.startswith("revoked "):
        return _revoked(agent)
    return Unauthorized(
        f"agent {local_id(agent)} is bound to another key: use that key, another id, or have an administrator release "
        "the id",
        reason="key",
    )


def _revoked(agent: str) -> Unauthorized:
    return Unauthorized(
        f"the key of agent {local_id(agent)} was revoked: have an administrator release the id, and enrol with a new "
        "key",
        reason="revoked",
    )
