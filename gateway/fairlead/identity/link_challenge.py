"""What a gateway has to check in the hello of a link that was opened with a credential.

The link endpoint makes a challenge when it accepts such a link, and sends its nonce in the answer to the upgrade
request. The handler of hello checks the proof. It is pure: randomness is an argument.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from fairlead.errors import Unauthorized
from fairlead.identity.authenticated_agent import AuthenticatedAgent
from fairlead.identity.credential import AgentCredential
from fairlead.identity.proof import check_proof, link_statement
from fairlead.tenant import local_id

if TYPE_CHECKING:
    from fairlead.identity.certificate_trust import CertificateOrigin


@dataclass(frozen=True, slots=True)
class LinkChallenge:
    """`text` is the credential as it was presented, and `nonce` belongs to this link alone. `origin` is that of the
    client certificate of the connection, if there is one."""

    credential: AgentCredential
    text: str
    nonce: str
    origin: CertificateOrigin | None = None

    issued = None
    """A credential binds no id that was released, whenever it was issued."""
    certified = False
    expires = 0
    """The link stays when the credential expires, because the platform itself renews and revokes it."""

    @property
    def agent(self) -> str:
        return self.credential.agent

    @property
    def thumbprint(self) -> str:
        return self.credential.thumbprint

    @property
    def issuer(self) -> str:
        return self.credential.issuer

    @property
    def labels(self) -> Mapping[str, str]:
        return self.credential.labels

    def check(self, agent: str, proof: str, session: str) -> None:
        """Raises Unauthorized unless the agent that says hello is that of the credential, and has proved it. An agent
        does not know the name of its tenant, so `agent` is without it. `session` is the one that the hello names, ""
        for none."""
        if agent != (own := local_id(self.credential.agent)):
            raise Unauthorized(
                f"the credential of this link is that of agent {own}: say hello with that id",
                reason="agent",
            )
        try:
            statement = link_statement(self.nonce, agent, self.text, session)
        except ValueError as e:
            raise Unauthorized(
                f"the hello names a session that no gateway has given out, {session[:64]!r}: expected the sid of an "
                "earlier welcome",
                reason="session",
            ) from e
        check_proof(self.credential.public, proof, statement)


LinkProof: TypeAlias = LinkChallenge | AuthenticatedAgent
"""What the hello of a link is checked against, if the link was not opened with the shared token."""
