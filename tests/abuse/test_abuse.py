"""Every attack once, at a small size; run.py runs them at the published size."""

from __future__ import annotations

from pathlib import Path

import pytest

from abuse.attacker import PLAYS
from abuse.catalogue import ATTACKS
from abuse.run import play

PAGE = Path(__file__).resolve().parents[2] / "docs" / "abuse.md"


@pytest.mark.timeout(300)  # of servers that start and stop, on a machine that may do much else
@pytest.mark.parametrize("name", ATTACKS)
async def test_attack_leaves_the_node_and_healthy_agents_unharmed(name: str) -> None:
    attack = ATTACKS[name]
    result = await play(name, share=attack.short, seconds=max(attack.seconds / 10, 3.0))
    assert result.during.commands, "no healthy command ended well"
    assert not result.broken, (result.broken, result.tried)


def test_the_page_has_every_attack() -> None:
    page = PAGE.read_text()
    assert [name for name in ATTACKS if f"`{name}`" not in page] == []
    assert ATTACKS.keys() == PLAYS.keys()
