"""Every setting of a gateway node: how it is parsed, what is expected, and its line in `fairlead serve --help`.

`loading` reads it, the command line, which makes a flag of each setting, and the operator's tests. The meaning of the
kinds (`whole_number`, `text` …) is in `fairlead.configuration.setting`; the kinds below are the gateway's own.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Mapping

from fairlead.configuration import InvalidValue, Setting
from fairlead.configuration.setting import choice, number, path, switch, text, whole_number
from fairlead.redis_url import EXPECTED, parse_redis_url

KIB = 1024
MIB = 1024 * KIB
NODE_LIMIT = 64
"""The longest name of a node in characters: the name is part of every lease."""


def _host(help: str) -> Setting:
    return text(r"[A-Za-z0-9_.:%-]{1,255}", "a host name or an IP address without brackets", help)


def _port(help: str) -> Setting:
    return whole_number(0, 65535, f"{help}, 0 for any free one")


def _token(help: str) -> Setting:
    # Printable ASCII because a token travels in an HTTP header; shorter than 16 characters it can be guessed.
    return text(r"[!-~]{16,4096}", "16 to 4096 printable ASCII characters without spaces", help, secret=True)


def _list(is_valid: Callable[[str], bool], expected: str, help: str) -> Setting:
    """Entries joined by commas, or a TOML list; kept as text, in lower case, without spaces."""

    def parse(raw: object) -> str:
        parts = raw.split(",") if isinstance(raw, str) else raw
        if not isinstance(parts, list) or not all(isinstance(part, str) for part in parts):
            raise InvalidValue("is not a list")
        entries = [part.strip().lower() for part in parts if part.strip()]
        for entry in entries:
            if "," in entry or not is_valid(entry):
                raise InvalidValue(f"contains {entry[:80]!r}, which is not valid")
        return ",".join(entries)

    return Setting(parse, f"{expected}, separated by commas", help)


def _is_network(entry: str) -> bool:
    try:
        ipaddress.ip_network(entry, strict=False)
    except ValueError:
        return False
    return True


_HOST_PATTERN = r"(\*\.)?[a-z0-9_-]+(\.[a-z0-9_-]+)*|[0-9a-f:.]*:[0-9a-f:.]*"
_ORIGIN = r"[a-z][a-z0-9+.-]*://([a-z0-9_.-]+|\[[0-9a-f:.]+\])(:[0-9]{1,5})?"


def _redis_url(raw: object) -> str:
    if isinstance(raw, str):
        if raw == "embedded":
            return raw
        try:
            parse_redis_url(raw)
        except ValueError as e:
            raise InvalidValue("is not a valid Redis URL") from e  # e may quote a part of it, and so a password
        return raw
    raise InvalidValue("is not a valid Redis URL")


SETTINGS: Mapping[str, Setting] = {
    "node": text(
        rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{NODE_LIMIT - 1}}}",
        f"1 to {NODE_LIMIT} characters of A-Z a-z 0-9 . _ -, the first a letter or digit",
        "Name of this node; by default the host's name",
    ),
    # The UID of an object in Kubernetes is a UUID; that of a static pod is a hash.
    "pod_uid": text(
        r"[A-Za-z0-9-]{0,64}",
        "up to 64 characters of A-Z a-z 0-9 -",
        "UID of the pod that this node runs in; with it, a restarted container gets its name back at once",
    ),
    # The value of a label in Kubernetes has at most 63 characters.
    "revision": text(
        r"[A-Za-z0-9._-]{0,63}",
        "up to 63 characters of A-Z a-z 0-9 . _ -",
        "Revision of this node, equal for all nodes of one rollout; while another revision takes new links, /readyz "
        "fails",
    ),
    # One for each core of the largest machines that run a gateway; more would only share cores.
    "workers": whole_number(
        1, 64, "Worker processes that share the ports; each is a node of its own: NODE-0, NODE-1 and so on"
    ),
    "link_host": _host("Address on which to listen for agents' links"),
    "link_port": _port("Port on which to listen for agents' links"),
    "api_host": _host("Address on which to serve the platform API"),
    "api_port": _port("Port on which to serve the platform API"),
    "link_tls_cert": path(
        "PEM file of the link port's certificate, with its chain; with it, the port speaks TLS (wss://)"
    ),
    "link_tls_key": path("PEM file of the key of link_tls_cert, without a password"),
    "link_tls_client_ca": path(
        "PEM file of the authorities whose client certificates name the agents; with it, the link port asks for one "
        "(mutual TLS)"
    ),
    "link_tls_client_auth": choice(
        ("required", "optional"),
        "Whether every connection to the link port needs a client certificate, or agents may present another "
        "credential instead",
    ),
    "link_tls_client_crl": path(
        "PEM file of certificate revocation lists, one of each authority in link_tls_client_ca; read again when it "
        "changes"
    ),
    "link_tls_client_id": text(
        r"cn|[a-z][a-z0-9+.-]*:[!-~]{1,500}[/:]",
        "`cn`, or the beginning of a URI that ends in / or :, such as spiffe://example.com/agents/",
        "Where a client certificate names its agent: in its common name, or in its URI behind this beginning",
    ),
    "link_client_cert_header": text(
        r"(ssl-client-cert|x-forwarded-client-cert|x-forwarded-tls-client-cert)?",
        "ssl-client-cert (ingress-nginx), x-forwarded-client-cert (Envoy), x-forwarded-tls-client-cert (Traefik), or "
        "nothing",
        "Header in which the trusted_proxies pass on the client certificate of an agent, which they have verified; "
        "from anybody else it is refused",
    ),
    "api_tls_cert": path("PEM file of the API port's certificate, with its chain; with it, the port speaks TLS"),
    "api_tls_key": path("PEM file of the key of api_tls_cert, without a password"),
    "tls_ticket_keys": path(
        "File of the keys for TLS session tickets, equal on all nodes: lines of 160 hexadecimal digits, the first of "
        "which encrypts; by default the workers of one process share a key of their own"
    ),
    "admin_host": _host("Address on which to serve health checks and metrics"),
    "admin_port": _port("Port on which to serve health checks and metrics"),
    # A secret because its URL may hold a password.
    "redis": Setting(
        _redis_url,
        f"`embedded`, {EXPECTED}",
        "URL of Redis, or `embedded`",
        True,
    ),
    "redis_file": path("File that contains the URL of Redis; unlike a flag, it is not shown in the list of processes"),
    "redis_ca_file": path("PEM file of the certificate authorities to trust for a rediss:// server"),
    "redis_cert_file": path("PEM file of the certificate that this node presents to a rediss:// server"),
    "redis_key_file": path("PEM file of the key of redis_cert_file, without a password"),
    "data": path("Data directory of the embedded Valkey"),
    "agent_token": _token("Token that agents present"),
    "agent_token_file": path("File that contains the agents' token"),
    "platform_token": _token("Token that callers of the platform API present"),
    "platform_token_file": path("File that contains the platform's token"),
    "roles": path(
        "YAML file of roles and of the service tokens that they are bound to; read again when it changes. Without it, "
        "only the platform token may use the API"
    ),
    "issuer_key": path(
        "PEM file of the Ed25519 key that signs the credentials of agents, the same on all nodes; without it, agents "
        "have the shared token alone"
    ),
    "audience": text(
        r"[A-Za-z0-9._:/-]{1,128}",
        "1 to 128 characters of A-Z a-z 0-9 . _ : / -",
        "Name of this fleet in the credentials of its agents; those of another fleet are refused",
    ),
    "credential_lifetime": number(
        60, 7 * 86_400, "Seconds for which an agent's credential is valid; it is renewed before"
    ),
    "clone_policy": choice(
        ("tell", "hold"),
        "What happens to an agent whose key is used by two copies, such as a cloned disk: it is told, and the copies "
        "take turns at most once a minute; or its key is revoked too, so that both are refused until it enrols anew",
    ),
    "require_identity": switch(
        "Refuse the shared token of agents, so that only agents with an identity of their own open links; needs "
        "issuer_key"
    ),
    "insecure_shared_token": switch(
        "Let the shared token of agents open links on a port that other machines can reach; whoever has it can be any "
        "agent without an identity of its own"
    ),
    "issuers": path(
        "TOML file of the OpenID Connect issuers whose JWTs callers of the API may present; read again when it changes"
    ),
    "link_issuers": path(
        "TOML file of the issuers whose JWTs agents may present, such as those of Kubernetes service accounts; read "
        "again when it changes"
    ),
    "event_sinks": path(
        "TOML file of the HTTP endpoints to which events of agents are delivered (webhooks); read again when it changes"
    ),
    "audit_log": path(
        "Folder of the audit log, in which decisions about callers are recorded before they take effect; by default "
        "none is kept"
    ),
    "audit_fsync": choice(
        ("always", "everysec", "no"),
        "When lines of the audit log are forced to the disk: each before it takes effect, once a second, or when the "
        "system does it",
    ),
    # A file of 64 KiB has some 150 lines; 1 GiB takes a minute to look through at the start.
    "audit_size": whole_number(
        64 * KIB, 1024 * MIB, "Size from which on the audit log goes on in a new file, in bytes"
    ),
    "audit_key": path(
        "PEM file of the Ed25519 key that signs the heads of the audit log, so that nobody who has only the folder can "
        "shorten the log or write it anew; needs audit_log"
    ),
    "audit_head_interval": number(
        1, 86_400, "Seconds between two signed heads of an audit log in which lines were written meanwhile"
    ),
    "audit_endpoint": text(
        r"(https?://[A-Za-z0-9_.:%\[\]-]+(/[!-~]*)?)?",
        "an http:// or https:// URL, or nothing",
        "OTLP/HTTP endpoint for the lines of the audit log, such as http://collector:4318; needs audit_log",
    ),
    "terminal_recordings": path(
        "Folder in which the output of terminals is recorded as asciicast files; by default none is recorded"
    ),
    # 64 KiB are some screens; 1 TiB is what a terminal shows at 12 MiB/s in a day, which is the longest deadline.
    "terminal_recording_size": whole_number(
        64 * KIB,
        1024 * 1024 * MIB,
        "Size in bytes at which a recording of a terminal is cut: a marker says so, and the terminal goes on",
    ),
    # A million links on one event loop is far beyond anything measured; the bound catches typing errors.
    "capacity": whole_number(1, 1_000_000, "Maximum number of links on this node, for each worker"),
    "accept_rate": number(0.1, 100_000, "Maximum number of new links per second"),
    "expected_accept_rate": number(
        0.1, 100_000, "New links per second that are expected of this node when pauses and moves of agents are planned"
    ),
    "unauthenticated_limit": whole_number(
        16,
        100_000,
        "Maximum number of connections without a valid token yet, on the link and API ports; half from one address",
    ),
    "trusted_proxies": _list(
        _is_network,
        "IP addresses and networks such as 10.0.0.0/8",
        "Proxies whose X-Forwarded-For or Forwarded header is trusted; those of other senders are ignored",
    ),
    "allowed_hosts": _list(
        lambda entry: re.fullmatch(_HOST_PATTERN, entry) is not None,
        "host names and addresses without port; *.example.com for all names below it",
        "Host names that the link and API ports accept; by default any",
    ),
    "allowed_origins": _list(
        lambda entry: re.fullmatch(_ORIGIN, entry) is not None,
        "origins as browsers send them, such as https://console.example.com",
        "Origins that are accepted; requests with any other Origin are refused",
    ),
    "heartbeat": number(1, 3600, "Seconds between an idle agent's heartbeats"),
    "hello_timeout": number(0.1, 300, "Seconds within which an agent must send its first message"),
    # In less than 128 KiB a chunk of 64 KiB in base64 would not fit; 1 MiB is the ceiling of protocol v1.
    "message_limit": whole_number(128 * KIB, MIB, "Maximum size of a message, in bytes"),
    "window": whole_number(128 * KIB, 64 * MIB, "Bytes of one stream that may be in flight, sent but not yet stored"),
    "queue_limit": whole_number(128 * KIB, 256 * MIB, "Maximum size of one agent's send queue, in bytes"),
    # An honest agent sends one heartbeat in `heartbeat` seconds. With a byte_rate below one chunk, no chunk would pass.
    "message_rate": number(
        10, 1_000_000, "Maximum number of unnumbered messages (heartbeats, credit) per second on one link"
    ),
    "event_rate": number(1, 1_000_000, "Maximum number of events per second on one link"),
    "byte_rate": number(128 * KIB, 1024 * MIB, "Maximum number of bytes per second read from one link"),
    "incomplete_limit": whole_number(
        2 * MIB, 65536 * MIB, "Maximum size of incomplete messages on all links of a node together, in bytes"
    ),
    "pending_limit": whole_number(
        MIB, 65536 * MIB, "Maximum number of bytes received on all links of a node and not stored yet"
    ),
    "link_transport": choice(
        ("epoll", "asyncio"),
        "What open links are kept on: bare sockets in an epoll of the node's own, which take a fifth of the memory and "
        "a third of the time of an accept, or transports of the event loop, which also serve where there is no epoll",
    ),
    "drain_rate": number(
        0.1,
        100_000,
        "Maximum number of agents per second that all draining nodes together send to other nodes, unless an operator "
        "sets the rate",
    ),
    "drain_timeout": number(0, 3600, "Maximum duration of a drain, in seconds"),
    # The name and the meaning are those of kube-apiserver.
    "shutdown_delay": number(
        0,
        3600,
        "Seconds for which all ports continue to serve after SIGTERM, even when the drain is shorter: as long as load "
        "balancers need to stop sending here",
    ),
    "forget_after": number(0, 10 * 366 * 86_400, "Seconds of absence after which an agent is forgotten, 0 for never"),
    "retention": number(1, 7 * 86_400, "Seconds for which results are kept after the end of a command"),
    "method_retention": text(
        r"([A-Za-z0-9][A-Za-z0-9._-]{0,63}=[1-9][0-9]{0,5}(,[A-Za-z0-9][A-Za-z0-9._-]{0,63}=[1-9][0-9]{0,5})*)?",
        "METHOD=SECONDS, separated by commas, such as exec=300,backup=86400",
        "Seconds for which results of these methods are kept, in place of retention; runs keep theirs for retention",
    ),
    "results_limit": whole_number(
        0,
        1024 * 1024 * MIB,
        "Bytes of results of ended commands that Redis keeps for the whole fleet: above it the oldest are dropped, and "
        "their readers told so with `results_dropped`; 0 for 40 % of what Redis may use",
    ),
    "method_results_limit": text(
        r"((\*|[A-Za-z0-9][A-Za-z0-9._-]{0,63})=[0-9]{1,12}(,(\*|[A-Za-z0-9][A-Za-z0-9._-]{0,63})=[0-9]{1,12})*)?",
        "METHOD=BYTES, separated by commas, such as exec=65536,*=1048576",
        "Bytes of results above which those of a command of this method are dropped a minute after its end; * is any "
        "other method",
    ),
    "output_limit": whole_number(
        64 * KIB, 1024 * MIB, "Maximum size of the results of one command, in bytes; the rest is discarded"
    ),
    "durability": choice(
        ("local", "fsync", "replicated"),
        "What Redis must have done before what it stored is told: executed it, written it to its disk, or passed it on "
        "to a replica",
    ),
    "redis_memory_limit": whole_number(
        0,
        1024 * 1024 * MIB,
        "Bytes that Redis may use: above 80 % commands with a large payload are refused with `store_full`, above 90 % "
        "all new ones; 0 for the maxmemory of the server",
    ),
    "bus_grace": number(0, 86_400, "Seconds for which links are kept open while Redis is unavailable"),
    "log_level": choice(("debug", "info", "warning", "error"), "Least severe level that is logged"),
    "log_format": choice(("text", "json"), "Format of the log: lines of text, or one JSON object on each line"),
    "trace_endpoint": text(
        r"(https?://[A-Za-z0-9_.:%\[\]-]+(/[!-~]*)?)?",
        "an http:// or https:// URL, or nothing",
        "OTLP/HTTP endpoint for spans, such as http://collector:4318; by default nothing is traced",
    ),
    "trace_ratio": number(0, 1, "Share of commands and links that are traced when their caller does not decide it"),
    "trace_slow": number(0, 86_400, "Seconds; a command that takes longer is always traced, as failed ones are"),
}
"""The fields of `Settings`, for each secret the file that may contain it, and the files of TLS with Redis."""
