"""What a JWT of a trusted issuer is worth: every attack of RFC 8725 that concerns a verifier, and the clock."""

from __future__ import annotations

import base64
import hmac
import json
from typing import Any

import pytest

from fairlead.errors import Unauthorized
from fairlead.oidc.issuers_file import ALGORITHMS, TrustedIssuer
from fairlead.oidc.jwt_verifier import LEEWAY, TEXT_LIMIT, UnknownKey, claimed_issuer, looks_like_jwt, verify
from fairlead.oidc.key_set import KeySet, parse_key_set

from support.oidc.issuer import Key, new_key, sign

NOW = 1_800_000_000
URL = "https://login.example.com"
ISSUER = TrustedIssuer("company", URL, "fairlead", groups_claim="groups")
KEYS = {kind: new_key(kind, kind) for kind in ("RSA", "EC", "OKP")}


NONE = b'{"alg":"none","kid":"RSA"}'
HS256 = b'{"alg":"HS256","kid":"RSA"}'


def encoded(octets: bytes) -> str:
    return base64.urlsafe_b64encode(octets).rstrip(b"=").decode()


def published(*keys: Key, **more: Any) -> KeySet:
    return parse_key_set(json.dumps({"keys": [{**key.as_dict(private=False), **more} for key in keys]}).encode(), URL)


KNOWN = published(*KEYS.values())


def claims(**more: Any) -> dict[str, Any]:
    made = {"iss": URL, "aud": "fairlead", "sub": "anna", "iat": NOW - 60, "exp": NOW + 600, **more}
    return {name: value for name, value in made.items() if value is not None}


def refusal(text: str, issuer: TrustedIssuer = ISSUER, keys: KeySet = KNOWN, now: float = NOW) -> tuple[str, str]:
    """The reason and the message."""
    with pytest.raises(Unauthorized) as caught:
        verify(text.encode(), issuer, keys, now)
    return str(caught.value.details["reason"]), caught.value.message


@pytest.mark.parametrize(
    ("algorithm", "kind"), [("RS256", "RSA"), ("PS384", "RSA"), ("ES256", "EC"), ("Ed25519", "OKP"), ("EdDSA", "OKP")]
)
@pytest.mark.filterwarnings("ignore:EdDSA is deprecated")
def test_a_user_is_read_from_what_the_issuer_has_signed(algorithm: str, kind: str) -> None:
    text = sign(KEYS[kind], claims(groups=["oncall", "web"]), algorithm)
    assert looks_like_jwt(text.encode())
    assert claimed_issuer(text.encode()) == URL
    user = verify(text.encode(), ISSUER, KNOWN, NOW)
    assert (user.name, user.groups, user.key_id) == ("anna", frozenset({"oncall", "web"}), kind)
    assert (user.qualified_name, sorted(user.qualified_groups)) == ("company:anna", ["company:oncall", "company:web"])
    assert user.expires == NOW + 600


def test_no_algorithm_and_no_symmetric_one_is_accepted() -> None:
    assert not [one for one in ALGORITHMS if one == "none" or one.startswith("HS")]
    body = encoded(json.dumps(claims()).encode())
    reason, message = refusal(f"{encoded(NONE)}.{body}.")
    assert (reason, message.startswith("the JWT is signed with 'none': expected RS256")) == ("algorithm", True)
    # HS/RS confusion: the public key, which everybody has, as the secret.
    start = f"{encoded(HS256)}.{body}"
    forged = hmac.digest(KEYS["RSA"].as_pem(private=False), start.encode(), "sha256")
    assert refusal(f"{start}.{encoded(forged)}")[0] == "algorithm"
    only = TrustedIssuer("company", URL, "fairlead", algorithms=("ES256",))
    assert refusal(sign(KEYS["RSA"], claims()), only)[0] == "algorithm"
    assert refusal(sign(KEYS["RSA"], claims()), keys=published(KEYS["RSA"], alg="RS512"))[0] == "algorithm"
    # The header names another kind of key than the one with this id.
    assert refusal(sign(KEYS["EC"], claims(), "ES256", kid="RSA"))[0] == "signature"
    assert refusal(sign(KEYS["RSA"], claims(), "RS256", kid="EC"))[0] == "signature"


def test_a_key_comes_from_the_issuer_alone() -> None:
    stranger = new_key("stranger")
    assert refusal(sign(stranger, claims(), kid="RSA"))[0] == "signature"
    own: dict[str, Any] = {
        "jwk": stranger.as_dict(private=False), "jku": "https://evil.example/keys", "x5u": "https://evil.example/chain",
        "x5c": ["MIIB"],
    }  # fmt: skip
    for name, value in own.items():
        reason, message = refusal(sign(stranger, claims(), "RS256", kid="RSA", **{name: value}))
        assert (reason, f"brings a key of its own ({name})" in message) == ("key", True)
    for id in ("stranger", "../../../dev/null", "' OR 1=1 --", "RSA\0"):
        with pytest.raises(UnknownKey):
            verify(sign(stranger, claims(), kid=id).encode(), ISSUER, KNOWN, NOW)
    assert refusal(sign(stranger, claims(), kid="x" * 300))[0] == "malformed"
    _, body, signature = sign(stranger, claims()).split(".")
    for head in (b'{"alg":"RS256","kid":7}', b'{"alg":"RS256"}', b'{"alg":"RS256","kid":["RSA"]}'):
        assert refusal(f"{encoded(head)}.{body}.{signature}")[0] == "malformed"
    refused = TrustedIssuer("company", URL, "fairlead", refused_keys=frozenset({"RSA"}))
    assert refusal(sign(KEYS["RSA"], claims()), refused)[0] == "key"


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"aud": "another"}, "audience"), ({"aud": None}, "audience"), ({"aud": ["a", "b"]}, "audience"),
        ({"aud": "fairlead-2"}, "audience"), ({"iss": "https://evil.example"}, "issuer"), ({"iss": None}, "issuer"),
        ({"exp": NOW - LEEWAY}, "expired"), ({"exp": None}, "malformed"), ({"exp": "never"}, "malformed"),
        ({"exp": True}, "malformed"), ({"exp": 1e300}, "malformed"), ({"nbf": NOW + LEEWAY + 1}, "not_yet_valid"),
        ({"iat": NOW + 600}, "not_yet_valid"), ({"sub": None}, "user"), ({"sub": ""}, "user"), ({"sub": 7}, "user"),
        ({"sub": "a\nb"}, "user"), ({"sub": " anna"}, "user"), ({"sub": "x" * 257}, "user"),
    ],
)  # fmt: skip
def test_claims_that_are_not_for_here_and_now_are_refused(more: dict[str, Any], reason: str) -> None:
    assert refusal(sign(KEYS["RSA"], claims(**more)))[0] == reason


def test_clocks_may_differ_a_little() -> None:
    verify(sign(KEYS["RSA"], claims(exp=NOW - LEEWAY + 1)).encode(), ISSUER, KNOWN, NOW)
    verify(sign(KEYS["RSA"], claims(nbf=NOW + LEEWAY, iat=NOW + LEEWAY)).encode(), ISSUER, KNOWN, NOW)
    reason, message = refusal(sign(KEYS["RSA"], claims()), now=NOW - 600)
    assert (reason, "for another 540 s: compare the clocks" in message) == ("not_yet_valid", True)
    assert "expired 600 s ago" in refusal(sign(KEYS["RSA"], claims()), now=NOW + 1200)[1]


def test_an_audience_may_be_one_of_several() -> None:
    assert verify(sign(KEYS["RSA"], claims(aud=["other", "fairlead"])).encode(), ISSUER, KNOWN, NOW).name == "anna"


def test_other_jwts_of_the_issuer_are_no_credential() -> None:
    for kind in ("logout+jwt", "dpop+jwt", "secevent+jwt"):
        assert refusal(sign(KEYS["RSA"], claims(), typ=kind))[0] == "type"
    for kind in ("JWT", "at+jwt", "application/at+jwt"):
        verify(sign(KEYS["RSA"], claims(), typ=kind).encode(), ISSUER, KNOWN, NOW)


def test_what_is_no_jwt_is_refused_and_nothing_else_happens() -> None:
    good = sign(KEYS["RSA"], claims())
    head, body, signature = good.split(".")
    for text in (
        f"{head}.{body}.", f"{head}.{body}.AAAA", f"{head}.{body[:-2]}AA.{signature}", f"{body}.{head}.{signature}",
        f"ey!.{body}.{signature}", f"e30.{body}.{signature}", f"{head}..{signature}", "..",
        f"{head}.{body}.{signature}=!",
    ):  # fmt: skip
        assert refusal(text)[0] in ("malformed", "signature")
    for part in (b"[]", b"7", b'{"iss":7}', b"\xff", b"{"):
        with pytest.raises(Unauthorized):
            claimed_issuer(f"e30.{encoded(part)}.AAAA".encode())
    with pytest.raises(Unauthorized, match="16384 are the most"):
        claimed_issuer(b"e30." + b"A" * TEXT_LIMIT + b".AAAA")
    deep = b'"deep":' + b"[" * 5_000 + b"]" * 5_000 + b"}"
    payload, nested = encoded(b'{"iss":"x",' + deep), encoded(b'{"alg":"RS256","kid":"RSA",' + deep)
    with pytest.raises(Unauthorized, match="names no issuer"):
        claimed_issuer(f"e30.{payload}.AAAA".encode())
    assert refusal(f"{nested}.{body}.{signature}")[0] == "malformed"
    critical = encoded(b'{"alg":"RS256","kid":"RSA","crit":["exp"]}')
    assert refusal(f"{critical}.{body}.{signature}")[0] == "malformed"


def test_an_address_counts_only_when_the_issuer_has_verified_it() -> None:
    by_address = TrustedIssuer("company", URL, "fairlead", user_claim="email")
    assert refusal(sign(KEYS["RSA"], claims(email="a@b.c", email_verified=False)), by_address)[0] == "user"
    good = sign(KEYS["RSA"], claims(email="a@b.c", email_verified=True))
    assert verify(good.encode(), by_address, KNOWN, NOW).name == "a@b.c"


def test_groups_that_are_no_names_give_nothing() -> None:
    for given, expected in (
        ("oncall", {"oncall"}), (["a", 7, None, "b\n", " c", "", "d"], {"a", "d"}), ({"a": 1}, set()), (None, set()),
    ):  # fmt: skip
        assert verify(sign(KEYS["RSA"], claims(groups=given)).encode(), ISSUER, KNOWN, NOW).groups == expected
    unasked = TrustedIssuer("company", URL, "fairlead")
    assert verify(sign(KEYS["RSA"], claims(groups=["a"])).encode(), unasked, KNOWN, NOW).groups == frozenset()
