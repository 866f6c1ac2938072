"""The scaling rules. Each requires a number of pods, and the fleet gets the greatest of these numbers. Pure.

A new rule is a file beside these and an entry in RULES. The status, the metric `fairlead_operator_rule_replicas`, the
dashboard and the table in docs/operator.md follow from the list; CONTRIBUTING.md has the recipe.
"""

from fairlead_operator.autoscaler.rules.cpu import CpuRule
from fairlead_operator.autoscaler.rules.failure_tolerance import FailureToleranceRule
from fairlead_operator.autoscaler.rules.loop_lag import LoopLagRule
from fairlead_operator.autoscaler.rules.memory import MemoryRule
from fairlead_operator.autoscaler.rules.open_commands import CommandsInFlightRule
from fairlead_operator.autoscaler.rules.prometheus import PrometheusRule
from fairlead_operator.autoscaler.rules.reconnect import ReconnectRule
from fairlead_operator.autoscaler.rules.scaling_rule import ScalingRule
from fairlead_operator.autoscaler.rules.utilisation import UtilisationRule
from fairlead_operator.autoscaler.rules.week_profile import WeekProfileRule
from fairlead_operator.autoscaler.rules.zone_tolerance import ZoneToleranceRule

RULES: tuple[ScalingRule, ...] = (
    UtilisationRule(),
    FailureToleranceRule(),
    ZoneToleranceRule(),
    ReconnectRule(),
    WeekProfileRule(),
    CommandsInFlightRule(),
    CpuRule(),
    MemoryRule(),
    LoopLagRule(),
    PrometheusRule(),
)
"""All rules. If several require the same number, the first one wins."""
