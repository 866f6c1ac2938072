"""What a node needs for the attacks on trust: the files of its issuers, roles, tenants and audit key.

`run.py` calls them with the victim's folder before it starts the node, and passes the flags on.
"""

from __future__ import annotations

from pathlib import Path

from fairlead.signing.keys import generate

from support.free_ports import free_port
from support.gateway.roles import write_roles
from support.gateway.tenant_fleets import write_tenants
from support.oidc.agent_jwts import write_link_issuers

LINK_ISSUERS, AUDIT, AUDIT_KEY = "link-issuers.toml", "audit", "audit.pem"
PROXY = "127.0.0.99"
HEADER = "ssl-client-cert"
APPROVALS = """\
roles:
  work:
    - methods: [exec]
      verbs: [view, label, delete, input, results]
      agents: "*"
  security:
    - gateway: [approve, tokens]
bindings:
  - {tokens: [ci, other-ci], roles: [work]}
  - {tokens: [guard], roles: [security]}
  - {tokens: [both], roles: [work, security]}
approvals:
  - methods: [exec]
    agents: env=prod
    approvers: [security]
"""


def with_issuer(folder: Path) -> tuple[str, ...]:
    """An issuer whose JWTs open links. The attack starts it, because it rotates its keys and takes it away."""
    file = write_link_issuers(f"http://127.0.0.1:{free_port()}", folder / LINK_ISSUERS)
    return "--link-issuers", str(file)


def with_proxy(folder: Path) -> tuple[str, ...]:
    return "--link-client-cert-header", HEADER, "--trusted-proxies", f"{PROXY}/32"


def with_roles(folder: Path) -> tuple[str, ...]:
    write_roles(folder / "roles.yaml")
    return "--roles", str(folder / "roles.yaml"), "--terminal-recordings", str(folder / "terminals")


def with_approvals(folder: Path) -> tuple[str, ...]:
    write_roles(folder / "roles.yaml", APPROVALS)
    return "--roles", str(folder / "roles.yaml")


def with_tenants(folder: Path) -> tuple[str, ...]:
    """The agents of the tenants are scripted and send no heartbeats."""
    roles = str(write_tenants(folder / "roles.yaml"))
    return "--roles", roles, "--terminal-recordings", str(folder / "terminals"), "--heartbeat", "600"


def with_audit_log(folder: Path) -> tuple[str, ...]:
    (folder / AUDIT_KEY).write_bytes(generate().pem())
    (folder / AUDIT_KEY).chmod(0o600)
    key = str(folder / AUDIT_KEY)
    return "--audit-log", str(folder / AUDIT), "--audit-key", key, "--audit-head-interval", "1"
