"""The contexts of a user: a JSON file in the user's folder of configuration. It holds no secret.

Whatever is written is written beside the file and put in its place, so that no reader sees a half.
"""

from __future__ import annotations

import os
import re
import secrets
from pathlib import Path
from typing import Final

import msgspec

from fairlead.errors import ConfigError

NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
NAME_RULE: Final = "1 to 63 characters of A-Z a-z 0-9 . _ -, the first a letter or digit"
DEFAULT_SCOPES: Final = "openid profile email groups offline_access"


class Context(msgspec.Struct, forbid_unknown_fields=True):
    """One gateway, the issuer at which its users log in, if there is one, and the tenant in which they act there, if
    they have to name it."""

    api: str
    ca: str = ""
    issuer: str = ""
    issuer_ca: str = ""
    client_id: str = ""
    scopes: str = DEFAULT_SCOPES
    tenant: str = ""


class Contexts(msgspec.Struct, forbid_unknown_fields=True):
    """`current` is the name of the context that a command uses if it names no other; "" if there is no such context."""

    current: str = ""
    contexts: dict[str, Context] = {}

    def find(self, name: str) -> Context:
        """Raises ConfigError if there is no such context."""
        found = self.contexts.get(name)
        if found is None:
            known = ", ".join(sorted(self.contexts))
            expected = f"expected one of {known}" if known else "there is none yet (`fairlead context add` makes one)"
            raise ConfigError(f"there is no context {name[:80]!r}: {expected}")
        return found


def config_folder() -> Path:
    """The user's folder of configuration (XDG Base Directory Specification)."""
    given = os.environ.get("XDG_CONFIG_HOME", "")
    return (Path(given) if given.startswith("/") else Path.home() / ".config") / "fairlead"


def read_contexts() -> Contexts:
    """Empty if there is no file. Raises ConfigError if it cannot be used."""
    path = config_folder() / "contexts.json"
    try:
        return msgspec.json.decode(path.read_bytes(), type=Contexts)
    except FileNotFoundError:
        return Contexts()
    except OSError as e:
        raise ConfigError(f"{path} cannot be read ({e.strerror or e}): check its permissions") from e
    except msgspec.MsgspecError as e:
        raise ConfigError(f"{path} is not a file of contexts ({e}): correct it, or remove it") from e


def write_contexts(contexts: Contexts) -> None:
    write_file(config_folder() / "contexts.json", msgspec.json.format(msgspec.json.encode(contexts)))


def write_file(path: Path, octets: bytes) -> None:
    """Replace a file that only the user may read. Raises ConfigError."""
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(octets)
        fresh.replace(path)
    except OSError as e:
        fresh.unlink(missing_ok=True)
        raise ConfigError(f"{path} cannot be written ({e.strerror or e}): check the folder's permissions") from e
