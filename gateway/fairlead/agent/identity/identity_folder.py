"""The folder with an agent's key, credential and last session: `key.pem`, `credential.json` and `session`, for its
owner alone.

`AgentIdentity` reads and writes it. A file is replaced whole or not at all, so a crash loses at most a credential that
was never used. The key is made here and is never sent anywhere.
"""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from typing import Final

import msgspec

from fairlead.errors import ConfigError
from fairlead.identity.agent_key import SEED_BYTES, AgentKey, pem_of_seed, seed_of_pem

SIZE_LIMIT: Final = 16 << 10
"""Bytes of a file: a key has 119, a credential fewer than 1,100."""


_SESSION = re.compile(rb"([A-Za-z0-9._-]{1,64})\n")


class StoredCredential(msgspec.Struct, frozen=True):
    """A credential and until when it lasts, by this machine's clock: `obtained` is Unix time, `lifetime` is seconds."""

    agent: str
    credential: str
    obtained: float
    lifetime: float


_decode = msgspec.json.Decoder(StoredCredential).decode
_encode = msgspec.json.Encoder().encode


class IdentityFolder:
    def __init__(self, path: Path) -> None:
        self.path = path

    def load_key(self) -> AgentKey:
        """The agent's key, which the first call makes. Raises ConfigError."""
        file = self.path / "key.pem"
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            pem = self._read(file)
            if pem is None:
                pem = pem_of_seed(os.urandom(SEED_BYTES))
                self._write(file, pem)
        except OSError as e:
            raise self._unusable(e) from e
        return AgentKey(seed_of_pem(pem, str(file)))

    def load_credential(self, agent: str) -> StoredCredential | None:
        """The stored credential of `agent`; None before its enrolment. Raises ConfigError if it belongs to another
        agent."""
        file = self.path / "credential.json"
        try:
            text = self._read(file)
        except OSError as e:
            raise self._unusable(e) from e
        if text is None:
            return None
        try:
            stored = _decode(text)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return None  # it is renewed with the key, which is what counts
        if stored.agent != agent:
            raise ConfigError(
                f"{self.path} holds the identity of agent {stored.agent}, and this agent's id is {agent}: expected a "
                "folder for each agent (give this one another folder, or its old id)"
            )
        return stored

    def save_credential(self, stored: StoredCredential) -> None:
        """Raises ConfigError."""
        try:
            self._write(self.path / "credential.json", _encode(stored))
        except OSError as e:
            raise self._unusable(e) from e

    def load_session(self) -> str:
        """The id of the last session that was stored; "" if there is none. Raises ConfigError."""
        try:
            text = self._read(self.path / "session")
        except OSError as e:
            raise self._unusable(e) from e
        found = _SESSION.fullmatch(text or b"")
        return found[1].decode() if found is not None else ""

    def save_session(self, session: str) -> None:
        """Raises ConfigError."""
        try:
            self._write(self.path / "session", f"{session}\n".encode())
        except OSError as e:
            raise self._unusable(e) from e

    def _read(self, file: Path) -> bytes | None:
        try:
            with file.open("rb") as opened:
                mode = os.fstat(opened.fileno()).st_mode
                if stat.S_ISREG(mode) and mode & (stat.S_IRWXG | stat.S_IRWXO):
                    raise ConfigError(
                        f"{file} can be used by others on this host: expected mode 0600 (run: chmod 600 {file}; if "
                        "others could read it, remove the folder and enrol again)"
                    )
                return opened.read(SIZE_LIMIT)
        except FileNotFoundError:
            return None

    def _write(self, file: Path, content: bytes) -> None:
        fresh = file.with_suffix(".new")
        fresh.unlink(missing_ok=True)
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as opened:
            opened.write(content)
            opened.flush()
            os.fsync(opened.fileno())
        fresh.replace(file)
        folder = os.open(self.path, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def _unusable(self, e: OSError) -> ConfigError:
        return ConfigError(
            f"the identity in {self.path} cannot be used ({e.strerror or e}): check the folder and its permissions"
        )
