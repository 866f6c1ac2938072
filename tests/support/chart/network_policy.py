"""Who may connect to whom under a set of NetworkPolicies, after their API's reference (networking.k8s.io/v1).

Used by test_network.py, because the cluster of `make cluster` enforces none. It says what the objects mean, not what a
network plugin does with them. Pure: pods and policies in, yes or no out. What it does not know is refused with a
NotImplementedError instead of being read as something else.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

NAMESPACE_NAME = "kubernetes.io/metadata.name"
"""The label that the API server puts on every namespace."""

Policy = Mapping[str, Any]


@dataclass(frozen=True)
class Pod:
    """`ports`: what its containers call theirs. `address` matters to peers that are blocks of addresses."""

    namespace: str
    labels: Mapping[str, str]
    ports: Mapping[str, int] = field(default_factory=dict)
    address: str = "10.0.0.1"

    @property
    def of_namespace(self) -> dict[str, str]:
        return {NAMESPACE_NAME: self.namespace}


def connects(source: Pod, target: Pod, port: int, policies: Sequence[Policy], protocol: str = "TCP") -> bool:
    """Whether both sides allow it: what leaves the source and what enters the target. Answers are never in question."""
    out = _allows("Egress", source, target, target, port, protocol, policies)
    return out and _allows("Ingress", target, source, target, port, protocol, policies)


def _allows(
    direction: str, isolated: Pod, other: Pod, target: Pod, port: int, protocol: str, policies: Sequence[Policy]
) -> bool:
    """A pod that no policy of this direction selects is open; else one rule of one policy must let it pass."""
    selecting = [
        policy
        for policy in policies
        if policy["metadata"]["namespace"] == isolated.namespace
        and direction in _types(policy["spec"])
        and selects(policy["spec"].get("podSelector", {}), isolated.labels)
    ]
    rules = [rule for policy in selecting for rule in policy["spec"].get(direction.lower()) or ()]
    side = "from" if direction == "Ingress" else "to"
    return not selecting or any(
        _has_port(rule.get("ports"), target, port, protocol) and _has_peer(rule.get(side), isolated.namespace, other)
        for rule in rules
    )


def _types(spec: Policy) -> Sequence[str]:
    """Without policyTypes: Ingress always, Egress when there are rules of it."""
    types: Sequence[str] = spec.get("policyTypes") or ["Ingress", *(["Egress"] if spec.get("egress") else [])]
    return types


def _has_port(ports: Sequence[Policy] | None, target: Pod, port: int, protocol: str) -> bool:
    """No list, or an empty one, is every port."""
    for one in ports or ():
        if one.get("protocol", "TCP") != protocol:
            continue
        first = one.get("port")
        if isinstance(first, str):
            first = target.ports.get(first)
            if first is None:
                continue
        if first is None or first <= port <= one.get("endPort", first):
            return True
    return not ports


def _has_peer(peers: Sequence[Policy] | None, namespace: str, other: Pod) -> bool:
    """No list, or an empty one, is everybody; a selector of pods alone means those of the policy's own namespace."""
    for peer in peers or ():
        if unknown := peer.keys() - {"podSelector", "namespaceSelector", "ipBlock"}:
            raise NotImplementedError(f"a peer with {sorted(unknown)}")
        if block := peer.get("ipBlock"):
            address = ipaddress.ip_address(other.address)
            if address in ipaddress.ip_network(block["cidr"]) and not any(
                address in ipaddress.ip_network(one) for one in block.get("except", ())
            ):
                return True
            continue
        if "namespaceSelector" in peer:
            there = selects(peer["namespaceSelector"], other.of_namespace)
        else:
            there = other.namespace == namespace
        if there and selects(peer.get("podSelector", {}), other.labels):
            return True
    return not peers


def selects(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """A label selector; an empty one selects all."""
    if unknown := selector.keys() - {"matchLabels", "matchExpressions"}:
        raise NotImplementedError(f"a selector with {sorted(unknown)}")
    return selector.get("matchLabels", {}).items() <= labels.items() and all(
        _expressed(one, labels) for one in selector.get("matchExpressions", ())
    )


def _expressed(one: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    value = labels.get(one["key"])
    match one["operator"]:
        case "In":
            return value in one["values"]
        case "NotIn":
            return value not in one["values"]
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
    raise NotImplementedError(f"the operator {one['operator']}")
