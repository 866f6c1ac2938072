"""Runs: one method on many agents, through real nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from runs.conftest import RunFleet

pytestmark = pytest.mark.timeout(240)


def test_a_run_over_a_list_ends_with_a_result_for_each_target(fleet: RunFleet) -> None:
    agents = [f"all-{n}" for n in range(50)]
    run = fleet.begin(agents=[*agents, "all-0"])
    ended = fleet.end(run, node=1)
    assert (ended["state"], ended["targets"], ended["counts"]) == ("done", 50, {"ok": 50})
    lines = fleet.results(run, node=1)
    assert sorted(line["agent"] for line in lines[:-1]) == sorted(agents)
    assert [line["offset"] for line in lines[:-1]] == list(range(50))
    assert lines[-1] == {"end": {"state": "done", "counts": {"ok": 50}}}
    assert fleet.results(run, start=30)[:-1] == lines[30:-1]
    assert {len(line["output"][0]["text"]) for line in lines[:-1]} == {64}
    assert sum(outcome["count"] for outcome in ended["outcomes"]) == 50
