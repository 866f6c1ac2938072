"""The settings of one gateway process as values: made by `loading`, received by the rooms that use them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from fairlead.settings.table import KIB, MIB

DEVELOPMENT_AGENT_TOKEN = "development-agent-token"
DEVELOPMENT_PLATFORM_TOKEN = "development-platform-token"


@dataclass(frozen=True, slots=True)
class Settings:
    """Checked values, made by `load`. `table` says what each means and which values it takes."""

    node: str
    pod_uid: str = ""
    revision: str = ""
    workers: int = 1
    link_host: str = "127.0.0.1"
    link_port: int = 8080
    api_host: str = "127.0.0.1"
    api_port: int = 8081
    link_tls_cert: Path | None = None
    link_tls_key: Path | None = None
    link_tls_client_ca: Path | None = None
    link_tls_client_auth: str = "required"
    link_tls_client_crl: Path | None = None
    link_tls_client_id: str = "cn"
    link_client_cert_header: str = ""
    link_issuers: Path | None = None
    api_tls_cert: Path | None = None
    api_tls_key: Path | None = None
    tls_ticket_keys: Path | None = None
    admin_host: str = "127.0.0.1"
    admin_port: int = 8082
    redis: str = field(default="embedded", repr=False)  # its URL may hold a password
    data: Path = Path(".fairlead")
    agent_token: str = field(default=DEVELOPMENT_AGENT_TOKEN, repr=False)
    platform_token: str = field(default=DEVELOPMENT_PLATFORM_TOKEN, repr=False)
    roles: Path | None = None
    issuers: Path | None = None
    issuer_key: Path | None = None
    audience: str = "fairlead"
    credential_lifetime: float = 3600.0
    clone_policy: str = "tell"
    require_identity: bool = False
    insecure_shared_token: bool = False
    event_sinks: Path | None = None
    audit_log: Path | None = None
    audit_fsync: str = "everysec"  # as Redis does it by default
    audit_size: int = 16 * MIB  # half a second to look through at the start
    audit_key: Path | None = None
    audit_head_interval: float = 60.0  # how much of the log may be replaced without a trace
    audit_endpoint: str = ""
    terminal_recordings: Path | None = None
    terminal_recording_size: int = 1024 * MIB  # what nobody reads; a program that prints without end has it in minutes
    capacity: int = 18_000  # leaves room below the usual 20,000 open files of a container
    accept_rate: float = 10_000.0  # more than one core takes: what a node can welcome is its limit
    expected_accept_rate: float = 2_000.0  # each link costs a node some 350 µs, so this is most of one core
    unauthenticated_limit: int = 1000  # a storm of 10,000 agents needs some 400 at a round trip of 0.1 s
    trusted_proxies: str = ""
    allowed_hosts: str = ""
    allowed_origins: str = ""
    heartbeat: float = 25.0  # below 30 s, the shortest idle timeout of the usual load balancers
    hello_timeout: float = 10.0
    message_limit: int = MIB
    window: int = 256 * KIB
    queue_limit: int = MIB
    message_rate: float = 500.0
    event_rate: float = 100.0
    byte_rate: float = 32.0 * MIB
    incomplete_limit: int = 32 * MIB  # with pending_limit a sixth of the memory that the chart gives a pod
    pending_limit: int = 128 * MIB
    link_transport: str = "epoll"  # asyncio where the system has no epoll
    drain_rate: float = 200.0
    drain_timeout: float = 60.0
    shutdown_delay: float = 0.0
    retention: float = 3600.0
    method_retention: str = ""
    results_limit: int = 0
    method_results_limit: str = ""
    forget_after: float = 30 * 86_400.0
    output_limit: int = 16 * MIB
    durability: str = "local"
    redis_memory_limit: int = 0
    bus_grace: float = 120.0
    log_level: str = "info"
    log_format: str = "text"
    trace_endpoint: str = ""
    trace_ratio: float = 0.01
    trace_slow: float = 5.0

    @property
    def agent_token_is_public(self) -> bool:
        """Whether anybody may open a link, because everyone knows the development token."""
        return self.agent_token == DEVELOPMENT_AGENT_TOKEN and self.admits_shared_token

    @property
    def admits_shared_token(self) -> bool:
        """Whether the shared token of agents opens a link by itself."""
        certified = self.link_tls_client_ca is not None and self.link_tls_client_auth == "required"
        return not self.require_identity and not certified

    @property
    def identifies_agents(self) -> bool:
        """Whether agents can prove who they are."""
        return bool(self.issuer_key or self.link_tls_client_ca or self.link_client_cert_header or self.link_issuers)

    @property
    def planned_accept_rate(self) -> float:
        """New links per second that this node may be planned with: what is expected of it, but no more than it
        accepts."""
        return min(self.accept_rate, self.expected_accept_rate)


def split_list(value: str) -> list[str]:
    """The entries of a setting that is a list."""
    return value.split(",") if value else []
