"""The vectors of signed commands: ours are the same octets, and so are those of a program in another language."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

import fairlead.mock
from fairlead.signing.command_signature import CommandSignature, CommandTerms, unpack
from fairlead.signing.input_signature import input_to_sign, pack_input
from fairlead.signing.key_statement import KeyStatement
from fairlead.signing.keys import PrivateKey, PublicKey
from fairlead.signing.run_signature import RunOrder, SignedTargets, target_id

FILE = Path(fairlead.mock.__path__[0]) / "vectors" / "signatures.json"
VECTORS: list[dict[str, Any]] = json.loads(FILE.read_text())


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["name"])
def test_a_vector_is_what_we_sign(vector: dict[str, Any]) -> None:
    key = PrivateKey(Ed25519PrivateKey.from_private_bytes(bytes.fromhex(vector["seed"])))
    assert (key.public.octets.hex(), key.public.id.hex()) == (vector["public"], vector["key_id"])
    given = vector["terms"]
    if vector["kind"] == "command":
        terms = CommandTerms(**{**given, "payload": bytes.fromhex(given["payload"])})
        octets = terms.to_sign(key.public.id)
        packed = CommandSignature(key.public.id, terms.input, terms.issued, terms.expires, key.sign(octets)).pack()
        assert packed.hex() == vector["sig"]
    elif vector["kind"] == "keys":
        public = tuple(PublicKey(bytes.fromhex(one)) for one in given["keys"])
        statement = KeyStatement(given["agents"], given["sequence"], public)
        octets = statement.to_sign(key.public.id)
        assert statement.payload(key.public.id, key.sign(octets)) == vector["statement"]
    elif vector["kind"] == "run":
        octets = check_run(vector, key)
    else:
        data = bytes.fromhex(given["data"])
        octets = input_to_sign(key.public.id, given["agent"], given["id"], given["n"], given["last"], data)
        assert pack_input(given["last"], key.sign(octets), data).hex() == vector["payload"]
    assert octets.hex() == vector["signed"]


def check_run(vector: dict[str, Any], key: PrivateKey) -> bytes:
    """Check what travels to each target; returns what is signed."""
    given = vector["terms"]
    payload, issued, expires = bytes.fromhex(given["payload"]), given["issued"], given["expires"]
    order = RunOrder(given["run"], given["method"], payload, given["lane"], given["retry"], issued, expires)
    targets = SignedTargets(order, key.public.id, given["agents"])
    octets = targets.to_sign()
    head = CommandSignature(key.public.id, given["input"], issued, expires, key.sign(octets), path=b"")
    assert head.pack().hex() == vector["signature"]
    for command in vector["commands"]:
        assert target_id(given["run"], command["agent"]) == command["id"]
        assert targets.of_target(head, command["agent"]).hex() == command["sig"]
        terms = CommandTerms(
            command["agent"], command["id"], given["method"], payload, given["lane"], given["retry"], given["input"],
            issued, expires,
        )  # fmt: skip
        assert unpack(bytes.fromhex(command["sig"])).covered(terms.to_sign(key.public.id)) == octets
    return octets


@pytest.mark.skipif(shutil.which("node") is None, reason="Node.js is not installed")
def test_a_program_in_javascript_signs_and_verifies_the_same() -> None:
    program = Path(__file__).parent.parent / "interop" / "signatures.mjs"
    done = subprocess.run(["node", program, FILE], capture_output=True, timeout=60, check=True)
    assert json.loads(done.stdout) == {"agreed": len(VECTORS), "wrong": []}
