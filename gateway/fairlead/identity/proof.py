"""Proofs of possession: signatures by which an agent shows that it holds the key of its id.

What is signed is a text of lines, which any language can build. Its first line names the purpose, so that a proof of
one kind is never valid as one of another kind; the values are limited to characters that cannot end a line.

    link         the gateway's nonce, the id, the SHA-256 of the credential, the session that the agent has stored
    enrolment    the id of the enrolment token, the id, the thumbprint of the new key
    renewal      the id, the SHA-256 of the credential that is renewed

The session is that of the last welcome that reached the agent's disk: a copy of the disk shows one that is out of date.

A link's nonce is random and belongs to one connection, so a proof that was overheard opens no other link, and no clock
of the agent is involved. The two others need no nonce: whoever repeats them receives a credential for the same key,
which is useless without the key. Called by the agent, which signs, and by the gateway, which checks. It is pure.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final

from fairlead.errors import Unauthorized
from fairlead.identity.agent_key import SIGNATURE_BYTES, AgentKey, base64url, from_base64url, thumbprint, verifies

NONCE_BYTES: Final = 16
NONCE_HEADER: Final = "fairlead-nonce"
"""The header of the answer to the upgrade request that has the gateway's nonce."""
NO_SESSION: Final = "-"
_VALUE = re.compile(r"[A-Za-z0-9._-]+\Z")
"""Characters of agent ids, of hexadecimal digits and of base64url. A line end is not one of them."""


def link_statement(nonce: str, agent: str, credential: str, session: str = "") -> bytes:
    """`session` is the id in `hello.resume`, "" if the agent has none."""
    return _statement("link", nonce, agent, _digest(credential), session or NO_SESSION)


def enrolment_statement(token_id: str, agent: str, public: bytes) -> bytes:
    return _statement("enrolment", token_id, agent, thumbprint(public))


def renewal_statement(agent: str, credential: str) -> bytes:
    return _statement("renewal", agent, _digest(credential))


def prove(key: AgentKey, statement: bytes) -> str:
    """The proof as text: the signature in base64url."""
    return base64url(key.sign(statement))


def check_proof(public: bytes, proof: str, statement: bytes) -> None:
    """Raises Unauthorized unless `proof` is the signature of the key with this public half over `statement`."""
    signature = from_base64url(proof, SIGNATURE_BYTES)
    if signature is None or not verifies(public, signature, statement):
        raise Unauthorized(
            "wrong proof of possession: expected a signature, made for this request, with the key of the credential",
            reason="proof",
        )


def _statement(purpose: str, *values: str) -> bytes:
    for value in values:
        if _VALUE.match(value) is None:
            raise ValueError(f"{value[:140]!r} cannot be part of a proof: expected letters, digits and . _ -")
    return "\n".join((f"fairlead-{purpose}-v1", *values)).encode()


def _digest(credential: str) -> str:
    return hashlib.sha256(credential.encode()).hexdigest()
