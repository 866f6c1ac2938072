"""The zones in which a fleet has pods, and those that have failed. Pure; part of `fleet_history`.

The rule `zoneTolerance` asks it. While a zone is down, the room that was reserved for its failure is in use. Without
this memory the fleet would look like one with fewer zones, of which as many again may fail.
"""

from __future__ import annotations

from dataclasses import dataclass

from fairlead_operator.autoscaler.observation import FleetObservation

EXPECTED_BACK = 86_400.0
"""Seconds for which a zone that has failed is expected to return. New pods are placed there as soon as it does, but a
fleet that does not grow may create none before the next day."""


@dataclass(frozen=True, slots=True)
class ZoneHistory:
    present: tuple[str, ...] = ()
    """Zones that had pods at the last observation."""
    replicas: int = 0
    """The size of the fleet then."""
    failed: tuple[tuple[str, float], ...] = ()
    """Zones that have lost all their pods although the fleet was to have as many as before, and when."""

    def observe(self, fleet: FleetObservation, now: float) -> ZoneHistory:
        present = zones_of(fleet)
        if not present:
            return self  # it is unknown where the pods are
        gone = frozenset(self.present) - present if fleet.replicas >= self.replicas and not fleet.rollout else ()
        failed = dict(self.failed) | dict.fromkeys(gone, now)
        kept = sorted((zone, at) for zone, at in failed.items() if zone not in present and now - at < EXPECTED_BACK)
        return ZoneHistory(tuple(sorted(present)), fleet.replicas, tuple(kept))


def zones_of(fleet: FleetObservation) -> frozenset[str]:
    """The zones that have pods which stay, as far as they are known."""
    return frozenset(pod.zone for pod in fleet.pods if pod.zone and not pod.leaving)
