"""JWTs that agents present: right ones of an issuer, and every kind of forged or foreign one that must open no link."""

from __future__ import annotations

import base64
import json
import time
from pathlib import Path
from typing import Any

from joserfc import jws
from joserfc.jwk import OctKey
from joserfc.jws import JWSRegistry

from support.oidc.issuer import Issuer, new_key, sign

FROM = "system:serviceaccount:edge:agent"


def write_link_issuers(url: str, path: Path, refused: str = "") -> Path:
    """A file of one trusted issuer. It is replaced at once, as every deployment of files does."""
    fresh = path.with_suffix(".new")
    fresh.write_text(
        f'[issuers.cluster]\nurl = "{url}"\naudience = "fairlead"\nid = "{{/pod/name}}"\n'
        f'match = {{ "/sub" = ["system:serviceaccount:edge:*"] }}\nlabels = {{ zone = "{{/zone}}" }}\n'
        f"refused_keys = [{refused}]\n"
    )
    fresh.replace(path)
    return path


def agent_claims(issuer: Issuer, agent: str = "web-1", **more: Any) -> dict[str, Any]:
    about = {"sub": FROM, "pod": {"name": agent}, "zone": "a", "aud": ["x", "fairlead"]}
    return issuer.claims(**(about | more))


def agent_jwt(issuer: Issuer, agent: str = "web-1", **more: Any) -> str:
    return sign(issuer.key, agent_claims(issuer, agent, **more))


def forged_jwts(issuer: Issuer, agent: str = "web-1") -> list[tuple[str, str, str]]:
    """For each kind its name, a JWT that claims to be of this agent, and what the refusal says."""
    claims, now = agent_claims(issuer, agent), time.time()
    public = issuer.key.as_pem(private=False)
    confused = jws.serialize_compact(
        {"alg": "HS256", "kid": issuer.key.kid}, json.dumps(claims).encode(),
        OctKey.import_key(base64.urlsafe_b64encode(public).decode()),
        registry=JWSRegistry(algorithms=["HS256"]),
    )  # fmt: skip
    right, kid, stranger = agent_jwt(issuer, agent), issuer.key.kid, new_key("stranger")
    nested = base64.urlsafe_b64encode(b'{"x":' + b"[" * 2_000).decode().rstrip("=")

    def of(**changed: Any) -> str:
        return agent_jwt(issuer, agent, **changed)

    return [
        ("none", _unsigned({"alg": "none", "kid": kid}, claims), "is signed with 'none'"),
        ("NONE", _unsigned({"alg": "NONE", "kid": kid}, claims), "is signed with 'NONE'"),
        ("HS/RS confusion", confused, "is signed with 'HS256'"),
        ("another key under the id", sign(stranger, claims, kid=kid), "is not signed by the issuer"),
        ("kid: path", sign(stranger, claims, kid="../../dev/null"), "does not publish"),
        ("kid: SQL", sign(stranger, claims, kid="x' UNION SELECT 'k"), "does not publish"),
        ("kid: missing", sign(stranger, claims, kid=""), "names no key"),
        ("own key", sign(stranger, claims, kid=kid, jwk=stranger.as_dict(private=False)), "brings a key of its own"),
        ("own address", sign(stranger, claims, kid=kid, jku=issuer.url + "/x"), "brings a key of its own"),
        ("audience", of(aud="another"), "expected the audience"),
        ("expired", of(exp=now - 600), "s ago: present a new one"),
        ("not yet valid", of(nbf=now + 600), "is not valid for another"),
        ("issued later", of(iat=now + 600), "is not valid for another"),
        ("for ever", of(exp=now + 30 * 86_400), "expected 7 at most"),
        ("another issuer", of(iss="https://evil.example"), "which this gateway does not trust"),
        ("another account", of(sub="system:serviceaccount:default:default"), "is not for agents"),
        ("no agent", of(pod={"name": "a/b"}), "names no agent"),
        ("logout token", sign(issuer.key, claims, typ="logout+jwt"), "is of the type"),
        ("cut off", right[:-6], "is not signed by the issuer"),
        ("nested claims", f"{right.split('.')[0]}.{nested}.AAAA", "wrong credential"),
    ]


def _unsigned(header: dict[str, Any], claims: dict[str, Any]) -> str:
    parts = (base64.urlsafe_b64encode(json.dumps(one).encode()).rstrip(b"=").decode() for one in (header, claims))
    return ".".join((*parts, ""))
