"""A certificate authority for tests: it issues certificates of servers and clients, and revocation lists."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

Key = ec.EllipticCurvePrivateKey
CLIENT, SERVER = ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH


def new_key() -> Key:
    return ec.generate_private_key(ec.SECP256R1())


def key_pem(key: Key) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def now() -> datetime:
    return datetime.now(UTC).replace(microsecond=0)


class Authority:
    def __init__(
        self, folder: Path, name: str = "authority", *, key_ids: bool = False, by: Authority | None = None
    ) -> None:
        """With `key_ids`, certificates and lists say which key has issued them, as those of most authorities do. `by`
        has issued the authority's own certificate; without it, the authority itself has."""
        self.folder, self.key, self.key_ids = folder, new_key(), key_ids
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        made = (by or self)._builder(self.name, self.key, -3600, 30 * 86_400)
        if key_ids:
            made = made.add_extension(x509.SubjectKeyIdentifier.from_public_key(self.key.public_key()), False)
        constraints = x509.BasicConstraints(ca=True, path_length=None)
        usage = x509.KeyUsage(True, False, False, False, False, True, True, False, False)
        made = made.add_extension(constraints, critical=True).add_extension(usage, critical=True)
        self.certificate = made.sign((by or self).key, hashes.SHA256())
        self.file = folder / f"{name}.pem"
        self.file.write_bytes(self.certificate.public_bytes(Encoding.PEM))

    def issue(
        self,
        names: str | list[str] = "web-1",
        *,
        uris: list[str] | None = None,
        dns: list[str] | None = None,
        key: Key | None = None,
        since: int = -60,
        until: int = 86_400,
        usage: x509.ObjectIdentifier | None = CLIENT,
        padding: int = 0,
    ) -> tuple[x509.Certificate, Key]:
        """A certificate and its key; times are seconds from now. `padding` makes it so many bytes larger."""
        key = key or new_key()
        names = [names] if isinstance(names, str) else names
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name) for name in names])
        made = self._builder(subject, key, since, until)
        others: list[x509.GeneralName] = [x509.UniformResourceIdentifier(uri) for uri in uris or ()]
        others += [x509.DNSName(name) for name in dns or ()]
        if others:
            made = made.add_extension(x509.SubjectAlternativeName(others), critical=False)
        if usage is not None:
            made = made.add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        if padding:
            extension = x509.UnrecognizedExtension(x509.ObjectIdentifier("1.3.6.1.4.1.99999.1"), bytes(padding))
            made = made.add_extension(extension, critical=False)
        return made.sign(self.key, hashes.SHA256()), key

    def write(self, name: str, issued: tuple[x509.Certificate, Key]) -> tuple[Path, Path]:
        """The files of a certificate and its key."""
        certificate, key = self.folder / f"{name}.crt", self.folder / f"{name}.key"
        certificate.write_bytes(issued[0].public_bytes(Encoding.PEM))
        key.write_bytes(key_pem(issued[1]))
        return certificate, key

    def client(self, name: str, **options: object) -> tuple[Path, Path]:
        return self.write(name, self.issue(name, **options))  # type: ignore[arg-type]

    def server(self, name: str = "server") -> tuple[Path, Path]:
        return self.write(name, self.issue(name, dns=["localhost"], usage=SERVER))

    def revoke(self, *certificates: x509.Certificate, others: int = 0) -> Path:
        """The file of a revocation list with these certificates, and so many others."""
        entries = [revoked(x509.random_serial_number()) for _ in range(others)]
        made = x509.CertificateRevocationListBuilder(revoked_certificates=entries).issuer_name(self.name)
        made = made.last_update(now() - timedelta(minutes=1)).next_update(now() + timedelta(days=1))
        for one in certificates:
            made = made.add_revoked_certificate(revoked(one.serial_number))
        if self.key_ids:
            made = made.add_extension(self._key_id(), False)
        file = self.file.with_suffix(".crl")
        file.write_bytes(made.sign(self.key, hashes.SHA256()).public_bytes(Encoding.PEM))
        return file

    def _builder(self, subject: x509.Name, key: Key, since: int, until: int) -> x509.CertificateBuilder:
        made = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self.name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now() + timedelta(seconds=since))
            .not_valid_after(now() + timedelta(seconds=until))
        )
        return made.add_extension(self._key_id(), False) if self.key_ids else made

    def _key_id(self) -> x509.AuthorityKeyIdentifier:
        return x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key())


def revoked(serial: int) -> x509.RevokedCertificate:
    """An entry of a revocation list."""
    return x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(now()).build()
