"""Agents that present the JWT of an issuer that the platform trusts, in place of a credential of the platform.

The link endpoint asks it for the agent of a JWT, and `ExpiringLinks` whether a JWT that has opened a link is still
good. A JWT that was verified is remembered by its digest, because agents come back with the same one.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Final

from fairlead.errors import Unauthorized
from fairlead.identity.agent_key import base64url
from fairlead.identity.authenticated_agent import AuthenticatedAgent
from fairlead.oidc.agent_claims import agent_claims
from fairlead.oidc.agent_issuers_file import AgentIssuer, parse_agent_issuers
from fairlead.oidc.issuer_keys import KeysUnavailable
from fairlead.oidc.issuer_registry import IssuerRegistry
from fairlead.oidc.jwt_verifier import LEEWAY, UnknownIssuer, UnknownKey, claimed_issuer, looks_like_jwt, verify_claims
from fairlead.telemetry.metrics import Metrics

REMEMBERED: Final = 4_096
"""JWTs that are remembered, at some 1 KB each."""


class AgentJwts:
    def __init__(self, path: Path | None, now: Callable[[], int]) -> None:
        """`path` is the file of agents' issuers, and `now` is Unix time in seconds."""
        self._now = now
        self._verified: OrderedDict[bytes, AuthenticatedAgent] = OrderedDict()
        self.issuers = IssuerRegistry(path, parse_agent_issuers, self._verified.clear)
        self.fetch_after = self.issuers.fetch_after

    def watch(self, metrics: Metrics) -> None:
        """Have the metrics read what is counted here."""
        for name, text, count in (
            ("fetches", "Times that the keys of agents' issuers were fetched", lambda one: one.fetches),
            ("fetch_failures", "Times that the keys of agents' issuers could not be fetched", lambda one: one.failures),
        ):
            metrics.add_counter(
                f"fairlead_link_issuer_key_{name}_total",
                text,
                lambda count=count: sum(map(count, self.issuers.sources)),  # type: ignore[misc]
            )

    def authenticate(self, text: bytes) -> AuthenticatedAgent | None:
        """The agent of a JWT; None if the text is not a JWT, or if no issuers are trusted. Raises Unauthorized, and
        KeysUnavailable while the keys of its issuer cannot be had; after UnknownKey and KeysUnavailable, `fetch_after`
        may help."""
        if not self.issuers.sources or not looks_like_jwt(text):
            return None
        digest = hashlib.sha256(text).digest()
        known = self._verified.get(digest)
        if known is not None:
            self.check(known)
            return known
        try:
            claimed = claimed_issuer(text)
        except Unauthorized:
            return None  # a credential of the platform names no issuer
        source = self.issuers.find(claimed)
        if source is None:
            raise UnknownIssuer(claimed, (one.issuer.url for one in self.issuers.sources))
        issuer = source.issuer
        assert isinstance(issuer, AgentIssuer)
        found = verify_claims(text, issuer, source.usable_keys(), self._now())
        claims = agent_claims(found, issuer)
        agent = self._verified[digest] = AuthenticatedAgent(
            claims.agent,
            _binding(issuer.url, claims.subject, claims.agent),
            claims.issued,
            found.expires,
            f"JWT of the issuer {issuer.name}",
            labels=claims.labels,
            source=(issuer.url, found.key_id),
        )
        if len(self._verified) > REMEMBERED:
            self._verified.popitem(last=False)
        return agent

    def check(self, agent: AuthenticatedAgent) -> None:
        """Raises what `authenticate` would raise now for the JWT of this agent."""
        assert agent.source is not None
        if (reason := self.refusal(*agent.source)) is not None:
            raise reason
        if agent.expires + LEEWAY <= self._now():
            raise Unauthorized(
                f"the {agent.proof} has expired: {AgentIssuer.advice}",
                reason="expired",
            )

    def refusal(self, url: str, key_id: str) -> Unauthorized | KeysUnavailable | None:
        """Why JWTs of this issuer and key are refused now; None if they are not. UnknownKey says that the issuer has
        withdrawn the key."""
        source = self.issuers.find(url)
        if source is None:
            return Unauthorized(f"the issuer {url[:200]} is not trusted any more", reason="issuer")
        if key_id in source.issuer.refused_keys:
            return Unauthorized(f"the key {key_id[:80]!r} of the issuer {source.issuer.name} is refused", reason="key")
        try:
            known = key_id in source.usable_keys()
        except KeysUnavailable as e:
            return e
        return None if known else UnknownKey(source.issuer, key_id)


def _binding(url: str, subject: str, agent: str) -> str:
    """What the id is bound to in place of a key: another issuer or subject that names the same id is refused. The id is
    a part of it, because many agents may have one subject, and each is revoked by itself."""
    return base64url(hashlib.sha256("\n".join(("fairlead-jwt-v1", url, subject, agent)).encode()).digest())
