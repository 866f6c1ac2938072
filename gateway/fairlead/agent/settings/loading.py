"""Reads the settings of an agent: defaults < TOML file < environment < flags.

All errors are reported at once, in one ConfigError. An unknown setting is an error, too: a mistyped `alow` must not
silently allow every program.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, get_type_hints

from fairlead.agent.builtin.options import Options
from fairlead.agent.settings.table import SETTINGS
from fairlead.configuration import Layers, raise_errors

DEFAULT_FILE = Path("/etc/fairlead/agent.toml")
DEFAULT_URL = "ws://127.0.0.1:8080"
PREFIX = "FAIRLEAD_AGENT_"
CONFIG_VARIABLE = "FAIRLEAD_AGENT_CONFIG"


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """Checked values. `table` says what each means and which values it takes."""

    url: str
    id: str
    token: str | None = field(default=None, repr=False)
    token_file: Path | None = None
    identity: Path | None = None
    enrolment_token: str | None = field(default=None, repr=False)
    enrolment_token_file: Path | None = None
    ca_file: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    proxy: str | None = field(default=None, repr=False)  # it may contain a password
    journal: Path | None = None
    trusted_keys: Path | None = None
    log_level: str = "info"
    log_format: str = "text"
    facts: Mapping[str, str] = field(default_factory=dict)
    options: Options = field(default_factory=Options)
    """The settings of the built-in methods, and `env_keep`."""
    file: Path | None = None
    """The configuration file that was read."""
    sources: Mapping[str, str] = field(default_factory=dict, repr=False)
    """For each setting that was given, where its value came from."""

    def value(self, name: str) -> object:
        """The value of a setting of the table, such as `url` or `exec.allow`."""
        table, dot, key = name.partition(".")
        if dot:
            return getattr(getattr(self.options, table), key)
        return getattr(self.options if name == "env_keep" else self, name)


def _layers() -> Layers:
    return Layers(
        SETTINGS,
        prefix=PREFIX,
        catalogue="docs/agent.md and `fairlead agent run --help` list all",
        exclusive=[("token", "token_file"), ("enrolment_token", "enrolment_token_file")],
    )


def variable(name: str) -> str:
    """The environment variable of a setting: exec.allow is FAIRLEAD_AGENT_EXEC_ALLOW."""
    return _layers().variable(name)


def load(env: Mapping[str, str], file: Path | None, flags: Mapping[str, object]) -> AgentSettings:
    """The settings of this agent; a flag that is None was not given. Raises ConfigError with all errors.

    `file` None: the file that FAIRLEAD_AGENT_CONFIG names, or the default one if it exists.
    """
    file = _file(env, file)
    layers = _layers()
    layers.add_file(file)
    layers.add_environment(env, ignored=[CONFIG_VARIABLE])
    layers.add_flags(flags)
    values, _ = layers.parsed()
    for name in ("ca_file", "tls_cert", "tls_key"):
        if name in values and str(values.get("url", DEFAULT_URL)).startswith("ws://"):
            layers.errors.append(
                f"{layers.provided[name].source}: url begins with ws://, where nobody shows a certificate: expected "
                f"wss:// (change url, or remove {name})"
            )
    for name, other in (("tls_cert", "tls_key"), ("tls_key", "tls_cert")):
        if name in values and other not in values:
            layers.errors.append(
                f"{layers.provided[name].source}: a client certificate and its key belong together: expected {other} "
                "too"
            )
    for name in ("enrolment_token", "enrolment_token_file"):
        if name in values and "identity" not in values:
            layers.errors.append(
                f"{layers.provided[name].source}: an agent that enrols keeps its key on its disk: expected identity, "
                "the path of a folder for this agent only"
            )
    for name in ("token", "token_file"):
        if name in values and "identity" in values:
            layers.errors.append(
                f"{layers.provided[name].source}: an agent with an identity presents its credential: expected either "
                "identity or a token"
            )
    raise_errors(layers.errors, "agent configuration")
    return _settings(values, {name: one.source for name, one in layers.provided.items()}, file)


def default_agent_id(hostname: str) -> str:
    """A valid agent id made from the host name; `agent` if no part of the name can be used."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", hostname).lstrip("._-")[:128] or "agent"


def _settings(values: dict[str, Any], sources: Mapping[str, str], file: Path | None) -> AgentSettings:
    """Settings with a dot belong to the options of the built-in method before it."""
    tables: dict[str, dict[str, Any]] = {}
    plain: dict[str, Any] = {}
    for name, value in values.items():
        table, dot, key = name.partition(".")
        if dot:
            tables.setdefault(table, {})[key] = value
        else:
            plain[name] = value
    kinds = get_type_hints(Options)
    options = {one.name: kinds[one.name](**tables[one.name]) for one in fields(Options) if one.name in tables}
    if "env_keep" in plain:
        options["env_keep"] = plain.pop("env_keep")
    plain.setdefault("url", DEFAULT_URL)
    plain.setdefault("id", default_agent_id(socket.gethostname()))
    return AgentSettings(**plain, options=Options(**options), file=file, sources=sources)


def _file(env: Mapping[str, str], file: Path | None) -> Path | None:
    if file is not None:
        return file
    if env.get(CONFIG_VARIABLE):
        return Path(env[CONFIG_VARIABLE])
    try:
        return DEFAULT_FILE if DEFAULT_FILE.exists() else None
    except OSError:  # its folder is not accessible: reading the file reports the error
        return DEFAULT_FILE
