"""Links that move are not lost, however fast they do it and whenever their pods report."""

from __future__ import annotations

import random
from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from fairlead_operator.autoscaler.history.link_history import AWAY_SECONDS, LinkHistory
from fairlead_operator.autoscaler.observation import FleetObservation, PodObservation

PASS, HEARTBEAT = 10.0, 5.0
BEGIN, END = 60.0, 240.0
"""When the pods begin to give their links away, and when the play ends."""


class MovingPods:
    """Pods whose links move from the givers to the others at a rate, and what the pods report of it."""

    def __init__(self, links: list[int], givers: int, rate: float, *, relieved: bool, rng: random.Random) -> None:
        self._begun = {f"p{i}": count for i, count in enumerate(links)}
        self.givers = [f"p{i}" for i in range(givers)]
        self._takers = [name for name in self._begun if name not in self.givers]
        self._rate, self._relieved = rate, relieved
        self._phase = {name: rng.uniform(0, HEARTBEAT) for name in self._begun}
        self._left = dict.fromkeys(self._begun, 0)
        self.lost: tuple[float, float] = END, 0.0
        """From when on, and which share of the links of all pods nobody sees again."""

    def _links(self, at: float) -> dict[str, int]:
        gone = {name: min(self._begun[name], max(0, int((at - BEGIN) * self._rate))) for name in self.givers}
        share, rest = divmod(sum(gone.values()), len(self._takers))
        now = {name: self._begun[name] - gone[name] for name in self.givers}
        now |= {name: self._begun[name] + share + (i < rest) for i, name in enumerate(self._takers)}
        since, part = self.lost
        return {name: int(count * (1 - part)) if at >= since else count for name, count in now.items()}

    def passes(self) -> Iterator[tuple[float, FleetObservation, frozenset[str]]]:
        for i in range(int(END / PASS)):
            now, pods = i * PASS, []
            leaving = now >= BEGIN and not self._relieved
            for name, phase in self._phase.items():
                if leaving and name in self.givers and self._links(now - PASS)[name] == 0:
                    continue  # it is empty, and has ended
                age = (now - phase) % HEARTBEAT
                links = self._links(now - age)[name]
                pods.append(
                    PodObservation(name, age=age, links=links, capacity=1000, leaving=leaving and name in self.givers)
                )
            donors = frozenset(self.givers) if self._relieved and now >= BEGIN else frozenset[str]()
            yield now, FleetObservation(len(self._takers), tuple(pods)), donors


@given(
    st.lists(st.integers(0, 300), min_size=2, max_size=6),
    st.data(),
    st.floats(0.5, 1000),
    st.booleans(),
    st.randoms(use_true_random=False),
)
def test_a_drain_or_a_rebalance_is_no_outage(
    links: list[int], data: st.DataObject, rate: float, relieved: bool, rng: random.Random
) -> None:
    fleet = MovingPods(links, data.draw(st.integers(1, len(links) - 1)), rate, relieved=relieved, rng=rng)
    history = LinkHistory()
    for now, observed, donors in fleet.passes():
        history = history.observe(observed, now, donors)
        assert history.outage is None, f"at {now:g} s"


@given(st.floats(BEGIN, 120), st.booleans(), st.randoms(use_true_random=False))
def test_an_outage_during_a_drain_is_seen_when_the_agents_of_the_drain_would_be_back(
    since: float, relieved: bool, rng: random.Random
) -> None:
    fleet = MovingPods([100, 100, 100, 100], 1, 5.0, relieved=relieved, rng=rng)
    fleet.lost = since, 0.8
    history, seen = LinkHistory(), 0.0
    for now, observed, donors in fleet.passes():
        history = history.observe(observed, now, donors)
        seen = seen or (now if history.outage is not None else 0.0)
    assert since <= seen <= since + AWAY_SECONDS + 2 * PASS
