"""Credentials: what the issuer signs, the verifier reads, and nothing else; the known attacks on JWTs, one by one."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from joserfc import jwt
from joserfc.jwk import OctKey, OKPKey, RSAKey

from fairlead.errors import InvalidRequest, Unauthorized
from fairlead.identity.agent_key import AgentKey, base64url, thumbprint
from fairlead.identity.credential import (
    LABELS_LIMIT,
    LEEWAY,
    LIFETIME_LIMIT,
    TEXT_LIMIT,
    TYPE,
    CredentialIssuer,
    CredentialVerifier,
)

NOW = 1_800_000_000
AGENT_KEY = AgentKey(b"a" * 32)
SEED, FOREIGN_SEED = b"i" * 32, b"f" * 32
ISSUER = CredentialIssuer(SEED, "fleet-1")
VERIFIER = CredentialVerifier([ISSUER.public], "fleet-1")
KEY_ID = thumbprint(ISSUER.public)
HEADER = {"alg": "Ed25519", "kid": KEY_ID, "typ": TYPE}
NO_CHANGES: Mapping[str, object] = {}
CREDENTIAL = ISSUER.issue("id-1", "web-1", AGENT_KEY.public, NOW, 3600)


def private_key(seed: bytes) -> OKPKey:
    key = AgentKey(seed)
    return OKPKey.import_key({"kty": "OKP", "crv": "Ed25519", "x": base64url(key.public), "d": base64url(seed)})


def claims(changes: Mapping[str, object] = NO_CHANGES) -> dict[str, Any]:
    """The claims of CREDENTIAL with changes; a claim that becomes None is left out."""
    payload = CREDENTIAL.split(".")[1]
    all_ = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4))) | dict(changes)
    return {name: value for name, value in all_.items() if value is not None}


def signed(changes: Mapping[str, object] = NO_CHANGES, seed: bytes = SEED) -> str:
    """A credential with other claims, signed by whoever has the key of `seed`."""
    return jwt.encode(HEADER, claims(changes), private_key(seed), algorithms=["Ed25519"])


def by_hand(header: dict[str, Any], sign: Callable[[bytes], bytes]) -> str:
    """A JWT that the library would not make."""
    parts = [base64url(json.dumps(one).encode()) for one in (header, claims())]
    return f"{parts[0]}.{parts[1]}.{base64url(sign('.'.join(parts).encode()))}"


def reason(text: str, now: int = NOW, verifier: CredentialVerifier = VERIFIER) -> object:
    with pytest.raises(Unauthorized) as refused:
        verifier.verify(text, now)
    return refused.value.details["reason"]


@given(
    st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", fullmatch=True),
    st.binary(min_size=32, max_size=32),
    st.integers(0, 1 << 40),
    st.integers(1, LIFETIME_LIMIT),
)
def test_what_is_issued_is_read(agent: str, seed: bytes, now: int, lifetime: int) -> None:
    public = AgentKey(seed).public
    read = VERIFIER.verify(ISSUER.issue("an-id", agent, public, now, lifetime), now)
    assert (read.id, read.agent, read.public) == ("an-id", agent, public)
    assert (read.issued, read.expires, read.thumbprint) == (now, now + lifetime, thumbprint(public))


def test_a_credential_made_by_hand_of_documented_parts_is_read() -> None:
    """So the tests below fail for the one thing that each of them changes."""
    assert VERIFIER.verify(signed(), NOW) == VERIFIER.verify(CREDENTIAL, NOW)
    assert VERIFIER.verify(by_hand(HEADER, AgentKey(SEED).sign), NOW) == VERIFIER.verify(CREDENTIAL, NOW)


def test_the_longest_credential_is_within_the_limit() -> None:
    issuer = CredentialIssuer(SEED, "f" * 128)
    labels = {"k": "v" * (LABELS_LIMIT - len('{"k":""}'))}
    text = issuer.issue("0" * 36, "a" * 128, AGENT_KEY.public, 1 << 40, LIFETIME_LIMIT, labels)
    assert len(text) < 1_700 < TEXT_LIMIT
    read = CredentialVerifier([issuer.public], "f" * 128).verify(text, 1 << 40)
    assert (read.agent, read.labels) == ("a" * 128, labels)


@pytest.mark.parametrize("name", ["none", "None", "NONE", "", "HS256", "RS256", "ES256", "EdDSA", "ed25519"])
def test_another_algorithm_is_refused_whatever_the_signature(name: str) -> None:
    header = HEADER | {"alg": name}
    for sign in (lambda octets: b"", AgentKey(SEED).sign):
        assert reason(by_hand(header, sign)) in ("malformed", "signature")


def test_the_public_key_is_no_secret_of_hmac() -> None:
    """HS/RS confusion: the attacker signs with what everybody may know."""
    for secret in (ISSUER.public, base64url(ISSUER.public).encode(), KEY_ID.encode()):
        for header in (HEADER | {"alg": "HS256"}, HEADER):
            text = by_hand(header, lambda octets, secret=secret: hmac.digest(secret, octets, hashlib.sha256))  # type: ignore[misc]
            assert reason(text) in ("malformed", "signature")
    text = jwt.encode(HEADER | {"alg": "HS256"}, claims(), OctKey.import_key(ISSUER.public), algorithms=["HS256"])
    assert reason(text) in ("malformed", "signature")


def test_a_signature_of_rsa_is_refused() -> None:
    text = jwt.encode(HEADER | {"alg": "RS256"}, claims(), RSAKey.generate_key(2048), algorithms=["RS256"])
    assert reason(text) in ("malformed", "signature")


@pytest.mark.parametrize(
    "key_id",
    ["", "../../etc/passwd", "/dev/null", "' OR 1=1 --", "http://host/k", thumbprint(bytes(32)), 7, None, [KEY_ID]],
)  # fmt: skip
def test_a_key_id_that_is_no_issuers_is_refused(key_id: object) -> None:
    """It is looked up in a table, and is neither a path nor an address."""
    header = {name: value for name, value in (HEADER | {"kid": key_id}).items() if value is not None}
    for seed in (SEED, FOREIGN_SEED):
        assert reason(by_hand(header, AgentKey(seed).sign)) in ("malformed", "signature")


def test_a_key_that_the_credential_brings_along_is_refused() -> None:
    foreign = AgentKey(FOREIGN_SEED)
    jwk = {"kty": "OKP", "crv": "Ed25519", "x": base64url(foreign.public)}
    additions: list[dict[str, Any]] = [
        {"jwk": jwk},
        {"jwk": jwk, "kid": thumbprint(foreign.public)},
        {"jku": "http://127.0.0.1:9/keys"},
        {"x5u": "http://127.0.0.1:9/chain"},
        {"x5c": [base64.b64encode(foreign.public).decode()]},
        {"crit": ["b64"], "b64": False},
        {"zip": "DEF"},
        {"cty": "JWT"},
    ]
    for addition in additions:
        for seed in (SEED, FOREIGN_SEED):  # even the issuer's own signature does not make such a header valid
            assert reason(by_hand(HEADER | addition, AgentKey(seed).sign)) in ("malformed", "signature"), addition


@pytest.mark.parametrize("type", ["JWT", "at+jwt", "", None])
def test_another_kind_of_jwt_of_the_same_issuer_is_refused(type: str | None) -> None:
    header = {name: value for name, value in (HEADER | {"typ": type}).items() if value is not None}
    assert reason(by_hand(header, AgentKey(SEED).sign)) in ("malformed", "signature")


def test_a_foreign_issuer_under_the_known_key_id_is_refused() -> None:
    assert reason(signed(seed=FOREIGN_SEED)) == "signature"


@pytest.mark.parametrize("audience", ["fleet-2", "", "fleet-1 ", "FLEET-1"])
def test_a_credential_of_another_fleet_is_refused(audience: str) -> None:
    assert reason(signed({"aud": audience})) == "audience"


def test_an_audience_that_is_no_text_is_refused() -> None:
    assert reason(signed({"aud": ["fleet-1", "fleet-2"]})) == "malformed"
    assert reason(signed({"aud": 7})) == "malformed"


def test_a_credential_expires() -> None:
    assert VERIFIER.verify(CREDENTIAL, NOW + 3600 + LEEWAY - 1).agent == "web-1"
    assert reason(CREDENTIAL, NOW + 3600 + LEEWAY) == "expired"


def test_a_credential_is_not_valid_before_its_time() -> None:
    assert VERIFIER.verify(CREDENTIAL, NOW - LEEWAY).agent == "web-1"
    assert reason(CREDENTIAL, NOW - LEEWAY - 1) == "not_yet_valid"


def test_a_node_whose_clock_is_ten_minutes_off_says_so() -> None:
    with pytest.raises(Unauthorized, match=r"not valid for another 600 s: compare the clocks of the nodes"):
        VERIFIER.verify(CREDENTIAL, NOW - 600)
    assert VERIFIER.verify(CREDENTIAL, NOW + 600).agent == "web-1"  # an hour's lifetime bears it
    assert reason(ISSUER.issue("id-2", "web-1", AGENT_KEY.public, NOW, 300), NOW + 600) == "expired"


@pytest.mark.parametrize("name", ["sub", "aud", "iat", "nbf", "exp", "jti", "cnf"])
def test_each_claim_is_required(name: str) -> None:
    assert reason(signed({name: None})) == "malformed"


@pytest.mark.parametrize(
    "changes",
    [
        {"exp": float(NOW + 10**9)}, {"exp": str(NOW + 60)}, {"exp": True}, {"exp": NOW + LIFETIME_LIMIT + 1},
        {"exp": 10**30}, {"nbf": "0"}, {"sub": "a b"}, {"sub": "x" * 129}, {"sub": 7}, {"sub": "web-1\n"}, {"cnf": {}},
        {"cnf": {"jkt": thumbprint(AGENT_KEY.public)}},
        {"cnf": {"jwk": {"kty": "OKP", "crv": "X25519", "x": "A" * 43}}},
        {"cnf": {"jwk": {"kty": "OKP", "crv": "Ed25519", "x": "A" * 42}}},
    ],
)  # fmt: skip
def test_a_claim_of_another_kind_is_refused_even_if_it_is_signed(changes: dict[str, object]) -> None:
    assert reason(signed(changes)) == "malformed"


@given(st.data())
def test_a_credential_with_one_changed_character_is_refused(data: st.DataObject) -> None:
    """Unused bits of the last character of a part may change: then what is signed, or the signature, is the same."""
    at = data.draw(st.integers(0, len(CREDENTIAL) - 1))
    other = data.draw(st.sampled_from("ABCDabcd0123-_.="))
    text = CREDENTIAL[:at] + other + CREDENTIAL[at + 1 :]
    if at == len(CREDENTIAL) - 1 or text == CREDENTIAL:
        return
    assert reason(text) in ("malformed", "signature")


@given(st.text(max_size=200) | st.text("eyJ.AaZz09-_={}", max_size=200))
def test_any_other_text_is_refused(text: str) -> None:
    assert reason(text) in ("malformed", "signature")


@pytest.mark.parametrize(
    "text",
    ["", ".", "..", "....", "a.b.c", "a.b.c.d.e", "x" * (TEXT_LIMIT + 1), CREDENTIAL + ".", "[" * 900, "W10.W10.W10",
     base64url(b"[" * 700) + ".e30.AA", base64url(b"[]") + ".e30.AA", "bnVsbA.e30.AA"],
)  # fmt: skip
def test_broken_texts_are_refused(text: str) -> None:
    assert reason(text) == "malformed"


def test_one_issuer_replaces_another_with_an_overlap() -> None:
    later = CredentialIssuer(b"j" * 32, "fleet-1")
    both = CredentialVerifier([ISSUER.public, later.public], "fleet-1")
    new = later.issue("id-2", "web-1", AGENT_KEY.public, NOW, 3600)
    assert both.verify(CREDENTIAL, NOW).id == "id-1"
    assert both.verify(new, NOW).id == "id-2"
    only_new = CredentialVerifier([later.public], "fleet-1")
    assert only_new.verify(new, NOW).id == "id-2"
    assert reason(CREDENTIAL, verifier=only_new) == "signature"
    assert reason(new) == "signature"


def test_a_verifier_without_issuers_accepts_nothing() -> None:
    assert reason(CREDENTIAL, verifier=CredentialVerifier([], "fleet-1")) == "signature"


@pytest.mark.parametrize("lifetime", [0, -1, LIFETIME_LIMIT + 1])
def test_no_credential_is_issued_for_another_time(lifetime: int) -> None:
    with pytest.raises(ValueError, match="invalid lifetime"):
        ISSUER.issue("id", "web-1", AGENT_KEY.public, NOW, lifetime)


def test_no_credential_is_issued_for_what_is_no_id() -> None:
    with pytest.raises(InvalidRequest, match="invalid agent id"):
        ISSUER.issue("id", "web 1", AGENT_KEY.public, NOW, 60)
