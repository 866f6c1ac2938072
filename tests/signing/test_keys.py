"""Keys in files: those of `ssh-keygen` and `openssl` are read as well, and everything else is refused in words."""

from __future__ import annotations

import base64
import shutil
import subprocess
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from fairlead.errors import ConfigError
from fairlead.signing.keys import PrivateKey, PublicKey, generate, load_private_key, parse_public_keys


def openssh(key: PrivateKey) -> bytes:
    private = load_pem_private_key(key.pem(), None)
    return private.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())


def test_a_key_signs_and_its_public_line_verifies() -> None:
    key = generate()
    key.public.comment = "ops of the north"
    (read,) = parse_public_keys(f"# those who may\n\n{key.public.line()}\n", "file")
    signature = key.sign(b"octets")
    assert (read.id, read.comment) == (key.public.id, "ops of the north")
    assert read.verifies(signature, b"octets")
    assert not read.verifies(signature, b"octet")
    assert not generate().public.verifies(signature, b"octets")
    assert not read.verifies(bytes(64), b"octets")


@pytest.mark.parametrize("form", ["pem", "openssh"])
def test_private_keys_in_both_formats_are_read(form: str) -> None:
    key = generate()
    octets = key.pem() if form == "pem" else openssh(key)
    assert load_private_key(octets, "file").public.id == key.public.id


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="ssh-keygen is not installed")
def test_the_key_files_of_ssh_keygen_are_read(tmp_path: Path) -> None:
    file = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "me", "-f", file], check=True, timeout=30)
    key = load_private_key(file.read_bytes(), "file")
    (public,) = parse_public_keys(file.with_suffix(".pub").read_text(), "file")
    assert public.verifies(key.sign(b"octets"), b"octets")


def test_keys_that_cannot_be_used_are_refused_in_words() -> None:
    key = load_pem_private_key(generate().pem(), None)
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret"))
    with pytest.raises(ConfigError, match=r"my\.pem is encrypted with a passphrase: expected a key without one"):
        load_private_key(secret, "my.pem")
    other = generate_private_key(SECP256R1()).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    with pytest.raises(ConfigError, match="holds a key of another kind: expected Ed25519"):
        load_private_key(other, "my.pem")
    for broken in (b"", b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n", b"\xff\x00"):
        with pytest.raises(ConfigError, match="holds no private key: expected an Ed25519 key in PEM"):
            load_private_key(broken, "my.pem")


LINE = PublicKey(bytes(range(32))).line()


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "file holds no key"),
        ("# nothing\n", "file holds no key"),
        (f"{LINE}\nssh-ed25519\n", "file, line 2 is no Ed25519 public key"),
        (f"ssh-rsa {LINE.split()[1]}", "file, line 1 is no Ed25519 public key"),
        (f"ssh-ed25519 {LINE.split()[1][:-4]}", "file, line 1 is no Ed25519 public key"),
        ("ssh-ed25519 " + base64.b64encode(bytes(51)).decode(), "file, line 1 is no Ed25519 public key"),
        ("ssh-ed25519 not~base64", "file, line 1 is no Ed25519 public key"),
        (f"{LINE}\n{LINE} again\n", "file holds a key twice"),
    ],
)
def test_lines_that_are_no_keys_are_named(text: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        parse_public_keys(text, "file")
