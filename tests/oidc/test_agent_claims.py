"""Which agent the claims of a JWT name, and the file that says so."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.errors import ConfigError, Unauthorized
from fairlead.oidc.agent_claims import LIFETIME_LIMIT, agent_claims
from fairlead.oidc.agent_issuers_file import AgentIssuer, parse_agent_issuers
from fairlead.oidc.claims_template import ClaimsTemplate, MissingClaim, claim_at
from fairlead.oidc.jwt_verifier import VerifiedClaims
from fairlead.wire.ids import AGENT_ID

FILE = """
[issuers.cluster]
url = "https://kubernetes.default.svc.cluster.local"
audience = "fairlead-links"
id = "{/kubernetes.io/namespace}.{/kubernetes.io/pod/name}"
match = { "/sub" = ["system:serviceaccount:edge:agent", "system:serviceaccount:iot:*"] }
labels = { namespace = "{/kubernetes.io/namespace}", from = "kubernetes", zone = "{/zone}" }
token_file = "/var/run/secrets/token"
"""
NOW = 1_800_000_000


def issuer() -> AgentIssuer:
    return parse_agent_issuers(FILE.encode(), "file")[0]


def projected(**more: Any) -> VerifiedClaims:
    """What the API server puts into the token of a pod."""
    claims = {
        "aud": ["fairlead-links"], "iss": "https://kubernetes.default.svc.cluster.local",
        "sub": "system:serviceaccount:edge:agent", "iat": NOW, "nbf": NOW, "exp": NOW + 3607,
        "kubernetes.io": {
            "namespace": "edge", "node": {"name": "n1", "uid": "1"}, "pod": {"name": "web-1", "uid": "2"},
            "serviceaccount": {"name": "agent", "uid": "3"},
        },
    } | more  # fmt: skip
    return VerifiedClaims({k: v for k, v in claims.items() if v is not None}, "key", int(claims["exp"]))  # type: ignore[call-overload]


def test_the_token_of_a_pod_names_its_agent() -> None:
    found = agent_claims(projected(), issuer())
    assert (found.agent, found.subject, found.issued) == ("edge.web-1", "system:serviceaccount:edge:agent", NOW)
    assert found.labels == {"namespace": "edge", "from": "kubernetes"}
    assert agent_claims(projected(sub="system:serviceaccount:iot:x"), issuer()).agent == "edge.web-1"


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"sub": "system:serviceaccount:edge:agent2"}, "is not for agents"),
        ({"sub": "system:serviceaccount:default:default"}, "is not for agents"),
        ({"sub": None}, "is not for agents"),
        ({"sub": ["system:serviceaccount:edge:agent"]}, "is not for agents"),
        ({"iat": None}, "no `iat`"),
        ({"iat": True}, "no `iat`"),
        ({"exp": NOW + LIFETIME_LIMIT + 1}, "valid for 7.0 days"),
        ({"kubernetes.io": {"namespace": "edge"}}, "no usable claim /kubernetes.io/pod/name"),
        ({"kubernetes.io": {"namespace": "edge", "pod": {"name": {"x": 1}}}}, "no usable claim"),
        ({"kubernetes.io": {"namespace": "edge", "pod": {"name": ""}}}, "no usable claim"),
        ({"kubernetes.io": {"namespace": "edge", "pod": {"name": "a b"}}}, "invalid agent id"),
        ({"kubernetes.io": {"namespace": "-", "pod": {"name": "a"}}}, "invalid agent id"),
        ({"zone": "a b"}, "gives the label zone"),
    ],
)
def test_what_names_no_agent_is_refused(more: dict[str, Any], reason: str) -> None:
    with pytest.raises(Unauthorized, match=reason):
        agent_claims(projected(**more), issuer())


def test_pointers_are_those_of_rfc_6901() -> None:
    claims = {"https://example.com/id": "a", "m~n": {"": 7}, "list": ["x"], "flag": True, "none": None}
    assert claim_at(claims, "/https:~1~1example.com~1id") == "a"
    assert claim_at(claims, "/m~0n/") == "7"
    assert claim_at(claims, "/flag") == "true"
    for pointer in ("/list", "/list/0", "/none", "/no", "/flag/x"):
        assert claim_at(claims, pointer) is None


@given(st.dictionaries(st.text(max_size=4), st.recursive(st.text() | st.integers() | st.none(), st.lists), max_size=4))
def test_no_claims_make_an_id_that_is_none(claims: dict[str, Any]) -> None:
    made = AgentIssuer("x", "https://x", "a", id=ClaimsTemplate("{/a}"), match=(("/sub", ("*",)),))
    verified = VerifiedClaims(claims | {"sub": "s", "iat": NOW}, "key", NOW + 60)
    try:
        found = agent_claims(verified, made)
    except Unauthorized:
        return
    assert AGENT_ID.match(found.agent)


def test_a_template_without_its_claim() -> None:
    with pytest.raises(MissingClaim):
        ClaimsTemplate("x-{/a}").fill({})
    with pytest.raises(ValueError, match="a brace that begins no pointer"):
        ClaimsTemplate("x-{a}")


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('id = "web-1"', "names no claim"),
        ('id = "{sub}"', "a brace that begins no pointer"),
        ("match = {}", "cluster.match is missing"),
        ('match = { "sub" = ["a"] }', "expected JSON Pointers to claims"),
        ('match = { "/sub" = "a" }', "is not a list of texts"),
        ('labels = "a"', "is not a table"),
        ('user_claim = "email"', "unknown member 'user_claim'"),
        ('url = "http://example.com"', "anybody in between"),
    ],
)
def test_a_file_with_an_error_names_it(line: str, reason: str) -> None:
    member = line.split(" ")[0]
    lines = [one for one in FILE.splitlines() if not one.startswith(f"{member} ")]
    with pytest.raises(ConfigError, match=reason):
        parse_agent_issuers("\n".join([*lines, line]).encode(), "file")
