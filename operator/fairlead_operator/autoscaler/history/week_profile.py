"""The links of a fleet by the time of the week, as the last weeks had them. Pure.

Kept only when `scaling.weekProfile` asks for it. The rule `weekProfile` asks for the expected links, so that pods are
ready when a weekly rise begins, before any growth is seen. Quarter hours are those of UTC: where clocks change twice a
year, the profile takes two weeks to follow.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

QUARTER_SECONDS = 900
QUARTERS = 7 * 24 * 4
"""Quarter hours in a week."""
WEIGHT = 0.5
"""Weight of the newest week: a single event has almost vanished from the profile after a month."""
UNKNOWN = -1


@dataclass(frozen=True, slots=True)
class WeekProfile:
    links: tuple[int, ...] = ()
    """The highest number of links in each quarter hour of the week, UNKNOWN where none is known; () at first."""
    quarter: int = UNKNOWN
    """The quarter hour that is observed now, counted since 1970."""
    whole: bool = False
    """Whether it has been observed from its beginning."""
    highest: int = 0
    """Links in it so far."""
    before: int = UNKNOWN
    """The highest number of links in the quarter hour before it."""

    def observe(self, links: int, at: float) -> WeekProfile:
        """The profile after an observation; `at` is Unix time in seconds."""
        quarter = math.floor(at / QUARTER_SECONDS)
        if quarter == self.quarter:
            return replace(self, highest=max(self.highest, links))
        follows = quarter == self.quarter + 1
        ended = quarter > self.quarter  # if it is less, the clock was set back
        return WeekProfile(
            links=self._learned() if self.whole and ended else self.links,
            quarter=quarter,
            whole=follows,
            highest=links,
            before=self.highest if follows else UNKNOWN,
        )

    def limited(self, most: int) -> WeekProfile:
        """The profile of a fleet that cannot hold more than `most` links."""
        return replace(
            self,
            links=tuple(min(one, most) for one in self.links),
            highest=min(self.highest, most),
            before=min(self.before, most),
        )

    def expected(self, at: float, ahead: float) -> int:
        """The highest number of links that the last weeks had from now until `ahead` seconds later. On a day that is
        quieter than they were, it is reduced as the last quarter hour was."""
        if not self.links:
            return 0
        first, last = math.floor(at / QUARTER_SECONDS), math.floor((at + ahead) / QUARTER_SECONDS)
        highest = max(self._known(quarter) for quarter in range(first, min(last, first + QUARTERS) + 1))
        usual = self._known(self.quarter - 1)
        if self.before == UNKNOWN or usual <= 0:
            return max(0, highest)
        return max(0, math.floor(highest * min(1.0, self.before / usual)))

    def _learned(self) -> tuple[int, ...]:
        """The links by quarter hours with the one that has ended."""
        known = list(self.links or (UNKNOWN,) * QUARTERS)
        then = known[self.quarter % QUARTERS]
        known[self.quarter % QUARTERS] = (
            self.highest if then == UNKNOWN else round(then + WEIGHT * (self.highest - then))
        )
        return tuple(known)

    def _known(self, quarter: int) -> int:
        return self.links[quarter % QUARTERS]
