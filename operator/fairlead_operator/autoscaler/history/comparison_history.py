"""What other autoscalers would remember of a fleet, for the comparison in the mode DryRun. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from fairlead_operator.autoscaler.history.link_history import TimedMaxima


@dataclass(frozen=True, slots=True)
class HpaHistory:
    """Of a HorizontalPodAutoscaler; times are those of the decisions."""

    recommended: TimedMaxima = ()
    """The greatest recommendations of its stabilization window."""
    sizes: tuple[tuple[float, int], ...] = ()
    """Time and size of the fleet within the period of its limit upwards."""


@dataclass(frozen=True, slots=True)
class ComparisonHistory:
    hpa: HpaHistory = field(default_factory=HpaHistory)
    keda: HpaHistory = field(default_factory=HpaHistory)
    """KEDA creates an HPA of its own."""
