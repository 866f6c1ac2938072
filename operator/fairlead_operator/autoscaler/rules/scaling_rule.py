"""What a scaling rule is: a name, what pods are required for, and how many are required. Pure."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from fairlead_operator.api.gateway_status import RuleStatus
from fairlead_operator.autoscaler.snapshot import Snapshot
from fairlead_operator.kube.workload_status import pod_count


class ScalingRule(ABC):
    """One reason to have pods. A rule keeps nothing between two decisions: what it needs is in the snapshot.

    A rule should never require fewer pods when there is more of what it counts, and it should count only what pods
    have reported: the decision removes no pod anyway while Redis cannot be read or pods are silent.
    """

    name: ClassVar[str]
    """In the status, in the metric `fairlead_operator_rule_replicas`, on the dashboard and in docs/operator.md."""
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
