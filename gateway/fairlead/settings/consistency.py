"""Finds settings that are each valid but contradict one another. `loading` calls it."""

from __future__ import annotations

from collections.abc import Iterator

from fairlead.configuration.loopback import is_loopback
from fairlead.settings.settings import DEVELOPMENT_PLATFORM_TOKEN, Settings
from fairlead.settings.table import NODE_LIMIT


def contradictions(s: Settings) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield each contradiction as the names of the settings concerned and the error."""
    for host, address, token, is_development in (
        ("link_host", s.link_host, "agent_token", s.agent_token_is_public),
        ("api_host", s.api_host, "platform_token", s.platform_token == DEVELOPMENT_PLATFORM_TOKEN),
    ):
        if is_development and not is_loopback(address):
            yield (
                (host, token),
                f"{host} {address} can be reached from other machines, but {token} is the development token, which "
                f"is public: set FAIRLEAD_{token.upper()}_FILE, or set {host} to 127.0.0.1",
            )
    yield from _shared_token_contradictions(s)
    if s.agent_token == s.platform_token:
        yield (
            ("agent_token", "platform_token"),
            "agent_token and platform_token are the same, so that any agent could use the platform API: expected two "
            "different tokens",
        )
    ports = [
        ("link", s.link_host, s.link_port),
        ("api", s.api_host, s.api_port),
        ("admin", s.admin_host, s.admin_port),
    ]
    for i, (one, host, port) in enumerate(ports):
        for other, *other_address in ports[i + 1 :]:
            if port and [host, port] == other_address:
                names = (f"{one}_host", f"{one}_port", f"{other}_host", f"{other}_port")
                yield names, f"{one}_port and {other}_port are both {port} on {host}: expected two different ports"
    yield from _audit_contradictions(s)
    yield from _redis_contradictions(s)
    yield from _tls_contradictions(s)
    longest = f"{s.node}-{s.workers - 1}"
    if s.workers > 1 and len(longest) > NODE_LIMIT:
        yield (
            ("node", "workers"),
            f"node {s.node} has {len(s.node)} characters, so that the last of {s.workers} workers would be called "
            f"{longest}: expected at most {NODE_LIMIT} characters (choose a shorter name)",
        )
    if s.queue_limit < s.message_limit:
        yield (
            ("queue_limit", "message_limit"),
            f"queue_limit {s.queue_limit} is less than message_limit {s.message_limit}, so that the largest messages "
            "could never be queued: expected at least message_limit (raise the first or lower the second)",
        )


def _shared_token_contradictions(s: Settings) -> Iterator[tuple[tuple[str, ...], str]]:
    shared = s.admits_shared_token and not s.agent_token_is_public  # of the public one more is told
    if shared and not s.insecure_shared_token and not is_loopback(s.link_host):
        yield (
            ("link_host", "require_identity", "insecure_shared_token", "agent_token", "link_tls_client_ca"),
            f"link_host {s.link_host} can be reached from other machines, and one token for all agents opens links "
            "there, so whoever has it can be any agent: enrol the agents and set require_identity (docs/security.md), "
            "or set insecure_shared_token for a trial",
        )
    if s.require_identity and not s.identifies_agents:
        yield (
            ("require_identity", "issuer_key", "link_tls_client_ca"),
            "require_identity is set without issuer_key, so that no agent could open a link: expected the file of the "
            "key that signs their credentials, link_tls_client_ca or link_issuers (set one of them, or "
            "remove require_identity)",
        )
    if s.insecure_shared_token and s.require_identity:
        yield (
            ("require_identity", "insecure_shared_token"),
            "require_identity and insecure_shared_token are both set, but the first refuses the shared token: expected "
            "one of them (remove the other)",
        )


def _audit_contradictions(s: Settings) -> Iterator[tuple[tuple[str, ...], str]]:
    for name, value in (("audit_key", s.audit_key), ("audit_endpoint", s.audit_endpoint)):
        if value and s.audit_log is None:
            yield (
                (name, "audit_log"),
                f"{name} is set, but no audit log is written: expected its folder (set audit_log, or remove {name})",
            )


def _tls_contradictions(s: Settings) -> Iterator[tuple[tuple[str, ...], str]]:
    for port in ("link", "api"):
        certificate, key = f"{port}_tls_cert", f"{port}_tls_key"
        if (getattr(s, certificate) is None) != (getattr(s, key) is None):
            given, missing = (certificate, key) if getattr(s, key) is None else (key, certificate)
            yield (certificate, key), f"{given} is set without {missing}: TLS needs both (set the other one too)"
    if s.tls_ticket_keys is not None and s.link_tls_cert is None and s.api_tls_cert is None:
        yield (
            ("tls_ticket_keys", "link_tls_cert", "api_tls_cert"),
            "tls_ticket_keys is set, but no port speaks TLS: expected a certificate (set link_tls_cert and "
            "link_tls_key, or remove it)",
        )
    if s.link_tls_client_ca is not None and s.link_tls_cert is None:
        yield (
            ("link_tls_client_ca", "link_tls_cert"),
            "link_tls_client_ca is set, but the link port does not speak TLS: expected a certificate (set "
            "link_tls_cert and link_tls_key, or remove it)",
        )
    if s.link_tls_client_crl is not None and s.link_tls_client_ca is None:
        yield (
            ("link_tls_client_crl", "link_tls_client_ca"),
            "link_tls_client_crl is set without link_tls_client_ca, so that no client certificate is asked for: "
            "expected both (set link_tls_client_ca, or remove it)",
        )
    if s.link_client_cert_header and not s.trusted_proxies:
        yield (
            ("link_client_cert_header", "trusted_proxies"),
            "link_client_cert_header is set without trusted_proxies, so that the header would be refused from "
            "everybody: expected the addresses of the proxies that verify client certificates (set trusted_proxies, or "
            "remove it)",
        )


def _redis_contradictions(s: Settings) -> Iterator[tuple[tuple[str, ...], str]]:
    if s.durability == "replicated" and s.redis == "embedded":
        yield (
            ("durability", "redis"),
            "durability is replicated, but the embedded Valkey has no replica: expected local or fsync, or a Redis "
            "with replicas in redis",
        )
