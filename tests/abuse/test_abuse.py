"""Every attack once, at a small size; run.py runs them at the published size."""

from __future__ import annotations

import pytest

from abuse.run import ATTACKS, play


@pytest.mark.timeout(180)
@pytest.mark.parametrize("name", ATTACKS)
async def test_attack_leaves_the_node_and_healthy_agents_unharmed(name: str) -> None:
    attack = ATTACKS[name]
    result = await play(name, share=attack.short, seconds=max(attack.seconds / 10, 3.0))
    assert result.during.commands, "no healthy command ended well"
    assert not result.broken, (result.broken, result.tried)
