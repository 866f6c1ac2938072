"""What a gateway has to check in the hello of a link that was opened with a credential.

The link endpoint makes a challenge when it accepts such a link, and sends its nonce in the answer to the upgrade
request. The handler of hello checks the proof. It is pure: randomness is an argument.
"""

from __future__ import annotations

from dataclasses import dataclass

from fairlead.errors import Unauthorized
from fairlead.identity.credential import AgentCredential
from fairlead.identity.proof import check_proof, link_statement


@dataclass(frozen=True, slots=True)
class LinkChallenge:
    """`text` is the credential as it was presented, and `nonce` belongs to this link alone."""

    credential: AgentCredential
    text: str
    nonce: str

    def check(self, agent: str, proof: str) -> None:
        """Raises Unauthorized unless the agent that says hello is that of the credential, and has proved it."""
        if agent != self.credential.agent:
            raise Unauthorized(
                f"the credential of this link is that of agent {self.credential.agent}: say hello with that id",
                reason="agent",
            )
        check_proof(self.credential.public, proof, link_statement(self.nonce, agent, self.text))
