"""The base classes of scaling rules: a rule has a name, a purpose and a required number of pods. Signals other than
links have a base class of their own. Pure."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import ClassVar

from fairlead_operator.api.gateway_status import RuleStatus
from fairlead_operator.api.scaling_signals import ScalingSignals
from fairlead_operator.autoscaler.snapshot import Snapshot
from fairlead_operator.kube.workload_status import pod_count

MOST_PODS = 1_000_000
"""The most pods that a signal requires, whatever Prometheus answers: far above every `replicas.max`."""


class ScalingRule(ABC):
    """One reason to have pods. A rule keeps nothing between two decisions: what it needs is in the snapshot.

    A rule should never require fewer pods when there is more of what it counts, and it should count only what pods
    have reported: the decision removes no pod anyway while Redis cannot be read or pods are silent.
    """

    name: ClassVar[str]
    """The name in the status, in the metric `fairlead_operator_rule_replicas`, on the dashboard and in
    docs/operator.md."""
    purpose: ClassVar[str]
    """What pods are required for, in the words that follow "it takes 3 pods to". The reason in the status is made of
    it, and a cell of the table in docs/operator.md, so names of settings are in backticks."""

    @abstractmethod
    def required_pods(self, snapshot: Snapshot) -> int:
        """The number of pods that this rule requires; the decision takes the greatest of all rules."""

    def evaluate(self, snapshot: Snapshot) -> RuleStatus:
        pods = self.required_pods(snapshot)
        reason = f"it takes {pod_count(pods)} to {self.purpose.replace('`', '')}"
        return RuleStatus(name=self.name, replicas=pods, reason=reason)


class SignalRule(ScalingRule):
    """A rule that requires enough pods for a total of the fleet, of which each pod takes what the spec says. It
    requires none if the spec does not set the signal.
    """

    setting: ClassVar[str]
    """The field of `scaling.signals`."""

    @abstractmethod
    def total(self, snapshot: Snapshot) -> float:
        """The total over all pods, in the unit of the target."""

    @abstractmethod
    def target(self, signals: ScalingSignals) -> float | None:
        """What each pod takes; None if the spec does not say."""

    def required_pods(self, snapshot: Snapshot) -> int:
        target = self.target(snapshot.spec.scaling.signals)
        return 0 if target is None else math.ceil(min(self.total(snapshot) / target, MOST_PODS))

    def evaluate(self, snapshot: Snapshot) -> RuleStatus:
        target = self.target(snapshot.spec.scaling.signals)
        if target is None:
            return RuleStatus(name=self.name, replicas=0, reason=f"scaling.signals.{self.setting} is not set")
        status = super().evaluate(snapshot)
        reason = f"{status.reason} (the total is {self.total(snapshot):.3g}, and a pod takes {target:g})"
        return RuleStatus(name=self.name, replicas=status.replicas, reason=reason)
