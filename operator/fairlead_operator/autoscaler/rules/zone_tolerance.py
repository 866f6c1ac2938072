"""The rule `zoneTolerance`: the links still fit when as many zones fail as the spec says. Pure."""

from __future__ import annotations

import math

from fairlead_operator.api.gateway_status import RuleStatus
from fairlead_operator.autoscaler.history.zone_history import zones_of
from fairlead_operator.autoscaler.rules.failure_tolerance import FILL_AFTER_FAILURE
from fairlead_operator.autoscaler.rules.scaling_rule import ScalingRule
from fairlead_operator.autoscaler.snapshot import Snapshot


class ZoneToleranceRule(ScalingRule):
    """It assumes that pods are spread evenly over the zones that have any. Adding pods until the fullest zone is small
    enough would never end while the scheduler places them in that zone."""

    name = "zoneTolerance"
    purpose = (
        "hold the links at 95 % of the capacity while `scaling.zoneTolerance` of the zones have failed, over which the "
        "pods are spread evenly"
    )

    def required_pods(self, snapshot: Snapshot) -> int:
        zones, failures = len(zones_of(snapshot.fleet)), _failures(snapshot)
        if snapshot.spec.scaling.zone_tolerance == 0 or zones <= failures:
            return 0
        needed = math.ceil(snapshot.inputs.links / (FILL_AFTER_FAILURE * snapshot.inputs.capacity))
        return spread_pods(needed, zones, failures)

    def evaluate(self, snapshot: Snapshot) -> RuleStatus:
        zones, tolerance, failures = zones_of(snapshot.fleet), snapshot.spec.scaling.zone_tolerance, _failures(snapshot)
        if tolerance == 0:
            return RuleStatus(name=self.name, replicas=0, reason="scaling.zoneTolerance is 0")
        if len(zones) <= failures:
            known = f"only in the zones {', '.join(sorted(zones))}" if zones else "in no zone that is known"
            reason = f"the pods are {known}, so no number of them survives the failure of {tolerance}"
            return RuleStatus(name=self.name, replicas=0, reason=reason)
        status = super().evaluate(snapshot)
        failed = [zone for zone, _ in snapshot.history.zones.failed]
        if not failed:
            return status
        reason = f"{status.reason}; failed already: {', '.join(failed)}"
        return RuleStatus(name=self.name, replicas=status.replicas, reason=reason)


def spread_pods(needed: int, zones: int, failures: int) -> int:
    """The least number of pods, spread evenly over `zones`, of which `needed` are left when the fullest `failures` of
    the zones are gone: 6 when 3 are needed, with 2 zones and 1 failure."""
    rounds, rest = divmod(needed, zones - failures)
    return rounds * zones + (failures + rest if rest else 0)


def _failures(snapshot: Snapshot) -> int:
    """Zones that may still fail: the room for those that have failed is in use."""
    return max(0, snapshot.spec.scaling.zone_tolerance - len(snapshot.history.zones.failed))
