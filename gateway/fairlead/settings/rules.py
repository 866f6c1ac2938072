"""What each setting may be: how it is read, its limit in words, and its line in --help.

Read by `load` beside it and by the command line, which makes one flag of each rule. Values arrive as text
(from the environment, from flags) or as TOML has typed them, and both are read alike. Knows nothing of where
a value came from: the fault raised here completes the sentence «the value …», and `load` writes the rest.
"""

from __future__ import annotations

import ipaddress
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

KIB = 1024
MIB = 1024 * KIB
NODE_LIMIT = 64
"""Characters of a node's name: it stands in every lease."""


class Fault(Exception):
    """One value is wrong."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One setting. The value of a `secret` is never shown, not even in a fault."""

    read: Callable[[object], object]
    limit: str
    help: str
    secret: bool = False


def _whole(low: int, high: int, help: str) -> Rule:
    def read(raw: object) -> int:
        if isinstance(raw, str) and re.fullmatch(r"[+-]?[0-9]{1,18}", raw):
            raw = int(raw)
        if isinstance(raw, bool) or not isinstance(raw, int):
            raise Fault("is not a whole number")
        if not low <= raw <= high:
            raise Fault("is out of range")
        return raw

    return Rule(read, f"a whole number from {low} to {high}", help)


def _number(low: float, high: float, help: str) -> Rule:
    def read(raw: object) -> float:
        if isinstance(raw, bool) or not isinstance(raw, str | int | float):
            raise Fault("is not a number")
        try:
            value = float(raw)
        except (ValueError, OverflowError) as e:
            raise Fault("is not a number") from e
        if not math.isfinite(value) or not low <= value <= high:
            raise Fault("is out of range")
        return value

    return Rule(read, f"a number from {low:.10g} to {high:.10g}", help)


def _text(pattern: str, limit: str, help: str, secret: bool = False) -> Rule:
    compiled = re.compile(pattern)

    def read(raw: object) -> str:
        if not isinstance(raw, str) or compiled.fullmatch(raw) is None:
            raise Fault("is not allowed")
        return raw

    return Rule(read, limit, help, secret)


def _host(help: str) -> Rule:
    return _text(r"[A-Za-z0-9_.:%-]{1,255}", "a host name or an IP address without brackets", help)


def _port(help: str) -> Rule:
    return _whole(0, 65535, f"{help}, 0 takes a free one")


def _token(help: str) -> Rule:
    # Printable ASCII because a token travels in an HTTP header; shorter than 16 characters it can be guessed.
    return _text(r"[!-~]{16,4096}", "16 to 4096 printable ASCII characters, no blanks", help, secret=True)


def _path(help: str) -> Rule:
    def read(raw: object) -> Path:
        if not isinstance(raw, str | Path) or not str(raw) or "\0" in str(raw):
            raise Fault("is not a path")
        return Path(raw)

    return Rule(read, "the path of a file or folder", help)


def _list(one: Callable[[str], bool], limit: str, help: str) -> Rule:
    """Entries joined by commas, or a list of TOML; kept as text, in lower case, without blanks."""

    def read(raw: object) -> str:
        parts = raw.split(",") if isinstance(raw, str) else raw
        if not isinstance(parts, list) or not all(isinstance(part, str) for part in parts):
            raise Fault("is not a list")
        entries = [part.strip().lower() for part in parts if part.strip()]
        for entry in entries:
            if "," in entry or not one(entry):
                raise Fault(f"has the entry {entry[:80]!r}, which is not allowed")
        return ",".join(entries)

    return Rule(read, f"{limit}, separated by commas", help)


def _is_network(entry: str) -> bool:
    try:
        ipaddress.ip_network(entry, strict=False)
    except ValueError:
        return False
    return True


_HOST_PATTERN = r"(\*\.)?[a-z0-9_-]+(\.[a-z0-9_-]+)*|[0-9a-f:.]*:[0-9a-f:.]*"
_ORIGIN = r"[a-z][a-z0-9+.-]*://([a-z0-9_.-]+|\[[0-9a-f:.]+\])(:[0-9]{1,5})?"


def _redis(raw: object) -> str:
    if isinstance(raw, str):
        if raw == "embedded":
            return raw
        try:
            parts = urlsplit(raw)
            if parts.scheme in ("redis", "rediss") and parts.hostname and parts.port != 0:
                return raw
            if parts.scheme == "unix" and parts.path:
                return raw
        except ValueError:  # a port that is no number, a broken IPv6 address: told below like the rest
            pass
    raise Fault("is not the address of a Redis")


RULES: Mapping[str, Rule] = {
    "node": _text(
        rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{NODE_LIMIT - 1}}}",
        f"1 to {NODE_LIMIT} of A-Z a-z 0-9 . _ -, the first a letter or digit",
        "Name of this node; the host's name unless given",
    ),
    # That of an object's UID in Kubernetes is a UUID; a static pod's is a hash.
    "pod_uid": _text(
        r"[A-Za-z0-9-]{0,64}",
        "up to 64 of A-Z a-z 0-9 -",
        "UID of the pod that this node runs in, so that a container which is started again has its name at once",
    ),
    # One for each core of the biggest machines that run a gateway; more would only share cores.
    "workers": _whole(1, 64, "Processes that share the ports, each a node of its own: NODE-0, NODE-1 and so on"),
    "link_host": _host("Address for the links of agents"),
    "link_port": _port("Port for the links of agents"),
    "api_host": _host("Address for the platform API"),
    "api_port": _port("Port for the platform API"),
    "admin_host": _host("Address for probes and metrics"),
    "admin_port": _port("Port for probes and metrics"),
    # A secret because its URL may hold a password.
    "redis": Rule(_redis, "`embedded`, redis://…, rediss://… or unix://…", "URL of Redis, or `embedded`", True),
    "redis_file": _path("File that holds the URL of Redis: processes can be listed, files be kept from others"),
    "redis_ca_file": _path("Authorities, in PEM, that may sign the certificate of a rediss:// server"),
    "data": _path("Folder for the data of the embedded Valkey"),
    "agent_token": _token("What agents present"),
    "agent_token_file": _path("File that holds the token of agents"),
    "platform_token": _token("What callers of the API present"),
    "platform_token_file": _path("File that holds the token of the platform"),
    # A million links on one event loop is far beyond anything measured; the bound catches typing errors.
    "capacity": _whole(1, 1_000_000, "Links this node takes at most, each worker as many"),
    "accept_rate": _number(0.1, 100_000, "New links per second"),
    "unauthenticated_limit": _whole(
        16, 100_000, "Connections that have not shown a valid token, on link port and API together; half of one address"
    ),
    "trusted_proxies": _list(
        _is_network,
        "IP addresses and networks, as 10.0.0.0/8",
        "Proxies whose X-Forwarded-For or Forwarded names the client; nobody else's is honoured",
    ),
    "allowed_hosts": _list(
        lambda entry: re.fullmatch(_HOST_PATTERN, entry) is not None,
        "names and addresses without port, *.example.com for all below it",
        "Hosts by which link port and API may be addressed; any unless given",
    ),
    "allowed_origins": _list(
        lambda entry: re.fullmatch(_ORIGIN, entry) is not None,
        "origins as browsers send them, https://console.example.com",
        "Origins whose requests are served; a request with another Origin is refused",
    ),
    "heartbeat": _number(1, 3600, "Seconds of silence after which an agent shows that it lives"),
    "hello_timeout": _number(0.1, 300, "Seconds an agent has for its first message"),
    # In less than 128 KiB a chunk of 64 KiB in base64 would not fit; 1 MiB is the ceiling of protocol v1.
    "message_limit": _whole(128 * KIB, MIB, "Bytes of one message"),
    "window": _whole(128 * KIB, 64 * MIB, "Bytes of one stream that may be under way and not yet stored"),
    "queue_limit": _whole(128 * KIB, 256 * MIB, "Bytes of the send queue of one agent"),
    # An honest agent sends one heartbeat in `heartbeat` seconds; in less than a whole chunk nothing would pass.
    "message_rate": _number(10, 1_000_000, "Messages of one link per second that are not numbered: heartbeats, credit"),
    "event_rate": _number(1, 1_000_000, "Events of one link per second"),
    "byte_rate": _number(128 * KIB, 1024 * MIB, "Bytes read of one link per second"),
    "incomplete_limit": _whole(2 * MIB, 65536 * MIB, "Bytes of incomplete messages on all links of a node"),
    "pending_limit": _whole(MIB, 65536 * MIB, "Bytes received on all links of a node and not yet stored"),
    "drain_rate": _number(0.1, 100_000, "Links sent elsewhere per second of a drain"),
    "drain_timeout": _number(0, 3600, "Seconds a drain may take"),
    # The word and the meaning are those of kube-apiserver.
    "shutdown_delay": _number(
        0,
        3600,
        "Seconds that all ports go on serving after SIGTERM, however short the drain is: as long as load "
        "balancers need to stop sending here",
    ),
    "forget_after": _number(0, 10 * 366 * 86_400, "Seconds an agent may be away before it is forgotten, 0 for ever"),
    "retention": _number(1, 7 * 86_400, "Seconds results are kept after the end of a command"),
    "output_limit": _whole(64 * KIB, 1024 * MIB, "Bytes of the results of one command; the rest is cut"),
    "bus_grace": _number(0, 86_400, "Seconds links are held while Redis is away"),
    "log_level": _text("debug|info|warning|error", "debug, info, warning or error", "Least severe line to log"),
    "log_format": _text("text|json", "text or json", "Lines of the log: text, or one JSON object each"),
    "trace_endpoint": _text(
        r"(https?://[A-Za-z0-9_.:%\[\]-]+(/[!-~]*)?)?",
        "http://… or https://…, or nothing",
        "OTLP/HTTP address that spans are sent to, as http://collector:4318; no traces unless given",
    ),
    "trace_ratio": _number(0, 1, "Share of the commands and links that are traced, if their caller does not decide it"),
    "trace_slow": _number(0, 86_400, "Seconds from which on a command is traced anyway, as failed ones are"),
}
"""Every setting: the fields of Settings, for each secret the file that may hold it, and the authorities of Redis."""
