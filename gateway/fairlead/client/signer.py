"""Signs commands, and their input, with a key that stays beside the caller: in a file, or behind a program.

Given to `Client` or to one command. A program is given the octets on stdin and prints the signature, which is how a
PKCS #11 token, an HSM or a key service signs without a dependency of ours.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import secrets
import subprocess
import time
import uuid
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Protocol

from fairlead.errors import ConfigError, FairleadError
from fairlead.shards import of_agent
from fairlead.signing.command_signature import SIGNATURE_BYTES, CommandSignature, CommandTerms, Input
from fairlead.signing.input_signature import input_to_sign, pack_input
from fairlead.signing.keys import PrivateKey, PublicKey, load_private_key, parse_public_keys
from fairlead.signing.run_signature import RunOrder, SignedTargets
from fairlead.wire.ids import uuid7

PROGRAM_TIMEOUT = 60.0
"""Seconds: a person may have to touch a token or to enter its PIN."""
KEY_FILE_LIMIT = 64 << 10


class Signer(Protocol):
    """A private key, wherever it is. `sign` may block, and is called in a thread."""

    @property
    def public(self) -> PublicKey: ...
    def sign(self, octets: bytes) -> bytes: ...


class ProgramSigner:
    """A key behind a program, which gets the octets on stdin and prints the 64 octets of the signature, or their
    base64."""

    def __init__(self, argv: Sequence[str], public: PublicKey) -> None:
        self.public = public
        self._argv = list(argv)

    def sign(self, octets: bytes) -> bytes:
        """Raises FairleadError when the program fails, or prints anything but this key's signature."""
        name = self._argv[0]
        try:
            ran = subprocess.run(self._argv, input=octets, capture_output=True, timeout=PROGRAM_TIMEOUT, check=False)
        except OSError as e:
            raise ConfigError(f"the signing program {name} cannot be run ({e.strerror or e}): check its path") from e
        except subprocess.TimeoutExpired as e:
            raise FairleadError(f"the signing program {name} did not end within {PROGRAM_TIMEOUT:g} s") from e
        if ran.returncode != 0:
            said = ran.stderr.decode(errors="replace").strip()[-500:]
            raise FairleadError(
                f"the signing program {name} failed with exit code {ran.returncode}: {said or 'no output'}"
            )
        signature = ran.stdout
        if len(signature) != SIGNATURE_BYTES:
            with contextlib.suppress(binascii.Error):
                signature = base64.b64decode(b"".join(ran.stdout.split()), validate=True)
        if len(signature) != SIGNATURE_BYTES or not self.public.verifies(signature, octets):
            raise FairleadError(
                f"the signing program {name} printed {len(ran.stdout)} octets that are not a signature by the key "
                f"{self.public.id.hex()}: expected {SIGNATURE_BYTES} octets, or their base64 (does the public key "
                "belong to the program's key?)"
            )
        return signature


def key_file(path: Path) -> PrivateKey:
    """The private key in a file. Raises ConfigError."""
    return load_private_key(_read(path), str(path))


def public_key_file(path: Path) -> PublicKey:
    """The only public key in a file. Raises ConfigError."""
    try:
        text = _read(path).decode()
    except UnicodeDecodeError as e:
        raise ConfigError(f"{path} is not text: expected one line `ssh-ed25519 BASE64 COMMENT`") from e
    keys = parse_public_keys(text, str(path))
    if len(keys) != 1:
        raise ConfigError(f"{path} holds {len(keys)} keys: expected the one that signs")
    return keys[0]


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(KEY_FILE_LIMIT)
    except OSError as e:
        raise ConfigError(f"{path} cannot be read ({e.strerror or e}); check the path and its permissions") from e


class SignedCommand:
    """The id, the signature and the signed input of one command."""

    def __init__(self, signer: Signer, agent: str, takes_input: bool) -> None:
        self.id = of_agent(str(uuid.uuid4()), agent)
        self._signer = signer
        self._agent = agent
        self._input: Input = "signed" if takes_input else "none"

    async def sign(self, method: str, payload: bytes, lane: str, retry: str, valid: float) -> bytes:
        """The signature of the command, which expires in `valid` seconds."""
        issued = int(time.time() * 1000)
        terms = CommandTerms(
            self._agent, self.id, method, payload, lane, retry, self._input, issued, issued + int(valid * 1000)
        )
        key = self._signer.public
        signature = await asyncio.to_thread(self._signer.sign, terms.to_sign(key.id))
        return CommandSignature(key.id, self._input, terms.issued, terms.expires, signature).pack()

    async def sign_input(self, n: int, last: bool, data: bytes) -> bytes:
        """The payload of input chunk `n`. Raises FairleadError if the command was signed to take no input."""
        if self._input == "none":
            raise FairleadError("the command was signed to take no input: expected takes_input=True when it was made")
        octets = input_to_sign(self._signer.public.id, self._agent, self.id, n, last, data)
        return pack_input(last, await asyncio.to_thread(self._signer.sign, octets), data)


async def sign_run(
    signer: Signer, method: str, payload: bytes, lane: str, retry: str, valid: float, agents: Collection[str]
) -> tuple[str, bytes]:
    """An id for a run of these agents, and its signature, which expires in `valid` seconds. The key signs once, however
    many agents there are."""
    issued = int(time.time() * 1000)
    run = uuid7(issued, secrets.token_bytes(10))
    order = RunOrder(run, method, payload, lane, retry, issued, issued + int(valid * 1000))
    key = signer.public

    def sign() -> bytes:
        signature = signer.sign(SignedTargets(order, key.id, set(agents)).to_sign())
        return CommandSignature(key.id, "none", issued, order.expires, signature, path=b"").pack()

    return run, await asyncio.to_thread(sign)
