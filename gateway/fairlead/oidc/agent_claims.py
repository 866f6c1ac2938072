"""What the verified JWT of an agent says: its id and labels, as the file of agents' issuers maps them.

It is pure. `routing` calls it for a JWT that opens a link, and knows nothing of claims.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from fairlead.errors import InvalidRequest, Unauthorized
from fairlead.oidc.agent_issuers_file import AgentIssuer
from fairlead.oidc.claims_template import MissingClaim, claim_at
from fairlead.oidc.jwt_verifier import VerifiedClaims
from fairlead.wire.ids import check_agent_id

LIFETIME_LIMIT: Final = 7 * 24 * 3600
"""Seconds from issue to expiry, as for the credentials of the platform: a revocation is listed for a day more."""
_LABEL: Final = re.compile(r"[A-Za-z0-9._/-]{1,128}")


@dataclass(frozen=True, slots=True)
class AgentClaims:
    """`subject` is whom the issuer means; times are whole seconds of Unix time."""

    agent: str
    subject: str
    issued: int
    labels: Mapping[str, str]


def agent_claims(verified: VerifiedClaims, issuer: AgentIssuer) -> AgentClaims:
    """Raises Unauthorized if the JWT is not that of an agent."""
    claims = verified.claims
    for pointer, values in issuer.match:
        found = claim_at(claims, pointer)
        if found is None or not any(_matches(found, value) for value in values):
            raise _refused(
                f"the JWT of the issuer {issuer.name} is not for agents: expected the claim {pointer} to be one of "
                f"{', '.join(values)[:200]}"
            )
    subject, issued = claims.get("sub"), claims.get("iat")
    if not isinstance(subject, str) or not subject or len(subject) > 1_024:
        raise _refused(f"the JWT of the issuer {issuer.name} has no subject (`sub`)")
    if isinstance(issued, bool) or not isinstance(issued, int | float):
        raise _refused(f"the JWT of the issuer {issuer.name} has no `iat`, the time at which it was issued")
    if verified.expires - issued > LIFETIME_LIMIT:
        raise _refused(
            f"the JWT of the issuer {issuer.name} is valid for {(verified.expires - issued) / 86_400:.1f} days: "
            f"expected {LIFETIME_LIMIT // 86_400} at most"
        )
    try:
        agent = check_agent_id(issuer.id.fill(claims))
    except (MissingClaim, InvalidRequest) as e:
        why = f"there is no usable claim {e}" if isinstance(e, MissingClaim) else e.message
        raise _refused(
            f"the JWT of the issuer {issuer.name} names no agent by {issuer.id.text!r}, because {why}"
        ) from e
    return AgentClaims(agent, subject, int(issued), _labels(claims, issuer))


def _labels(claims: Mapping[str, Any], issuer: AgentIssuer) -> dict[str, str]:
    """The labels; one without its claim is left out."""
    found = {}
    for label, template in issuer.labels:
        try:
            value = template.fill(claims)
        except MissingClaim:
            continue
        if _LABEL.fullmatch(value) is None:
            raise _refused(f"the JWT of the issuer {issuer.name} gives the label {label} the value {value[:80]!r}")
        found[label] = value
    return found


def _matches(found: str, value: str) -> bool:
    return found.startswith(value[:-1]) if value.endswith("*") else found == value


def _refused(message: str) -> Unauthorized:
    return Unauthorized(message, reason="claims")
