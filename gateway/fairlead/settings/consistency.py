"""Finds settings that are each valid but contradict one another. `loading` calls it."""

from __future__ import annotations

from collections.abc import Iterator

from fairlead.configuration.loopback import is_loopback
from fairlead.settings.settings import DEVELOPMENT_AGENT_TOKEN, DEVELOPMENT_PLATFORM_TOKEN, Settings
from fairlead.settings.table import NODE_LIMIT


def contradictions(s: Settings) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield each contradiction as the names of the settings concerned and the error."""
    for host, address, token, is_development in (
        ("link_host", s.link_host, "agent_token", s.agent_token == DEVELOPMENT_AGENT_TOKEN),
        ("api_host", s.api_host, "platform_token", s.platform_token == DEVELOPMENT_PLATFORM_TOKEN),
    ):
        if is_development and not is_loopback(address):
            yield (
                (host, token),
                f"{host} {address} can be reached from other machines, but {token} is the development token, which "
                f"is public: set FAIRLEAD_{token.upper()}_FILE, or set {host} to 127.0.0.1",
            )
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
