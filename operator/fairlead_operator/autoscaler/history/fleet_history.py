"""What the autoscaler remembers of one fleet between two decisions. Pure.

`decide` takes a history and returns the next one in its Decision. The leader keeps it in Redis (see `document`), and a
new leader continues it. A leader that finds none removes no pod before it has watched the fleet for a whole window.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from fairlead_operator.autoscaler.history.comparison_history import ComparisonHistory
from fairlead_operator.autoscaler.history.link_history import REMEMBERED, LinkHistory, TimedMaxima, add_maximum
from fairlead_operator.autoscaler.history.rebalance_history import RebalanceHistory
from fairlead_operator.autoscaler.history.signal_history import SignalHistory
from fairlead_operator.autoscaler.history.start_history import StartHistory
from fairlead_operator.autoscaler.history.week_profile import WeekProfile
from fairlead_operator.autoscaler.history.zone_history import ZoneHistory
from fairlead_operator.autoscaler.observation import FleetObservation

STEP_SECONDS = 60.0
"""The window over which the size of the fleet limits a step up."""
GAP_MOST = REMEMBERED
"""Seconds without a leader after which it is unknown what happened meanwhile, so that earlier lost links no longer
count."""


@dataclass(frozen=True, slots=True)
class History:
    began: float | None = None
    """Time of the first observation."""
    links: LinkHistory = field(default_factory=LinkHistory)
    starts: StartHistory = field(default_factory=StartHistory)
    wanted: TimedMaxima = ()
    """The greatest wanted number of pods within the scale-down window."""
    sizes: tuple[tuple[float, int], ...] = ()
    """Time and size of the fleet at each decision of the last STEP_SECONDS."""
    removed_at: float | None = None
    """Time of the last decision to remove a pod."""
    short_of_pods: bool = False
    """Whether the last decision required twice the ready pods."""
    signals: SignalHistory = field(default_factory=SignalHistory)
    week: WeekProfile = field(default_factory=WeekProfile)
    compared: ComparisonHistory = field(default_factory=ComparisonHistory)
    rebalance: RebalanceHistory = field(default_factory=RebalanceHistory)
    zones: ZoneHistory = field(default_factory=ZoneHistory)

    def resume(self, gap: float, most: int) -> History:
        """The history for a new leader. For `gap` seconds nobody has observed the fleet, which can hold `most` links.
        After a long gap the fleet has to be watched anew, but measurements and the time of the last removal remain
        valid.
        """
        week = self.week.limited(most)
        if gap <= GAP_MOST:
            return replace(self, week=week, starts=self.starts.resume(keep_starting=True))
        return replace(
            self,
            week=week,
            began=None,
            links=LinkHistory(),
            starts=self.starts.resume(keep_starting=False),
            short_of_pods=False,
            rebalance=self.rebalance.resume(),
            zones=ZoneHistory(),
        )

    def observe(self, fleet: FleetObservation, now: float, *, week: bool = False) -> History:
        """The history after this observation. `week`: keep the profile of the week, which is forgotten otherwise."""
        run = self.rebalance.run
        links = self.links.observe(fleet, now, run.donors if run is not None else frozenset())
        profile = self.week if week else WeekProfile()
        return replace(
            self,
            began=now if self.began is None else self.began,
            links=links,
            week=profile if not week or fleet.at is None else profile.observe(links.live, fleet.at),
            starts=self.starts.observe(fleet, now),
            signals=self.signals.observe(fleet, now),
            zones=self.zones.observe(fleet, now),
        )

    def want(self, replicas: int, now: float, window: float) -> History:
        """The history after `replicas` were wanted; `window` is the scale-down window in seconds."""
        return replace(self, wanted=add_maximum(self.wanted, now, replicas, window))

    def decided(self, size: int, now: float, *, removal: bool, short_of_pods: bool) -> History:
        """The history after a decision for a fleet of `size` pods."""
        sizes = (*(one for one in self.sizes if now - one[0] < STEP_SECONDS), (now, size))
        removed_at = now if removal else self.removed_at
        return replace(self, sizes=sizes, removed_at=removed_at, short_of_pods=short_of_pods)
