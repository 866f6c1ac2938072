"""The tokens of a context: a file of mode 0600 for each.

`login` writes them and `token_refresh` replaces them. It asks no issuer.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

import msgspec

from fairlead.cli.contexts.contexts_file import Context, config_folder, write_file
from fairlead.errors import ConfigError


class LoginTokens(msgspec.Struct, forbid_unknown_fields=True):
    """`token` is what the gateway gets; `issuer` and `client_id` say who has given it, and to whom."""

    issuer: str
    client_id: str
    token: str
    expires: float
    refresh_token: str = ""

    def belongs_to(self, context: Context) -> bool:
        return (self.issuer, self.client_id) == (context.issuer, context.client_id)


def credentials_path(name: str) -> Path:
    return config_folder() / "credentials" / f"{name}.json"


def read_credentials(name: str) -> LoginTokens | None:
    """Raises ConfigError if the file cannot be used, or if others may read it."""
    path = credentials_path(name)
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            octets = file.read()
    except FileNotFoundError:
        return None
    except OSError as e:
        raise ConfigError(f"{path} cannot be read ({e.strerror or e}): check its permissions") from e
    if mode & 0o077:
        raise ConfigError(f"{path} has the mode {mode:o}, so that others may read your tokens: `chmod 600` it")
    try:
        return msgspec.json.decode(octets, type=LoginTokens)
    except msgspec.MsgspecError as e:
        raise ConfigError(f"{path} is not a file of tokens ({e}): `fairlead login` writes a new one") from e


def write_credentials(name: str, credentials: LoginTokens) -> None:
    write_file(credentials_path(name), msgspec.json.encode(credentials))
