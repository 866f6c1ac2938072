"""What a scaling rule is: a name, the number of pods that it requires, and the reason in words. Pure."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from fairlead_operator.api.gateway_status import RuleStatus
from fairlead_operator.autoscaler.snapshot import Snapshot


class ScalingRule(ABC):
    """One reason to have pods. A rule keeps nothing between two decisions: what it needs is in the snapshot.

    A rule should never require fewer pods when there is more of what it counts, and it should count only what pods
    have reported: the decision removes no pod anyway while Redis cannot be read or pods are silent.
    """

    name: ClassVar[str]
    """In the status, in the metric `fairlead_operator_rule_replicas`, on the dashboard and in docs/operator.md."""
    description: ClassVar[str]
    """What it requires enough pods to do, as Markdown: a cell of the table in docs/operator.md."""

    @abstractmethod
    def required_pods(self, snapshot: Snapshot) -> int:
        """The number of pods that this rule requires; the decision takes the greatest of all rules."""

    @abstractmethod
    def reason(self, pods: int) -> str:
        """Why, when this rule wins: a clause that begins with `pods`."""

    def evaluate(self, snapshot: Snapshot) -> RuleStatus:
        pods = self.required_pods(snapshot)
        return RuleStatus(name=self.name, replicas=pods, reason=self.reason(pods))
