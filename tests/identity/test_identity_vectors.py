"""The vectors of proofs: ours are the same octets, and a library that shares no code with ours accepts them."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

import fairlead.mock
from fairlead.identity.agent_key import AgentKey, thumbprint
from fairlead.identity.proof import enrolment_statement, link_statement, prove, renewal_statement

VECTORS: dict[str, Any] = json.loads((Path(fairlead.mock.__path__[0]) / "vectors" / "identity.json").read_text())
KEY = AgentKey(bytes.fromhex(VECTORS["seed"]))
STATEMENTS: dict[str, Callable[[dict[str, str]], bytes]] = {
    "enrolment": lambda given: enrolment_statement(given["token_id"], given["agent"], KEY.public),
    "renewal": lambda given: renewal_statement(given["agent"], given["credential"]),
    "link": lambda given: link_statement(given["nonce"], given["agent"], given["credential"], given["session"]),
}


def octets(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def test_the_key_and_its_thumbprint() -> None:
    public = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(VECTORS["seed"])).public_key().public_bytes_raw()
    assert octets(VECTORS["public"]) == KEY.public == public
    jwk = f'{{"crv":"Ed25519","kty":"OKP","x":"{VECTORS["public"]}"}}'
    assert octets(VECTORS["thumbprint"]) == hashlib.sha256(jwk.encode()).digest()
    assert thumbprint(KEY.public) == VECTORS["thumbprint"]


@pytest.mark.parametrize("given", VECTORS["proofs"], ids=lambda given: str(given["proof"]))
def test_each_proof(given: dict[str, str]) -> None:
    statement = STATEMENTS[given["proof"]](given)
    assert statement.decode() == given["signed"]
    assert prove(KEY, statement) == given["signature"]
    public = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(VECTORS["seed"])).public_key()
    public.verify(octets(given["signature"]), given["signed"].encode())  # raises if it is wrong
