"""Which agent a client certificate names, and which certificates name none."""

from __future__ import annotations

import base64
import hashlib
import time

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from fairlead.errors import Unauthorized
from fairlead.identity.client_certificate import CertificateId

from support.carrier.authority import Authority

SPIFFE = "spiffe://example.com/agents/"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


def test_the_common_name_is_the_id(authority: Authority) -> None:
    certificate, key = authority.issue("web-1")
    agent = CertificateId().agent(certificate.public_bytes(Encoding.DER), int(time.time()))
    public = key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    assert agent.agent == "web-1"
    assert agent.thumbprint == base64.urlsafe_b64encode(hashlib.sha256(public).digest()).rstrip(b"=").decode()
    assert agent.issued == int(certificate.not_valid_before_utc.timestamp())
    assert agent.expires == int(certificate.not_valid_after_utc.timestamp())
    assert agent.certified


def test_a_uri_is_the_id_behind_its_prefix(authority: Authority) -> None:
    certificate, _ = authority.issue("another", uris=[SPIFFE + "web-1"])
    assert CertificateId(SPIFFE).agent(certificate.public_bytes(Encoding.DER), int(time.time())).agent == "web-1"


@pytest.mark.parametrize(
    ("source", "names", "uris", "reason"),
    [
        ("cn", [], None, "has 0 of what names its agent"),
        ("cn", ["web-1", "web-2"], None, "has 2 of what names its agent"),
        ("cn", ["web 1"], None, "invalid agent id"),
        ("cn", ["../web-1"], None, "invalid agent id"),
        (SPIFFE, ["web-1"], None, "has 0 of what names its agent"),
        (SPIFFE, ["web-1"], [SPIFFE + "web-1", SPIFFE + "web-2"], "has 2 of what names its agent"),
        (SPIFFE, ["web-1"], [SPIFFE + "web-1", "urn:x:y"], "has 2 of what names its agent"),
        (SPIFFE, ["web-1"], [SPIFFE + "a/web-1"], "invalid agent id"),
        (SPIFFE, ["web-1"], [SPIFFE], "invalid agent id"),
        (SPIFFE, ["web-1"], ["spiffe://example.com/agent/web-1"], "expected a URI that begins with"),
        (SPIFFE, ["web-1"], ["spiffe://example.com.evil.net/agents/web-1"], "expected a URI that begins with"),
    ],
)
def test_what_names_no_agent_or_two_is_refused(
    authority: Authority, source: str, names: list[str], uris: list[str] | None, reason: str
) -> None:
    certificate, _ = authority.issue(names, uris=uris)
    with pytest.raises(Unauthorized, match=reason):
        CertificateId(source).agent(certificate.public_bytes(Encoding.DER), int(time.time()))


def test_the_times_of_a_resumed_session_are_checked(authority: Authority) -> None:
    certificate, _ = authority.issue("web-1", since=-600, until=600)
    der, clock = certificate.public_bytes(Encoding.DER), int(time.time())
    for at, reason in ((clock + 700, "expired 1"), (clock - 700, "not valid for another 1")):
        with pytest.raises(Unauthorized, match=reason):
            CertificateId().agent(der, at)
    assert CertificateId().agent(der, clock + 630).agent == "web-1"


def test_octets_that_are_no_certificate_are_refused(authority: Authority) -> None:
    good = authority.issue("web-1")[0].public_bytes(Encoding.DER)
    version, name = bytes.fromhex("a003020102"), b"\x0c\x05web-1"
    other_version = good.replace(version, bytes.fromhex("a003020101"), 1)
    assert good.count(name) == 1
    bits_as_name = good.replace(name, b"\x03\x05\0eb-1", 1)
    for octets in (b"", b"x", bytes(300), b"0\x82\x01\x00" + bytes(256), other_version, bits_as_name):
        with pytest.raises(Unauthorized, match="malformed client certificate"):
            CertificateId().agent(octets, 0)
