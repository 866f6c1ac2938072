"""The configuration of the operator's process: FAIRLEAD_OPERATOR_… variables, with all faults reported at once.

`main` reads it once, and everything else receives values. The pod's name and namespace come from the downward API;
without them, as on a developer's machine, defaults are used.
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
    "NAMESPACES": "namespaces to manage, separated by commas (default: the whole cluster)",
    "LEASE": "name of the Lease of the leader election (default: fairlead-operator)",
    "HTTP": "host:port of /livez, /readyz and /metrics (default: 0.0.0.0:8080)",
    "POLICY": "what authors of LinkGateways may ask for, as JSON (default: only the project's image)",
    "LOG_LEVEL": "debug, info, warning or error (default: info)",
    "LOG_FORMAT": "text or json (default: text)",
}
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class OperatorSettings:
    namespaces: tuple[str, ...]
    """Empty for the whole cluster."""
    lease: str
    namespace: str
    """The namespace of the Lease."""
    identity: str
    host: str
    port: int
    log_level: str
    log_format: str
    policies: Policies


def load(env: Mapping[str, str]) -> OperatorSettings:
    """Reads the environment; raises ConfigError with all faults."""
    faults = [
        f"{key} is not a setting: expected one of {', '.join(PREFIX + name for name in KNOWN)}"
        for key in sorted(env)
        if key.startswith(PREFIX) and key.removeprefix(PREFIX) not in KNOWN and not _is_service_link(key)
    ]

    def word(name: str, default: str) -> str:
        return env.get(PREFIX + name, "").strip() or default

    def one_of(name: str, *allowed: str) -> str:
        value = word(name, allowed[0])
        if value not in allowed:
            faults.append(f"invalid {PREFIX}{name} {value!r}: expected one of {', '.join(allowed)}")
        return value

    namespaces = tuple(part.strip() for part in word("NAMESPACES", "").split(",") if part.strip())
    lease = word("LEASE", "fairlead-operator")
    faults += [
        f"invalid {PREFIX}{name} {value!r}: expected lower case letters, digits and dashes"
        for name, value in [("LEASE", lease), *(("NAMESPACES", one) for one in namespaces)]
        if not _NAME.fullmatch(value)
    ]
    address = word("HTTP", "0.0.0.0:8080")
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        faults.append(f"invalid {PREFIX}HTTP {address!r}: expected host:port, such as 0.0.0.0:8080")
        port = "0"
    policies = Policies()
    try:
        policies = read_policies(word("POLICY", "{}"))
    except ConfigError as e:
        faults.append(f"invalid {PREFIX}POLICY: {e.message}")
    settings = OperatorSettings(
        namespaces=namespaces,
        lease=lease,
        namespace=env.get("POD_NAMESPACE", "") or (namespaces[0] if namespaces else "default"),
        # A restarted container is a different holder, because whatever it did before has ended.
        identity=f"{env.get('POD_NAME', '') or 'operator'}_{secrets.token_hex(4)}",
        host=host.strip("[]"),
        port=int(port),
        log_level=one_of("LOG_LEVEL", "info", "debug", "warning", "error"),
        log_format=one_of("LOG_FORMAT", "text", "json"),
        policies=policies,
    )
    if faults:
        raise ConfigError("invalid configuration:\n  - " + "\n  - ".join(faults), faults=tuple(faults))
    return settings


def _is_service_link(key: str) -> bool:
    """Whether Kubernetes has set the variable for a Service whose name begins with fairlead-operator."""
    return re.search(r"_(SERVICE_(HOST|PORT)(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_\w+)?)?)$", key) is not None
