"""Modelled nodes leave new links to others as real ones do, and load balancers notice as late."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.fleet.directives.exclusion import SETTLE
from fairlead.fleet.directives.rebalance_target import EnoughLinks, RebalanceTarget
from fairlead_operator.simulator.fleet import directives
from fairlead_operator.simulator.fleet.directives import NO_DIRECTIVES, Directives, NodeDirectives, enough_links
from fairlead_operator.simulator.fleet.pod_table import FAR, HEARTBEAT_SECONDS, PodTable


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 300), st.none() | st.integers(0, 300)), max_size=30))
def test_a_node_has_enough_links_by_the_rule_of_the_gateway(history: list[tuple[int, int | None]]) -> None:
    real, reached = EnoughLinks(), np.zeros(1, np.bool_)
    for links, enough in history:
        reached = enough_links(np.array([links]), np.array([FAR if enough is None else enough]), reached)
        assert reached.tolist() == [real.reached(links, enough)]


def fleet(*links: int) -> tuple[PodTable, NodeDirectives]:
    pods = PodTable(100)
    pods.add(np.zeros(len(links), np.int64), 0)
    pods.renew_readiness(0)
    pods.links[:] = links
    return pods, NodeDirectives(pods)


def test_a_pod_that_has_enough_gets_no_new_links_and_is_back_when_it_has_fewer() -> None:
    pods, nodes = fleet(100, 40)
    nodes.read(Directives(targets={"pod-00000": RebalanceTarget(90, 90), "pod-00001": RebalanceTarget(90)}), 10)
    served = []
    for now in range(10, 40):
        nodes.apply(now)
        pods.renew_readiness(now)
        served.append(pods.serving.tolist())
        if now == 30:
            pods.links[0] = 80
    unready, ready = directives.UNREADY_SECONDS, directives.READY_SECONDS
    assert served == [[True, True]] * unready + [[False, True]] * (21 + ready - unready) + [[True, True]] * (9 - ready)


def test_links_move_only_when_all_load_balancers_know() -> None:
    """SETTLE is a heartbeat and what it takes to be unready."""
    _, nodes = fleet(100, 40)
    assert nodes.kept(0) is None
    nodes.read(Directives(targets={"pod-00000": RebalanceTarget(70, 70)}), 5)
    assert HEARTBEAT_SECONDS + directives.UNREADY_SECONDS == SETTLE
    assert nodes.kept(5 + int(SETTLE) - 1) is None
    kept = nodes.kept(5 + int(SETTLE))
    assert kept is not None
    assert kept.tolist() == [70, FAR]
    nodes.read(NO_DIRECTIVES, 20)
    assert nodes.kept(60) is None


def test_pods_of_an_old_revision_serve_the_links_that_they_have_and_get_no_new_ones() -> None:
    pods, nodes = fleet(100, 100)
    pods.add(np.array([0]), 1)
    nodes.read(Directives(preferred=1), 0)
    for now in (0, directives.UNREADY_SECONDS):
        nodes.apply(now)
        pods.renew_readiness(now)
    assert pods.serving.tolist() == [False, False, True]
    assert pods.started.tolist() == [True, True, True]
    nodes.read(NO_DIRECTIVES, 10)
    for now in (10, 10 + directives.READY_SECONDS):
        nodes.apply(now)
        pods.renew_readiness(now)
    assert pods.serving.all()
