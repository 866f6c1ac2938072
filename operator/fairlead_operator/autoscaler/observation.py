"""One observation of a fleet: its Deployment, its pods, and what each pod's node last reported of itself. Pure.

The reconciler calls `observe_fleet` in every pass with what the API server and Redis returned. The rules, the history
and the operations all read the observation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from fairlead.fleet.node_table import NodeRow
from fairlead.fleet.reports.traffic import Traffic
from fairlead_operator.api.link_operation import RESTART_ANNOTATION
from fairlead_operator.kube.machine import UNKNOWN, Machine, machine_of
from fairlead_operator.kube.objects import Object
from fairlead_operator.kube.workload_status import (
    FirstSeen,
    crash_of,
    has_ended,
    is_ready,
    is_terminating,
    replicas,
    revision_of,
)

FRESH = 15.0
"""The maximum age of a report in seconds, and the time that a ready pod has for its first one: three heartbeats of a
node."""
COMMAND_COST = 50
"""The cost of a running command for the removal of its pod, in idle links."""


@dataclass(frozen=True, slots=True)
class NodeMetrics:
    """The rows of a fleet's nodes, and Redis TIME in milliseconds when they were read."""

    rows: Mapping[str, NodeRow]
    now: int


@dataclass(frozen=True, slots=True)
class QueriedValue:
    """The answer of Prometheus; None if the query failed."""

    value: float | None


@dataclass(frozen=True, slots=True)
class PodObservation:
    """A pod in the cluster, with what its node last reported; a pod without a report has an infinite `age`."""

    name: str
    uid: str = ""
    ready: bool = True
    """Whether it can serve: Kubernetes says that it is ready, or it is unready only because its node leaves new links
    to others."""
    ready_for: float = 3600.0
    """Seconds since it was first seen ready."""
    leaving: bool = False
    """Whether it is terminating."""
    age: float = math.inf
    """Seconds since its node's last report, by the clock of Redis."""
    links: int = 0
    capacity: int = 0
    commands: int = 0
    """Commands that run on its links."""
    refused: int = 0
    """Links that it has refused since its node started."""
    cpu: float = 0.0
    """Share of the time for which its event loop was busy, from 0 to 1."""
    memory: float = 0.0
    """Share of its memory limit that it uses, from 0 to 1; 0 without a limit."""
    lag_ms: float = 0.0
    """The lag of its event loop, in ms."""
    left: int = 0
    """Links whose agents have left on purpose since its node started."""
    moved: int = 0
    """Links that a rebalance has made it move since its node started."""
    spare_accept_rate: float = 0.0
    """Links per second that it can accept besides its present work, as its node measured."""
    excluded_by: str = ""
    """Why its node leaves new links to others; "" if it takes them. The pod's readiness in Kubernetes may lag
    behind."""
    restarted_by: str = ""
    """The uid of the Restart, a LinkOperation, that created it."""
    revision: str = ""
    """The revision of the Deployment's template that it was created from."""
    traffic: Traffic | None = None
    """What it has served since its node started; None if it does not report that."""
    crash: str = ""
    """How its container last ended, if it was restarted since the pod was created."""
    machine: Machine = UNKNOWN
    """Where it runs."""

    def with_report(self, row: NodeRow, now: int) -> PodObservation:
        """This pod with what its node wrote; `now` is Redis TIME in milliseconds."""
        return replace(
            self,
            age=max(0, now - row.at) / 1000,
            links=row.links,
            capacity=row.capacity,
            commands=row.in_flight,
            refused=row.refused,
            cpu=row.cpu,
            memory=row.memory,
            lag_ms=row.lag_ms,
            left=row.left,
            moved=row.moved,
            spare_accept_rate=row.spare_accept_rate,
            excluded_by=row.excluded_by,
            traffic=row.traffic,
        )

    @property
    def zone(self) -> str:
        """The zone of its machine, "" when it is not known."""
        return self.machine.zone

    @property
    def fresh(self) -> bool:
        return self.age <= FRESH

    @property
    def stale(self) -> bool:
        """Whether it has been ready for long enough to have reported, but has not."""
        return not self.fresh and self.ready and self.ready_for > FRESH

    @property
    def takes_links(self) -> bool:
        """Whether load balancers may send new links to it."""
        return self.ready and not self.leaving and not self.excluded_by

    @property
    def removal_cost(self) -> int:
        """The cost of its removal, in idle links."""
        return self.links + COMMAND_COST * self.commands


@dataclass(frozen=True, slots=True)
class FleetObservation:
    """A fleet at one moment."""

    replicas: int
    """Pods that the Deployment asks for."""
    pods: tuple[PodObservation, ...]
    readable: bool = True
    """Whether Redis returned the nodes' rows."""
    rollout: bool = False
    """Whether pods of two templates exist."""
    operation: str = ""
    """Name of the LinkOperation that is running, or ""."""
    revision: str = ""
    """The revision of the Deployment's template, which a rollout brings; "" while it is not known."""
    at: float | None = None
    """Unix time in seconds, by the clock of Redis; None if that could not be read."""
    queried: QueriedValue | None = None
    """The value of `scaling.signals.prometheus`; None when the spec asks for none."""
    rebalance_operation: str = ""
    """The uid of the running LinkOperation if it is a Rebalance, or ""."""
    canary: bool = False
    """Whether the pods of `revision` are a canary, and the others stay."""

    @property
    def fresh_pods(self) -> list[PodObservation]:
        return [pod for pod in self.pods if pod.fresh]


def observe_fleet(
    deployment: Object,
    pods: Sequence[Object],
    nodes: NodeMetrics | None,
    ready: FirstSeen,
    now: float,
    revision: str = "",
    machines: Mapping[str, Machine] | None = None,
    excluded: Mapping[str, str] | None = None,
) -> FleetObservation:
    """`nodes` is None if Redis could not be read; `excluded` then says which pods leave new links to others, and why.
    The caller keeps `ready` between calls. `revision` is that of the Deployment's template, and `machines` are those
    that could be read, by name.
    """
    observed = [_observe_pod(pod, nodes, machines or {}, excluded or {}) for pod in pods if not has_ended(pod)]
    ready_for = ready.seconds([pod.uid for pod in observed if pod.ready], now)
    return FleetObservation(
        replicas=replicas(deployment),
        pods=tuple(
            replace(pod, ready_for=ready_for.get(pod.uid, 0.0)) for pod in sorted(observed, key=lambda pod: pod.name)
        ),
        readable=nodes is not None,
        at=None if nodes is None else nodes.now / 1000,
        revision=revision,
    )


def _observe_pod(
    pod: Object, nodes: NodeMetrics | None, machines: Mapping[str, Machine], excluded: Mapping[str, str]
) -> PodObservation:
    meta = pod["metadata"]
    one = PodObservation(
        name=meta["name"],
        uid=meta["uid"],
        ready=is_ready(pod),
        leaving=is_terminating(pod),
        restarted_by=restart_of(pod),
        revision=revision_of(pod),
        crash=crash_of(pod),
        machine=machine_of(pod, machines),
    )
    if nodes is None:
        reason = excluded.get(one.name, "")
        return replace(one, ready=one.ready or reason != "", excluded_by=reason)
    if (row := nodes.rows.get(one.name)) is None:
        return one
    one = one.with_report(row, nodes.now)
    # A node that cannot serve does not report that it is excluded, and one that has died reports nothing.
    return replace(one, ready=one.ready or (one.fresh and one.excluded_by != ""))


def restart_of(templated: Object) -> str:
    """The uid of the last Restart from which a pod or a pod template results; "" if there is none."""
    return str(((templated.get("metadata") or {}).get("annotations") or {}).get(RESTART_ANNOTATION, ""))
