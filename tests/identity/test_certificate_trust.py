"""What a change of authorities and revocation lists means for links that are open: who is closed, and who stays."""

from __future__ import annotations

from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding

from fairlead.errors import ConfigError
from fairlead.identity.certificate_trust import CertificateTrust, TrustChange, origin_of, read_trust

from support.carrier.authority import Authority

REVOKED = "the client certificate was revoked by its authority: connect with another one"
REMOVED = "the authority of the client certificate is not trusted any more: connect with another certificate"
UNCLEAR = "an authority of client certificates is not trusted any more: connect again to show the certificate"


def made(folder: Path, name: str, *, key_ids: bool = True, by: Authority | None = None) -> Authority:
    """One in a folder of its own, because two may have the same name."""
    own = folder / str(len(list(folder.iterdir())))
    own.mkdir()
    return Authority(own, name, key_ids=key_ids, by=by)


def trust(*authorities: Authority, lists: bytes = b"") -> CertificateTrust:
    return read_trust(b"".join(one.file.read_bytes() for one in authorities), lists, b"")


def leaf(authority: Authority, name: str = "web-1") -> x509.Certificate:
    return authority.issue(name)[0]


def why(before: CertificateTrust, now: CertificateTrust, certificate: x509.Certificate) -> str:
    return TrustChange(before, now).refusal(origin_of(certificate))


@pytest.mark.parametrize("key_ids", [True, False])
def test_a_certificate_on_the_list_of_its_authority_is_refused_and_no_other(tmp_path: Path, key_ids: bool) -> None:
    one, other = (made(tmp_path, name, key_ids=key_ids) for name in ("one", "other"))
    revoked, good, foreign = leaf(one), leaf(one, "web-2"), leaf(other)
    before, lists = trust(one, other), one.revoke(revoked).read_bytes() + other.revoke().read_bytes()
    now = trust(one, other, lists=lists)
    assert [why(before, now, each) for each in (revoked, good, foreign)] == [REVOKED, "", ""]
    assert now.revoked_count == 1
    # The same serial number of another authority is another certificate.
    foreign_list = other.revoke(revoked).read_bytes()
    assert why(before, trust(one, other, lists=foreign_list), revoked) == ""


def test_a_list_counts_for_the_key_that_has_signed_it(tmp_path: Path) -> None:
    """An authority that has replaced its key keeps its name, and may begin to count anew."""
    old, new = made(tmp_path, "authority"), made(tmp_path, "authority")
    certificate = leaf(old)
    before = trust(old, new)
    assert why(before, trust(old, new, lists=new.revoke(certificate).read_bytes()), certificate) == ""
    assert why(before, trust(old, new, lists=old.revoke(certificate).read_bytes()), certificate) == REVOKED


def test_links_end_with_the_authority_that_is_removed(tmp_path: Path) -> None:
    one, other = made(tmp_path, "one"), made(tmp_path, "other")
    both = trust(one, other)
    assert why(both, trust(other), leaf(one)) == REMOVED
    assert why(both, trust(other), leaf(other)) == ""
    assert why(trust(one), both, leaf(one)) == "", "nothing is closed because an authority was added"


def test_a_new_key_of_an_authority_with_the_same_name_is_another_authority(tmp_path: Path) -> None:
    old, new = made(tmp_path, "authority"), made(tmp_path, "authority")
    assert why(trust(old), trust(new), leaf(old)) == REMOVED
    assert why(trust(old, new), trust(new), leaf(new)) == ""
    # Without ids of keys nobody knows which of the two has issued it: the next handshake tells.
    old, new = made(tmp_path, "authority", key_ids=False), made(tmp_path, "authority", key_ids=False)
    assert why(trust(old, new), trust(new), leaf(new)) == UNCLEAR


def test_a_renewed_certificate_of_an_authority_closes_nothing(tmp_path: Path) -> None:
    one = made(tmp_path, "one")
    before = trust(one)
    later = one._builder(one.name, one.key, -60, 60 * 86_400)
    later = later.add_extension(x509.SubjectKeyIdentifier.from_public_key(one.key.public_key()), False)
    one.file.write_bytes(later.sign(one.key, hashes.SHA256()).public_bytes(Encoding.PEM))
    assert why(before, trust(one), leaf(one)) == ""


def test_who_presents_a_chain_connects_again_when_any_authority_is_removed(tmp_path: Path) -> None:
    root, other = made(tmp_path, "root"), made(tmp_path, "other")
    between = made(tmp_path, "between", by=root)
    for before, now in ((trust(root, other), trust(root)), (trust(root, between, other), trust(between, other))):
        assert why(before, now, leaf(between)) == UNCLEAR
    assert why(trust(root), trust(root, other), leaf(between)) == ""


def test_names_are_compared_as_openssl_does(tmp_path: Path) -> None:
    one = made(tmp_path, "The  Authority")
    certificate = leaf(one)
    one.name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "the authority")])
    assert why(trust(one), trust(one, lists=one.revoke(certificate).read_bytes()), certificate) == REVOKED


def test_files_that_are_not_understood(tmp_path: Path) -> None:
    one = made(tmp_path, "one")
    broken = b"-----BEGIN X509 CRL-----\nAAAA\n-----END X509 CRL-----\n"
    with pytest.raises(ConfigError, match="are not understood"):
        trust(one, lists=broken)
