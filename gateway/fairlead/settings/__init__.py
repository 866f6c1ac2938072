"""The configuration of one gateway process: defaults < TOML file < environment < flags.

Only `fairlead serve` calls `load`; the rooms below receive plain values. It reads the files it is told of and
nothing else: the environment is an argument, so that a test never changes the real one. All faults are told
at once, in one ConfigError, because a pod that dies eight times for eight typing errors wastes an evening. A
name that is not known is a fault too: a mistyped limit must not silently be the default.
"""

from __future__ import annotations

import ipaddress
import re
import socket
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote, urlsplit

from fairlead.errors import ConfigError
from fairlead.settings.rules import KIB, MIB, NODE_LIMIT, RULES, Fault

PREFIX = "FAIRLEAD_"
CLIENT_KEYS = frozenset({"FAIRLEAD_API", "FAIRLEAD_TOKEN", "FAIRLEAD_CONFIG"})
"""Read by the command line, not here; one shell may export them for both."""
AGENT_PREFIX = "FAIRLEAD_AGENT_"
"""What the agent of this machine is configured with. A node knows few of these names, and leaves the others to it."""

DEVELOPMENT_AGENT_TOKEN = "development-agent-token"
DEVELOPMENT_PLATFORM_TOKEN = "development-platform-token"
TOKENS = ("agent_token", "platform_token")
FROM_FILES = (*TOKENS, "redis")
"""Settings that may stand in a file of their own, which `NAME_file` names: every one of them is a secret."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Checked values, made by `load`. The meaning and the limit of each stand in RULES."""

    node: str
    pod_uid: str = ""
    workers: int = 1
    link_host: str = "127.0.0.1"
    link_port: int = 8080
    api_host: str = "127.0.0.1"
    api_port: int = 8081
    admin_host: str = "127.0.0.1"
    admin_port: int = 8082
    redis: str = field(default="embedded", repr=False)  # its URL may hold a password
    data: Path = Path(".fairlead")
    agent_token: str = field(default=DEVELOPMENT_AGENT_TOKEN, repr=False)
    platform_token: str = field(default=DEVELOPMENT_PLATFORM_TOKEN, repr=False)
    capacity: int = 18_000  # leaves room below the usual 20,000 open files of a container
    accept_rate: float = 200.0
    unauthenticated_limit: int = 1000  # open at once; a storm of 10,000 agents needs some 400 at a round trip of 0.1 s
    trusted_proxies: str = ""
    allowed_hosts: str = ""
    allowed_origins: str = ""
    heartbeat: float = 25.0  # under the 30 s after which the least patient of the usual load balancers hang up
    hello_timeout: float = 10.0
    message_limit: int = MIB
    window: int = 256 * KIB
    queue_limit: int = MIB
    message_rate: float = 500.0
    event_rate: float = 100.0
    byte_rate: float = 32.0 * MIB
    incomplete_limit: int = 32 * MIB  # with pending_limit a sixth of the memory that the chart gives a pod
    pending_limit: int = 128 * MIB
    drain_rate: float = 200.0
    drain_timeout: float = 60.0
    shutdown_delay: float = 0.0
    retention: float = 3600.0
    forget_after: float = 30 * 86_400.0
    output_limit: int = 16 * MIB
    bus_grace: float = 120.0
    log_level: str = "info"
    log_format: str = "text"
    trace_endpoint: str = ""
    trace_ratio: float = 0.01
    trace_slow: float = 5.0


@dataclass(frozen=True, slots=True)
class _Given:
    """A value as it was given, and where: the words that a fault begins with."""

    raw: object
    source: str


def load(env: Mapping[str, str], file: Path | None, flags: Mapping[str, object]) -> Settings:
    """The settings of this process; a flag that is None was not given. Raises ConfigError with all faults."""
    faults: list[str] = []
    given: dict[str, _Given] = {}
    for layer in (_from_file(file, faults), _from_env(env, faults), _from_flags(flags, faults)):
        _merge(given, layer, faults)
    wrong = _read_secret_files(given, faults)
    authorities = given.pop("redis_ca_file", None)
    values: dict[str, object] = {}
    for name, one in given.items():
        try:
            values[name] = RULES[name].read(one.raw)
        except Fault as e:
            wrong.add(name)
            faults.append(_sentence(name, one, e))
    values.setdefault("node", node_name(socket.gethostname()))
    if authorities is not None and "redis" not in wrong:
        _trust(values, authorities, faults)
    settings = Settings(**values)  # type: ignore[arg-type]  # each rule returns its field's type: test_settings
    # A value that was not understood contradicts nothing: the default in its place was not asked for.
    faults += [text for names, text in _contradictions(settings) if wrong.isdisjoint(names)]
    if faults:
        head = f"the configuration has {'one fault' if len(faults) == 1 else f'{len(faults)} faults'}:"
        raise ConfigError("\n  - ".join([head, *faults]), faults=tuple(faults))
    return settings


def node_name(hostname: str) -> str:
    """A legal node name made of a host name; `node` when nothing of it can be used."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", hostname).lstrip("._-")[:NODE_LIMIT] or "node"


def listed(value: str) -> list[str]:
    """The entries of a setting that is a list."""
    return value.split(",") if value else []


def is_loopback(host: str) -> bool:
    """Whether `host` is surely reached from this machine alone. Of names only localhost is sure."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _from_file(file: Path | None, faults: list[str]) -> dict[str, _Given]:
    if file is None:
        return {}
    try:
        table = tomllib.loads(file.read_bytes().decode())
    except OSError as e:
        faults.append(f"file {file}: cannot be read ({e.strerror or e}); check the path and its permissions")
        return {}
    except ValueError as e:  # not TOML, or not UTF-8
        faults.append(f"file {file}: is not TOML ({e}); write `name = value` on each line")
        return {}
    faults += [f"file {file}: {name!r} is not a setting; {_hint(name)}" for name in table if name not in RULES]
    return {name: _Given(raw, f"file {file}: {name}") for name, raw in table.items() if name in RULES}


def _from_env(env: Mapping[str, str], faults: list[str]) -> dict[str, _Given]:
    layer = {}
    for key in sorted(env):
        name = key.removeprefix(PREFIX).lower()
        if not key.startswith(PREFIX) or key in CLIENT_KEYS or _is_service_link(key, env[key]):
            continue
        if name in RULES and key == PREFIX + name.upper():
            layer[name] = _Given(env[key], f"environment {key}")
        elif not key.startswith(AGENT_PREFIX):
            faults.append(f"environment {key}: is not a setting; {_hint(name, PREFIX)}")
    return layer


def _from_flags(flags: Mapping[str, object], faults: list[str]) -> dict[str, _Given]:
    layer = {}
    for name, raw in flags.items():
        source = f"flag --{name.replace('_', '-')}"
        if name not in RULES:
            faults.append(f"{source}: is not a setting; {_hint(name)}")
        elif raw is not None:
            layer[name] = _Given(raw, source)
    return layer


def _is_service_link(key: str, value: str) -> bool:
    """Kubernetes puts such variables into each pod beside a Service whose name begins with `fairlead`."""
    if value.startswith(("tcp://", "udp://", "sctp://")):
        return re.fullmatch(r".*_PORT(_\d+_(TCP|UDP|SCTP))?", key) is not None
    return re.fullmatch(r".*(_SERVICE_(HOST|PORT)(_\w+)?|_\d+_(TCP|UDP|SCTP)_(PROTO|PORT|ADDR))", key) is not None


def _merge(given: dict[str, _Given], layer: dict[str, _Given], faults: list[str]) -> None:
    """Lay `layer` over `given`. A secret and the file of that secret are two ways to say one thing."""
    for secret in FROM_FILES:
        both = [layer[name] for name in (secret, f"{secret}_file") if name in layer]
        if len(both) == 2:
            faults.append(f"{both[0].source} and {both[1].source}: only one of them can hold; remove the other")
        if both:
            given.pop(secret, None)
            given.pop(f"{secret}_file", None)
    given.update(layer)


def _read_secret_files(given: dict[str, _Given], faults: list[str]) -> set[str]:
    """Put each secret in place of its file, less a final line end. Returns the names of those not to be had."""
    wrong = set()
    for secret in FROM_FILES:
        name = f"{secret}_file"
        one = given.pop(name, None)
        if one is None or secret in given:
            continue
        wrong.add(secret)
        what = "URL" if secret == "redis" else "token"
        try:
            text = Path(str(RULES[name].read(one.raw))).read_bytes().decode("ascii").rstrip("\r\n")
        except Fault as e:
            faults.append(_sentence(name, one, e))
        except OSError as e:
            why = e.strerror or e
            faults.append(f"{one.source}: {one.raw} cannot be read ({why}); check the path and its permissions")
        except UnicodeDecodeError:
            faults.append(f"{one.source}: {one.raw} is not ASCII text; put the {what} into it and nothing else")
        else:
            wrong.remove(secret)
            given[secret] = _Given(text, f"{one.source} ({one.raw})")
    return wrong


def _trust(values: dict[str, object], authorities: _Given, faults: list[str]) -> None:
    """Name the file of authorities in the URL of Redis, which is where redis-py reads it from."""
    try:
        path = Path(str(RULES["redis_ca_file"].read(authorities.raw)))
        pem = path.read_bytes()
    except Fault as e:
        faults.append(_sentence("redis_ca_file", authorities, e))
        return
    except OSError as e:
        why = e.strerror or e
        faults.append(f"{authorities.source}: {path} cannot be read ({why}); check the path and its permissions")
        return
    if b"-----BEGIN CERTIFICATE-----" not in pem:
        faults.append(f"{authorities.source}: {path} holds no certificate in PEM; put those of the authorities into it")
        return
    url = str(values.get("redis", ""))
    if not url.startswith("rediss://"):
        faults.append(
            f"{authorities.source}: only a rediss:// URL has a certificate to check; change redis, or leave this out"
        )
        return
    values["redis"] = f"{url}{'&' if urlsplit(url).query else '?'}ssl_ca_certs={quote(str(path))}"


def _contradictions(s: Settings) -> Iterator[tuple[tuple[str, ...], str]]:
    """What cannot hold together: the names concerned, and the fault."""
    for host, address, token, known in (
        ("link_host", s.link_host, "agent_token", s.agent_token == DEVELOPMENT_AGENT_TOKEN),
        ("api_host", s.api_host, "platform_token", s.platform_token == DEVELOPMENT_PLATFORM_TOKEN),
    ):
        if known and not is_loopback(address):
            yield (
                (host, token),
                f"{host} {address} can be reached from other machines, but {token} is the development token, "
                f"which everyone knows; set {PREFIX}{token.upper()}_FILE, or {host} to 127.0.0.1",
            )
    if s.agent_token == s.platform_token:
        yield TOKENS, "agent_token and platform_token are the same, so any agent could command all; make two"
    places = [
        ("link", s.link_host, s.link_port),
        ("api", s.api_host, s.api_port),
        ("admin", s.admin_host, s.admin_port),
    ]
    for i, (one, host, port) in enumerate(places):
        for other, *place in places[i + 1 :]:
            if port and [host, port] == place:
                names = (f"{one}_host", f"{one}_port", f"{other}_host", f"{other}_port")
                yield names, f"{one}_port and {other}_port are both {port} on {host}; give each its own"
    longest = f"{s.node}-{s.workers - 1}"
    if s.workers > 1 and len(longest) > NODE_LIMIT:
        yield (
            ("node", "workers"),
            f"node {s.node} has {len(s.node)} characters, and with {s.workers} workers the last would be called "
            f"{longest}; allowed are {NODE_LIMIT}, so give a shorter name as node",
        )
    if s.queue_limit < s.message_limit:
        yield (
            ("queue_limit", "message_limit"),
            f"queue_limit {s.queue_limit} is less than message_limit {s.message_limit}, so a message of "
            f"legal size could never be queued; raise the first or lower the second",
        )


def _sentence(name: str, one: _Given, fault: Fault) -> str:
    rule = RULES[name]
    shown = "the value" if rule.secret else repr(one.raw)[:80]
    known = Settings.__dataclass_fields__.get(name)
    plain = known is not None and name not in ("node", *TOKENS)
    advice = f"correct it, or leave it out for {known.default}" if known is not None and plain else "correct it"
    return f"{one.source}: {shown} {fault}; allowed: {rule.limit}; {advice}"


def _hint(name: str, prefix: str = "") -> str:
    import difflib  # only on the way to an error

    near = difflib.get_close_matches(name, RULES, n=1)
    if not near:
        return "`fairlead serve --help` lists all"
    return f"did you mean {prefix}{near[0].upper()}?" if prefix else f"did you mean {near[0]}?"
