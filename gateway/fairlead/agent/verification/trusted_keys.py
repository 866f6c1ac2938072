"""The keys whose signatures an agent accepts, from the file that its owner pins.

Read when the agent starts; `key_rotation` may replace them later. The file must belong to somebody whom the agent's
host trusts: whoever writes it decides who may run commands here, so a file that everyone may write is refused.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from fairlead.errors import ConfigError
from fairlead.signing.keys import PublicKey, parse_public_keys

FILE_LIMIT = 256 << 10
"""Bytes: some two thousand keys."""


class TrustedKeys:
    """Public keys by their id."""

    def __init__(self, keys: list[PublicKey]) -> None:
        self._keys = {one.id: one for one in keys}

    def find(self, key_id: bytes) -> PublicKey | None:
        return self._keys.get(key_id)

    def all(self) -> list[PublicKey]:
        return list(self._keys.values())

    def replace(self, keys: list[PublicKey]) -> None:
        """Trust these keys and no others from now on; from any thread."""
        self._keys = {one.id: one for one in keys}

    def __len__(self) -> int:
        return len(self._keys)


def load_trusted_keys(path: Path) -> TrustedKeys:
    """The keys in a file. Raises ConfigError when it cannot be used."""
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            octets = file.read(FILE_LIMIT + 1)
        text = octets.decode()
    except OSError as e:
        raise ConfigError(
            f"trusted_keys {path} cannot be read ({e.strerror or e}); check the path and its permissions"
        ) from e
    except UnicodeDecodeError as e:
        raise ConfigError(f"trusted_keys {path} is not text: expected lines `ssh-ed25519 BASE64 COMMENT`") from e
    if len(octets) > FILE_LIMIT:
        raise ConfigError(f"trusted_keys {path} is too large: expected at most {FILE_LIMIT} bytes")
    if mode & stat.S_IWOTH:
        raise ConfigError(f"trusted_keys {path} can be written by everyone on this host; run: chmod o-w {path}")
    return TrustedKeys(parse_public_keys(text, f"trusted_keys {path}"))
