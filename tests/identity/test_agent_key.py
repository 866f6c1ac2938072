"""Keys of agents: thumbprints, signatures, and one spelling for each key."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from joserfc.jwk import OKPKey

from fairlead.errors import InvalidRequest
from fairlead.identity.agent_key import AgentKey, base64url, from_base64url, public_key, thumbprint, verifies

seeds = st.binary(min_size=32, max_size=32)


def test_thumbprint_is_that_of_rfc_8037() -> None:
    """The key of appendix A.1 and its thumbprint of appendix A.3."""
    key = AgentKey(bytes.fromhex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60"))
    assert base64url(key.public) == "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"
    assert thumbprint(key.public) == "kPrK_qmxVWaYVA9wwBF6Iuo3vVzz7TxHCTwXBygrS4k"


@given(seeds)
def test_thumbprint_is_that_of_the_library(seed: bytes) -> None:
    public = AgentKey(seed).public
    jwk = OKPKey.import_key({"kty": "OKP", "crv": "Ed25519", "x": base64url(public)})
    assert thumbprint(public) == jwk.thumbprint()


@given(seeds, seeds, st.binary(max_size=256), st.binary(max_size=256))
def test_a_signature_is_valid_for_its_key_and_its_octets_alone(a: bytes, b: bytes, octets: bytes, other: bytes) -> None:
    one, two = AgentKey(a), AgentKey(b)
    signature = one.sign(octets)
    assert verifies(one.public, signature, octets)
    assert verifies(two.public, signature, octets) is (a == b)
    assert verifies(one.public, signature, other) is (octets == other)


@given(st.binary(max_size=80), st.binary(max_size=80), st.binary(max_size=80))
def test_what_is_no_key_or_no_signature_verifies_nothing(public: bytes, signature: bytes, octets: bytes) -> None:
    assert not verifies(public, signature, b"x" + octets) or len(public) == 32


@given(seeds)
def test_a_key_has_one_spelling(octets: bytes) -> None:
    text = base64url(octets)
    assert public_key(text) == octets
    for other in (text + "=", text[:-1], text + "A", " " + text, text[:-1] + "\n"):
        with pytest.raises(InvalidRequest, match="invalid public key"):
            public_key(other)


def test_unused_bits_at_the_end_of_a_key_are_refused() -> None:
    text = base64url(bytes(32))
    assert from_base64url(text, 32) == bytes(32)
    assert from_base64url(text[:-1] + "B", 32) is None


@given(st.text(max_size=60))
def test_any_text_is_a_key_or_refused(text: str) -> None:
    try:
        assert base64url(public_key(text)) == text
    except InvalidRequest:
        pass


@pytest.mark.parametrize("size", [0, 31, 33])
def test_a_seed_of_another_size_makes_no_key(size: int) -> None:
    with pytest.raises(ValueError, match="takes 32 random bytes"):
        AgentKey(bytes(size))
