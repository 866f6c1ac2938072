"""Replaces the keys that an agent trusts by those of a signed statement, and keeps them over restarts.

Made by `Agent` when its owner pins keys, as the method `keys.update`. The statement must be signed by a key that is
trusted now, and be newer than the last one, which is remembered in the journal's folder: a captured gateway cannot go
back to older keys by repeating an older statement. The owner of the host has the last word: once the pinned file itself
names other keys, these hold.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from fairlead.agent.errors import CommandError
from fairlead.agent.verification.command_verifier import CLOCK_TOLERANCE_MS
from fairlead.agent.verification.trusted_keys import TrustedKeys
from fairlead.errors import ConfigError
from fairlead.signing.command_signature import KEY_ID_BYTES, SIGNATURE_BYTES
from fairlead.signing.key_statement import KEYS_LIMIT, KeyStatement
from fairlead.signing.keys import PublicKey, parse_public_keys

logger = logging.getLogger("fairlead.agent")

FILE: Final = "trusted-keys.json"


class _State(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`pinned` is the digest of the keys that the owner has pinned; `keys` is empty as long as these hold."""

    pinned: str
    sequence: int
    keys: list[str]


class KeyRotation:
    def __init__(self, agent: str, keys: TrustedKeys, folder: Path, now: Callable[[], int]) -> None:
        """`keys` are the pinned ones, which are replaced in place; `now` is the wall clock in Unix ms."""
        self._agent = agent
        self._keys = keys
        self._pinned = keys.all()
        self._file = folder / FILE
        self._now = now
        self._sequence = 0
        self._lock = threading.Lock()
        """Updates run in threads, and each is compared with the one before it."""

    def open(self) -> None:
        """Continue with the keys of the last statement. Raises ConfigError for a file that cannot be used: the pinned
        keys may be retired, so they are not what to fall back to."""
        state = self._read()
        pinned = _digest(self._pinned)
        if state is None or state.pinned != pinned:
            if state is not None and state.keys:
                logger.warning(
                    "trusted_keys was changed, so its keys hold again, and those of the last statement do not"
                )
            # Without a state, whatever was signed before now may have been replaced already.
            self._sequence = self._now() if state is None else state.sequence
            self._save(self._sequence, [])
            self._keys.replace(list(self._pinned))
            return
        self._sequence = state.sequence
        if state.keys:
            self._keys.replace(parse_public_keys("\n".join(state.keys), str(self._file)))
            logger.info("trusting %d keys of the statement %d", len(self._keys), self._sequence)

    def update(self, agents: str, sequence: int, keys: list[str], key_id: str, signature: str) -> dict[str, object]:
        """Trust the keys of a statement, and no others, from the next command on. Returns their ids."""
        statement = _statement(agents, sequence, keys)
        signed_by = _octets(bytes.fromhex, key_id, KEY_ID_BYTES, "key_id")
        octets = _octets(lambda text: base64.b64decode(text, validate=True), signature, SIGNATURE_BYTES, "signature")
        with self._lock:
            signer = self._keys.find(signed_by)
            if signer is None:
                raise CommandError(
                    "signature_key_unknown",
                    f"this agent does not trust the key {signed_by.hex()} that has signed the statement: expected one "
                    "of its keys",
                )
            if not signer.verifies(octets, statement.to_sign(signer.id)):
                raise CommandError(
                    "signature_invalid",
                    "the signature is not of this statement: expected one over agents, sequence and keys",
                )
            self._accept(statement, signer)
            return {"sequence": self._sequence, "keys": [one.id.hex() for one in self._keys.all()]}

    def _accept(self, statement: KeyStatement, signer: PublicKey) -> None:
        if not statement.covers(self._agent):
            raise CommandError(
                "statement_invalid", f"the statement is for other agents: expected {self._agent}, or a pattern of it"
            )
        new = list(statement.keys)
        if statement.sequence == self._sequence and _digest(new) == _digest(self._keys.all()):
            return  # delivered twice
        if statement.sequence <= self._sequence:
            raise CommandError(
                "statement_replayed",
                f"the statement {statement.sequence} is not newer than {self._sequence}, the last one that this agent "
                "has accepted, or the moment at which it began to keep them: sign a new one",
            )
        if statement.sequence > self._now() + CLOCK_TOLERANCE_MS:
            raise CommandError(
                "signature_not_yet_valid",
                f"the statement was signed {(statement.sequence - self._now()) // 1000} s in the future by this "
                f"agent's clock: expected at most {CLOCK_TOLERANCE_MS // 1000} s (compare the clocks)",
            )
        try:
            self._save(statement.sequence, [one.line() for one in new])
        except ConfigError as e:
            raise CommandError("statement_not_kept", e.message, temporary=True) from e
        self._sequence = statement.sequence
        self._keys.replace(new)
        logger.warning(
            "the trusted keys were replaced by the statement %d of the key %s: now %s", statement.sequence,
            signer.id.hex(), ", ".join(one.id.hex() for one in new),
        )  # fmt: skip

    def _read(self) -> _State | None:
        try:
            state = msgspec.json.decode(self._file.read_bytes(), type=_State)
            if state.keys:
                parse_public_keys("\n".join(state.keys), str(self._file))
        except FileNotFoundError:
            return None
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError, ConfigError) as e:
            raise ConfigError(
                f"{self._file} cannot be used ({e}): expected what this agent has written (remove it to trust the "
                "pinned keys again)"
            ) from e
        return state

    def _save(self, sequence: int, keys: list[str]) -> None:
        """Replace the file, so that it is always a whole one. Raises ConfigError."""
        fresh = self._file.with_suffix(".new")
        try:
            descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            with open(descriptor, "wb") as file:
                file.write(msgspec.json.encode(_State(_digest(self._pinned), sequence, keys)))
                file.flush()
                os.fsync(descriptor)
            fresh.rename(self._file)
            folder = os.open(self._file.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError as e:
            raise ConfigError(f"{self._file} cannot be written ({e.strerror or e}): free space, or check it") from e


def _statement(agents: str, sequence: int, keys: list[str]) -> KeyStatement:
    if not 0 < sequence < 1 << 63 or not 0 < len(keys) <= KEYS_LIMIT or any(len(one.splitlines()) != 1 for one in keys):
        raise CommandError(
            "statement_invalid", f"expected a sequence in Unix ms, and 1 to {KEYS_LIMIT} keys, each of one line"
        )
    try:
        return KeyStatement(agents, sequence, tuple(parse_public_keys("\n".join(keys), "the statement")))
    except ConfigError as e:
        raise CommandError("statement_invalid", e.message) from e


def _octets(decode: Callable[[str], bytes], text: str, length: int, name: str) -> bytes:
    try:
        octets = decode(text)
    except (ValueError, binascii.Error):
        octets = b""
    if len(octets) != length:
        raise CommandError("signature_invalid", f"invalid {name}: expected {length} octets")
    return octets


def _digest(keys: list[PublicKey]) -> str:
    """Of the keys, in whatever order they are."""
    return hashlib.sha256(b"".join(sorted(one.octets for one in keys))).hexdigest()
