"""What a status tells of numbers that lag behind each other."""

from __future__ import annotations

from fairlead_operator.runtime.status import LinkCount


def test_links_do_not_dip_while_agents_go_from_pod_to_pod() -> None:
    count = LinkCount()
    assert count.shown(320, moving=False, now=0) == 320
    assert count.shown(300, moving=False, now=10) == 300, "agents that leave a fleet at rest are gone"
    assert [count.shown(live, moving=True, now=20 + at) for at, live in enumerate((300, 201, 180, 260))] == [300] * 4
    assert count.shown(250, moving=False, now=30) == 300, "the pods have told for less than three beats since"
    assert count.shown(305, moving=False, now=35) == 305, "more are more at once"
    assert count.shown(250, moving=False, now=40) == 250


def test_the_first_look_of_a_new_leader_in_a_rollout_tells_what_it_sees() -> None:
    assert LinkCount().shown(201, moving=True, now=5) == 201
