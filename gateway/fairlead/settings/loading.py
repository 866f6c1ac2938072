"""Reads the settings of a gateway process: defaults, a TOML file, the environment and flags, where a later source
overrides an earlier one.

It reads the files that it is given and nothing else. All errors are reported at once, in one ConfigError.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping
from pathlib import Path

from fairlead.configuration import InvalidValue, Layers, Provided, raise_errors
from fairlead.settings.consistency import contradictions
from fairlead.settings.redis_tls import FILES, add_tls_files
from fairlead.settings.settings import Settings
from fairlead.settings.table import NODE_LIMIT, SETTINGS

PREFIX = "FAIRLEAD_"
CLIENT_VARIABLES = frozenset({"FAIRLEAD_API", "FAIRLEAD_TOKEN", "FAIRLEAD_CONTEXT", "FAIRLEAD_CONFIG"})
"""Variables that the command line reads, and a gateway ignores, because one shell may export them for both."""
AGENT_PREFIX = "FAIRLEAD_AGENT_"
"""The prefix of the variables of an agent on this machine. A gateway has few settings with such names, and ignores all
other variables with this prefix."""

TOKENS = ("agent_token", "platform_token")
FROM_FILES = (*TOKENS, "redis")
"""Settings that may be in a file of their own, which `NAME_file` names: every one of them is a secret."""


def load(env: Mapping[str, str], file: Path | None, flags: Mapping[str, object]) -> Settings:
    """The settings of this process; a flag that is None was not given. Raises ConfigError with all errors."""
    defaults = {
        name: field.default
        for name, field in Settings.__dataclass_fields__.items()
        if name not in ("node", *TOKENS) and field.default not in ("", None)
    }
    layers = Layers(
        SETTINGS,
        prefix=PREFIX,
        catalogue="`fairlead serve --help` lists all",
        exclusive=[(name, f"{name}_file") for name in FROM_FILES],
        defaults=defaults,
    )
    layers.add_file(file)
    layers.add_environment(env, ignored=CLIENT_VARIABLES, foreign=AGENT_PREFIX)
    layers.add_flags(flags)
    unreadable = _read_secret_files(layers)
    tls_files = {name: layers.provided.pop(name) for name in FILES if name in layers.provided}
    values, invalid = layers.parsed()
    invalid |= unreadable
    values.setdefault("node", node_name(socket.gethostname()))
    if tls_files and "redis" not in invalid:
        values["redis"] = add_tls_files(str(values.get("redis", "")), tls_files, layers)
    settings = Settings(**values)  # type: ignore[arg-type]  # each setting parses to its field's type: test_settings
    # A contradiction with an invalid value is not reported, because only the default in its place contradicts.
    layers.errors += [error for names, error in contradictions(settings) if invalid.isdisjoint(names)]
    raise_errors(layers.errors, "configuration")
    return settings


def node_name(hostname: str) -> str:
    """A valid node name made from a host name; `node` if none of its characters can be used."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", hostname).lstrip("._-")[:NODE_LIMIT] or "node"


def _read_secret_files(layers: Layers) -> set[str]:
    """Put each secret in place of its file, without a final line end. Returns the names of those that are missing."""
    provided, missing = layers.provided, set()
    for secret in FROM_FILES:
        name = f"{secret}_file"
        one = provided.pop(name, None)
        if one is None or secret in provided:
            continue
        missing.add(secret)
        what = "URL" if secret == "redis" else "token"
        try:
            text = Path(str(SETTINGS[name].parse(one.raw))).read_bytes().decode("ascii").rstrip("\r\n")
        except InvalidValue as e:
            layers.add_invalid(name, one, e)
        except OSError as e:
            layers.errors.append(_unreadable(one, str(one.raw), e))
        except UnicodeDecodeError:
            layers.errors.append(f"{one.source}: {one.raw} is not ASCII text: expected the {what} and nothing else")
        else:
            missing.remove(secret)
            provided[secret] = Provided(text, f"{one.source} ({one.raw})")
    return missing


def _unreadable(one: Provided, path: str, e: OSError) -> str:
    return f"{one.source}: {path} cannot be read ({e.strerror or e}): check the path and its permissions"
