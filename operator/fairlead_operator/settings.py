"""The configuration of the operator's process: FAIRLEAD_OPERATOR_… variables, all faults told at once.

Read once, by `main`; everything below receives values. The pod's own name and namespace come from the downward API,
and stand in for each other's absence on a developer's machine.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass

from fairlead.errors import ConfigError
from fairlead_operator.api.policy import Policies, read_policies

PREFIX = "FAIRLEAD_OPERATOR_"
KNOWN = {
    "NAMESPACES": "namespaces to look after, with commas between; the whole cluster when empty",
    "LEASE": "name of the Lease that decides which replica acts (default: fairlead-operator)",
    "HTTP": "host:port of /livez, /readyz and /metrics (default: 0.0.0.0:8080)",
    "POLICY": "what authors of LinkGateways may ask for, as JSON; the project's image alone when empty",
    "LOG_LEVEL": "debug, info, warning or error (default: info)",
    "LOG_FORMAT": "text or json (default: text)",
}
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class OperatorSettings:
    namespaces: tuple[str, ...]
    """None of them: the whole cluster."""
    lease: str
    namespace: str
    """Where the Lease stands."""
    identity: str
    host: str
    port: int
    log_level: str
    log_format: str
    policies: Policies


def load(env: Mapping[str, str]) -> OperatorSettings:
    """Raises ConfigError with every fault."""
    faults = [
        f"{key}: is not a setting; there are {', '.join(PREFIX + name for name in KNOWN)}"
        for key in sorted(env)
        if key.startswith(PREFIX) and key.removeprefix(PREFIX) not in KNOWN and not _is_service_link(key)
    ]

    def word(name: str, default: str) -> str:
        return env.get(PREFIX + name, "").strip() or default

    def one_of(name: str, *allowed: str) -> str:
        value = word(name, allowed[0])
        if value not in allowed:
            faults.append(f"{PREFIX}{name}: {value!r} is not one of {', '.join(allowed)}")
        return value

    namespaces = tuple(part.strip() for part in word("NAMESPACES", "").split(",") if part.strip())
    lease = word("LEASE", "fairlead-operator")
    faults += [
        f"{PREFIX}{name}: {value!r} is not a name: lower case letters, digits and dashes"
        for name, value in [("LEASE", lease), *(("NAMESPACES", one) for one in namespaces)]
        if not _NAME.fullmatch(value)
    ]
    host, _, port = word("HTTP", "0.0.0.0:8080").rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        faults.append(f"{PREFIX}HTTP: is not host:port")
        port = "0"
    policies = Policies()
    try:
        policies = read_policies(word("POLICY", "{}"))
    except ConfigError as e:
        faults.append(f"{PREFIX}POLICY: {e.message}")
    settings = OperatorSettings(
        namespaces=namespaces,
        lease=lease,
        namespace=env.get("POD_NAMESPACE", "") or (namespaces[0] if namespaces else "default"),
        # A restarted container is another holder: what its last life had under way is over.
        identity=f"{env.get('POD_NAME', '') or 'operator'}_{secrets.token_hex(4)}",
        host=host.strip("[]"),
        port=int(port),
        log_level=one_of("LOG_LEVEL", "info", "debug", "warning", "error"),
        log_format=one_of("LOG_FORMAT", "text", "json"),
        policies=policies,
    )
    if faults:
        raise ConfigError("the configuration is wrong:\n  - " + "\n  - ".join(faults), faults=tuple(faults))
    return settings


def _is_service_link(key: str) -> bool:
    """Kubernetes puts such into each pod beside a Service called fairlead-operator…"""
    return re.search(r"_(SERVICE_(HOST|PORT)(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_\w+)?)?)$", key) is not None
