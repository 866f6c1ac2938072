"""An agent whose id was proved before its hello, by a certificate authority or by an issuer of JWTs that is trusted.

The link endpoint makes one when it accepts such a link. The handler of hello checks that the agent says the same id,
and the claim that the id is bound to nobody else. It is pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fairlead.errors import Unauthorized

if TYPE_CHECKING:
    from fairlead.identity.certificate_trust import CertificateOrigin


@dataclass(frozen=True, slots=True)
class AuthenticatedAgent:
    """`thumbprint` is what the id is bound to, `issued` and `expires` are seconds of Unix time, and `proof` says in
    words what names the agent: its client certificate, or the JWT of an issuer."""

    agent: str
    thumbprint: str
    issued: int
    expires: int
    proof: str
    certified: bool = False
    """Whether a certificate names the agent: one that was issued later may bring another key."""
    labels: Mapping[str, str] = field(default_factory=dict)
    source: tuple[str, str] | None = None
    """The issuer of the JWT and the id of the key that has signed it; None for a certificate."""
    origin: CertificateOrigin | None = None
    """Of the client certificate of the connection, if this node has verified one, whatever has named the agent."""

    issuer = ""
    """No key of this platform's has signed its credential."""

    def check(self, agent: str, proof: str, session: str) -> None:
        """Raises Unauthorized unless the agent that says hello is this one. `proof` and `session` are those of hello,
        which such an agent need not have."""
        if agent != self.agent:
            raise Unauthorized(
                f"the {self.proof} of this link is that of agent {self.agent}: say hello with that id", reason="agent"
            )
