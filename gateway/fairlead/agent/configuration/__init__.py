"""What `fairlead agent run` is told: defaults < file < environment < flags.

Called by the command line; the parts of the agent receive plain values. The environment is an argument, so that a
test never changes the real one. All faults are told at once, in one ConfigError. A key that is not known is a fault
too: a mistyped `alow` must not silently let everything run.
"""

from __future__ import annotations

import re
import socket
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fairlead.agent.builtin.options import ExecOptions, FileOptions, Options, ProcListOptions, ShellOptions
from fairlead.agent.configuration.rules import RULES, TABLES, Fault
from fairlead.errors import ConfigError

DEFAULT_FILE = Path("/etc/fairlead/agent.toml")
DEFAULT_URL = "ws://127.0.0.1:8080"
PREFIX = "FAIRLEAD_AGENT_"
CONFIG_VARIABLE = "FAIRLEAD_AGENT_CONFIG"
EXCLUSIVE = ("token", "token_file")


@dataclass(frozen=True, slots=True)
class Configuration:
    """Checked values. Their meaning stands in RULES."""

    url: str
    id: str
    token: str | None = field(default=None, repr=False)
    token_file: Path | None = None
    ca_file: Path | None = None
    proxy: str | None = field(default=None, repr=False)  # it may hold a password
    journal: Path | None = None
    log_level: str = "info"
    log_format: str = "text"
    facts: Mapping[str, str] = field(default_factory=dict)
    env_keep: tuple[str, ...] = ()
    options: Options = field(default_factory=Options)
    file: Path | None = None
    """The configuration file that was read."""
    sources: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Where each key that was given came from."""


@dataclass(frozen=True, slots=True)
class _Given:
    """A value as it was given, and where: the words that a fault begins with."""

    raw: object
    source: str


def variable(key: str) -> str:
    """The name of a key in the environment: exec.allow is FAIRLEAD_AGENT_EXEC_ALLOW."""
    return PREFIX + key.replace(".", "_").upper()


def load(env: Mapping[str, str], file: Path | None, flags: Mapping[str, object]) -> Configuration:
    """`file` None: that of FAIRLEAD_AGENT_CONFIG, or the default one if it is there. A flag that is None was not
    given. Raises ConfigError with all faults.
    """
    faults: list[str] = []
    given: dict[str, _Given] = {}
    file = _file(env, file)
    for layer in (_from_file(file, faults), _from_env(env, faults), _from_flags(flags)):
        both = [layer[key] for key in EXCLUSIVE if key in layer]
        if len(both) == 2:
            faults.append(f"{both[0].source} and {both[1].source}: only one of them can hold; remove the other")
        if both:
            for key in EXCLUSIVE:
                given.pop(key, None)
        given.update(layer)
    values: dict[str, Any] = {}
    for key, one in given.items():
        try:
            values[key] = RULES[key].read(one.raw)
        except Fault as e:
            faults.append(_sentence(key, one, e))
    if "ca_file" in values and values.get("url", DEFAULT_URL).startswith("ws://"):
        faults.append(
            f"{given['ca_file'].source}: the url begins with ws://, where no certificate is shown; make it wss://"
        )
    if faults:
        head = f"the agent's configuration has {'one fault' if len(faults) == 1 else f'{len(faults)} faults'}:"
        raise ConfigError("\n  - ".join([head, *faults]), faults=tuple(faults))
    return _made(values, {key: one.source for key, one in given.items()}, file)


def agent_id(hostname: str) -> str:
    """A legal id made of a host's name."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", hostname).lstrip("._-")[:128] or "agent"


def _made(values: dict[str, Any], sources: Mapping[str, str], file: Path | None) -> Configuration:
    tables: dict[str, dict[str, Any]] = {table: {} for table in TABLES}
    plain: dict[str, Any] = {}
    for key, value in values.items():
        table, dot, name = key.partition(".")
        if dot:
            tables[table][name] = value
        else:
            plain[key] = value
    options = Options(
        ExecOptions(**tables["exec"]), FileOptions(**tables["file_get"]), FileOptions(**tables["file_put"]),
        ShellOptions(**tables["shell"]), ProcListOptions(**tables["proc_list"]), plain.get("env_keep", ()),
    )  # fmt: skip
    plain.setdefault("url", DEFAULT_URL)
    plain.setdefault("id", agent_id(socket.gethostname()))
    return Configuration(**plain, options=options, file=file, sources=sources)


def _file(env: Mapping[str, str], file: Path | None) -> Path | None:
    if file is not None:
        return file
    if env.get(CONFIG_VARIABLE):
        return Path(env[CONFIG_VARIABLE])
    try:
        return DEFAULT_FILE if DEFAULT_FILE.exists() else None
    except OSError:  # its folder may not be entered: say so when it is read
        return DEFAULT_FILE


def _from_file(file: Path | None, faults: list[str]) -> dict[str, _Given]:
    if file is None:
        return {}
    try:
        parsed = tomllib.loads(file.read_bytes().decode())
    except OSError as e:
        faults.append(f"file {file}: cannot be read ({e.strerror or e}); check the path and its permissions")
        return {}
    except ValueError as e:  # not TOML, or not UTF-8
        faults.append(f'file {file}: is not TOML ({e}); write `name = "value"` on each line')
        return {}
    layer = {}
    for key, raw, fault in _keys(parsed):
        if fault:
            faults.append(f"file {file}: {fault}")
        elif key not in RULES:
            faults.append(f"file {file}: {key!r} is not a key; {_hint(key)}")
        elif not RULES[key].file:
            faults.append(f"file {file}: {key} does not belong into this file; put it into one of its own, {key}_file")
        else:
            layer[key] = _Given(raw, f"file {file}: {key}")
    return layer


def _keys(parsed: Mapping[str, object]) -> Iterator[tuple[str, object, str]]:
    """Dotted keys, their values, and what is wrong with their form."""
    for name, raw in parsed.items():
        if name in TABLES and not isinstance(raw, dict):
            yield name, raw, f"{name} is {raw!r} and not a table; write [{name}] on a line, and its keys beneath"
        elif isinstance(raw, dict) and name != "facts":
            for inner, value in raw.items():
                yield f"{name}.{inner}", value, ""
            if name not in TABLES and not raw:
                yield name, raw, ""
        else:
            yield name, raw, ""


def _from_env(env: Mapping[str, str], faults: list[str]) -> dict[str, _Given]:
    known = {variable(key): key for key in RULES}
    layer = {}
    for name in sorted(env):
        if not name.startswith(PREFIX) or name == CONFIG_VARIABLE or _is_service_link(name, env[name]):
            continue
        if name in known:
            layer[known[name]] = _Given(env[name], f"environment {name}")
        else:
            near = _nearest(name, known)
            faults.append(f"environment {name}: is not a key; {f'did you mean {near}?' if near else 'remove it'}")
    return layer


def _from_flags(flags: Mapping[str, object]) -> dict[str, _Given]:
    names = {key: "fact" if key == "facts" else key.replace("_", "-") for key in flags}
    return {key: _Given(raw, f"flag --{names[key]}") for key, raw in flags.items() if raw is not None}


def _is_service_link(name: str, value: str) -> bool:
    """Kubernetes puts such variables into each pod beside a Service whose name begins with `fairlead-agent-`."""
    if value.startswith(("tcp://", "udp://", "sctp://")):
        return True
    return re.fullmatch(r".*(_SERVICE_(HOST|PORT)(_\w+)?|_\d+_(TCP|UDP|SCTP)_(PROTO|PORT|ADDR))", name) is not None


def _sentence(key: str, one: _Given, fault: Fault) -> str:
    rule = RULES[key]
    shown = "the value" if rule.secret else repr(one.raw)[:80]
    return f"{one.source}: {shown} {fault}; expected: {rule.expected}; correct it, or leave it out"


def _hint(key: str) -> str:
    near = _nearest(key, RULES)
    return f"did you mean {near}?" if near else "docs/agent.md and `fairlead agent run --help` list all"


def _nearest(name: str, known: Mapping[str, object]) -> str:
    import difflib  # only on the way to an error

    found = difflib.get_close_matches(name, known, n=1)
    return found[0] if found else ""
