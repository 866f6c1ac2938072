"""What waits while one Redis server, or one primary of a Cluster, may lack the last moment."""

from __future__ import annotations

import asyncio

import pytest

from fairlead.errors import BusUnavailable
from fairlead.routing import failover_gate
from fairlead.routing.failover_gate import FailoverGate
from fairlead.shards import agent_shard

IDS = {"a": "00000000-03e8-7000-8000-000000000000", "b": "00000000-03e8-7001-8000-000000000000"}
"""Commands of 1,000 ms; their 17th and 18th digits name their shards."""
AGENTS = {
    owner: next(f"agent-{n}" for n in range(999) if agent_shard(f"agent-{n}") == i) for i, owner in enumerate("ab")
}
LATER = "00000000-03e9-7000-8000-000000000000"


def two_primaries() -> FailoverGate:
    """One for the keys of the shard 0, one for those of the shard 1."""
    return FailoverGate(lambda key: "a" if "{0}" in key else "b", lambda: ("a", "b"))


async def test_only_what_relies_on_the_server_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failover_gate, "PATIENCE", 0.05)
    gate = two_primaries()
    gate.close("a", 1_000)
    assert gate.closed
    assert (gate.closed_for("{0}"), gate.closed_for("{1}")) == (True, False)
    await gate.wait_settled(IDS["b"])
    await gate.wait_settled_for("{1}")
    await gate.wait_said(AGENTS["b"])
    for waits in (gate.wait_settled(IDS["a"]), gate.wait_settled_for("{1}", "{0}"), gate.wait_said(AGENTS["a"])):
        with pytest.raises(BusUnavailable, match="compare"):
            await waits
    gate.said("a")
    await gate.wait_said(AGENTS["a"])
    gate.open("a")
    assert not gate.closed
    await gate.wait_settled(IDS["a"])


async def test_everything_waits_for_a_server_that_may_be_about_to_get_any_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failover_gate, "PATIENCE", 0.05)
    gate = two_primaries()
    gate.close("new", 1_000)
    with pytest.raises(BusUnavailable):
        await gate.wait_settled(IDS["b"])


async def test_a_command_that_was_accepted_since_waits_for_nothing() -> None:
    gate = two_primaries()
    gate.close("a", 1_000)
    await gate.wait_settled(LATER)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await gate.wait_settled(IDS["a"])


async def test_who_waits_goes_on_once_all_servers_of_its_keys_are_settled() -> None:
    gate = two_primaries()
    gate.close("a", 1_000)
    gate.close("b", 2_000)
    waiting = asyncio.create_task(gate.wait_settled_for("{0}", "{1}"))
    await asyncio.sleep(0)
    gate.open("a")
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not waiting.done()
    gate.open("b")
    async with asyncio.timeout(5):
        await waiting
