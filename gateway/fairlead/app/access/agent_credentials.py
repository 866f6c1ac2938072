"""Who opens a link: whoever has the shared agent token, an agent with a credential of its own, with the JWT of a
trusted issuer, or with a client certificate.

The guard of the link port asks it for every upgrade request. The shared token is compared first, and in constant time,
because it costs less than to verify a signature. A credential alone proves nothing, because it is no secret: the link
that it opens has to answer a `LinkChallenge`. A certificate was proved in the handshake of TLS. It decides which agent
it is, whatever else the request presents, so nobody takes an id with a certificate for another one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias

from fairlead.app.access.forwarded_certificate import forwarded_certificate, names_certificate
from fairlead.app.access.guard import BearerToken, bearer_credential
from fairlead.carrier.http_server.peer import peer_of
from fairlead.errors import Unauthorized
from fairlead.identity.authenticated_agent import AuthenticatedAgent
from fairlead.identity.certificate_trust import CertificateOrigin
from fairlead.identity.client_certificate import CertificateId
from fairlead.identity.credential import AgentCredential
from fairlead.tenant import local_id


class PresentedCredential(NamedTuple):
    """A credential of the platform and its text, and the origin of the connection's certificate, if it has one."""

    credential: AgentCredential
    text: str
    origin: CertificateOrigin | None = None


Presented: TypeAlias = PresentedCredential | AuthenticatedAgent | None
"""What opens a link: a credential, or an agent that was authenticated otherwise; None for the shared token."""


@dataclass(frozen=True, slots=True)
class AgentProofs:
    """What a node accepts besides the shared token. `verify` reads a credential and raises Unauthorized; it is None if
    no agents enrol here. `authenticate` reads the JWT of a trusted issuer, and gives None for anything else.
    `certificates` says which agent a client certificate names, or is None if nobody asks for any, and `header` where
    trusted proxies pass one on, "" for nowhere. `check_revoked` raises Unauthorized, and `now` is Unix time in
    seconds."""

    verify: Callable[[str], AgentCredential] | None
    authenticate: Callable[[bytes], AuthenticatedAgent | None]
    certificates: CertificateId | None
    header: str
    check_revoked: Callable[[AuthenticatedAgent], None]
    now: Callable[[], int]


class AgentCredentials:
    def __init__(self, shared: BearerToken, proofs: AgentProofs, require_identity: bool = False) -> None:
        """With `require_identity` the shared token opens no link."""
        self._shared = shared
        self._proofs = proofs
        self._require_identity = require_identity

    def check(self, scope: Mapping[str, Any]) -> Presented:
        """Raises Unauthorized for anything but the shared token and a valid credential or certificate. A certificate
        alone opens links of the default tenant, because it names no other; with a credential, this says the tenant."""
        certificates, headers = self._proofs.certificates, scope["headers"]
        certified = None if certificates is None else self._certified(scope, certificates)
        if certified is None:
            return self._presented(headers)
        if not any(name == b"authorization" for name, _ in headers):
            return certified
        presented = self._presented(headers, certified) or certified
        named = presented.credential if isinstance(presented, PresentedCredential) else presented
        agent = local_id(named.agent)
        if agent != certified.agent:
            raise Unauthorized(
                f"the client certificate is that of agent {certified.agent}, and the credential that of agent {agent}: "
                "expected both of one agent, or only one of them",
                reason="agent",
            )
        # Whatever names the agent, the link ends with the certificate that has let it in.
        if isinstance(presented, PresentedCredential):
            return presented._replace(origin=certified.origin)
        return presented if presented is certified else replace(presented, origin=certified.origin)

    def _presented(self, headers: Any, certified: AuthenticatedAgent | None = None) -> Presented:
        """What the header Authorization presents. The shared token adds nothing to a certificate."""
        scheme, credential = bearer_credential(headers, "agent")
        if self._shared.matches(scheme, credential):
            if self._require_identity and certified is None:
                raise _shared_token_refused()
            return certified
        agent = self._proofs.authenticate(credential) if scheme == b"Bearer" else None
        if agent is not None:
            self._proofs.check_revoked(agent)
            return agent
        verify = self._proofs.verify
        # Three parts between dots are a JWT. Anything else is a wrong token, and costs no more than to say so.
        if verify is None or scheme != b"Bearer" or credential.count(b".") != 2:
            raise _shared_token_refused() if self._require_identity else self._shared.refusal()
        text = credential.decode("latin-1")
        return PresentedCredential(verify(text), text)

    def _certified(self, scope: Mapping[str, Any], certificates: CertificateId) -> AuthenticatedAgent | None:
        """The agent of the client certificate, if there is one. That of a trusted proxy is the proxy's own."""
        peer, header = peer_of(scope), self._proofs.header
        certificate = None if peer.proxied else peer.certificate
        if header and peer.proxied:
            certificate = forwarded_certificate(scope["headers"], header)
        elif header and names_certificate(scope["headers"], header):
            raise Unauthorized(
                f"the request has the header {header}, but not from a trusted proxy: expected it from one of "
                "trusted_proxies only",
                reason="certificate",
            )
        if certificate is None:
            return None
        forwarded = bool(header) and peer.proxied
        agent = certificates.agent(certificate, self._proofs.now(), forwarded=forwarded)
        self._proofs.check_revoked(agent)
        return agent


def _shared_token_refused() -> Unauthorized:
    """One answer for the shared token and a wrong one: nobody learns whether a token was right."""
    return Unauthorized(
        "a shared token opens no link here: expected the agent's own credential (enrol the agent with `fairlead agent "
        "run --identity FOLDER` and an enrolment token) or its client certificate"
    )
