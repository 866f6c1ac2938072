"""When a node has enough links to leave new ones to others: properties of the rule."""

from __future__ import annotations

import math
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from fairlead.fleet.directives.rebalance_target import SLACK, EnoughLinks

LINKS = st.integers(0, 5000)


@given(LINKS, st.integers(0, 5000), st.lists(LINKS))
def test_a_node_with_enough_links_takes_none_and_one_that_is_well_below_does(
    links: int, enough: int, before: list[int]
) -> None:
    rule = EnoughLinks()
    for earlier in before:
        rule.reached(earlier, enough)
    reached = rule.reached(links, enough)
    if links >= enough:
        assert reached
    if links < enough * (1 - SLACK):
        assert not reached


@given(st.integers(1, 5000), st.lists(LINKS, min_size=2))
def test_readiness_changes_only_with_more_links_than_the_slack(enough: int, counts: list[int]) -> None:
    rule = EnoughLinks()
    changes = [
        links for before, links in pairwise([0, *counts]) if rule.reached(before, enough) != rule.reached(links, enough)
    ]
    for one, other in pairwise(changes):
        assert abs(one - other) >= math.floor(enough * SLACK)


@given(LINKS, LINKS)
def test_a_node_without_a_limit_takes_links_whatever_it_had_before(links: int, enough: int) -> None:
    rule = EnoughLinks()
    rule.reached(links, enough)
    assert not rule.reached(links, None)
