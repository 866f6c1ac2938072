"""The number of links in the status, which pods report at different times."""

from __future__ import annotations

from fairlead_operator.runtime.reports.status import LinkCount


def test_link_count_does_not_dip_while_agents_move() -> None:
    count = LinkCount()
    assert count.shown(320, moving=False, now=0) == 320
    assert count.shown(300, moving=False, now=10) == 300, "agents that leave a settled fleet are gone"
    assert [count.shown(live, moving=True, now=20 + at) for at, live in enumerate((300, 201, 180, 260))] == [300] * 4
    assert count.shown(250, moving=False, now=30) == 300, "less than three heartbeats have passed since"
    assert count.shown(305, moving=False, now=35) == 305, "an increase shows at once"
    assert count.shown(250, moving=False, now=40) == 250


def test_link_count_of_a_new_leader_during_a_rollout_is_what_it_observes() -> None:
    assert LinkCount().shown(201, moving=True, now=5) == 201
