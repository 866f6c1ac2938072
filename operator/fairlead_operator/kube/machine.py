"""A machine of the cluster, on which pods run. Kubernetes calls it a Node; here a node is a gateway process. Pure.

`inputs.machines` reads them, and the observation of a fleet says for each pod where it runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from fairlead_operator.kube.objects import Object

ZONE_LABEL = "topology.kubernetes.io/zone"
"""Label of a machine. Kubernetes 1.35 copies it to the pods that it schedules there (KEP-4742)."""
REMOVAL_TAINTS = ("ToBeDeletedByClusterAutoscaler", "karpenter.sh/disrupted")
"""The taints that the Cluster Autoscaler and Karpenter put on a machine that they are about to empty and remove."""


@dataclass(frozen=True, slots=True)
class Machine:
    """Where a pod runs, as far as it is known."""

    name: str = ""
    """"" while the pod is not scheduled."""
    zone: str = ""
    """"" when it is not known, or the machine has none."""
    closed: str = ""
    """Why no pod should stay on it, such as "cordoned"; "" for no reason."""


UNKNOWN = Machine()


def read_machine(node: Object) -> Machine:
    """`node` is an object of the kind Node."""
    meta = node["metadata"]
    return Machine(meta["name"], str((meta.get("labels") or {}).get(ZONE_LABEL, "")), _why_closed(node))


def missing_machine(name: str) -> Machine:
    """A machine whose Node no longer exists, so that its pods are about to be deleted."""
    return Machine(name, closed="gone")


def machine_of(pod: Object, known: Mapping[str, Machine]) -> Machine:
    """Where `pod` runs. `known` are machines by name; what is not known of one is ""."""
    name = str((pod.get("spec") or {}).get("nodeName") or "")
    machine = known.get(name, Machine(name))
    zone = (pod["metadata"].get("labels") or {}).get(ZONE_LABEL)
    return replace(machine, zone=str(zone)) if zone and not machine.zone else machine


def _why_closed(node: Object) -> str:
    spec, status = node.get("spec") or {}, node.get("status") or {}
    if any(taint.get("key") in REMOVAL_TAINTS for taint in spec.get("taints") or []):
        return "about to be removed"
    if spec.get("unschedulable"):
        return "cordoned"
    ready = [one["status"] for one in status.get("conditions") or [] if one["type"] == "Ready"]
    return "" if "True" in ready or not ready else "not ready"
