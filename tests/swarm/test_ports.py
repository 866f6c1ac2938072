"""Source ports: a swarm that this machine has too few for is refused before the first connection."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairlead.errors import ConfigError
from fairlead.swarm import system
from fairlead.swarm.options import parse_sources
from fairlead.swarm.system import check_ports


@pytest.fixture(autouse=True)
def port_range(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Linux's default, whatever this machine has."""
    path = tmp_path / "ip_local_port_range"
    path.write_text("32768\t60999\n")
    monkeypatch.setattr(system, "PORT_RANGE", path)


def test_a_million_agents_fit_on_the_addresses_that_the_documentation_names() -> None:
    assert check_ports(1_000_000, parse_sources(["127.0.0.2-73"]), secure=False) is None


@pytest.mark.parametrize(("secure", "most"), [(False, 14_116), (True, 7_058)])
def test_agents_for_which_linux_has_to_search_for_ports_are_advised_to_use_more_addresses(
    secure: bool, most: int
) -> None:
    assert check_ports(most, ("127.0.0.2",), secure=secure) is None
    assert f"above {most}" in str(check_ports(most + 1, ("127.0.0.2",), secure=secure))


def test_more_agents_than_ports_are_refused() -> None:
    assert check_ports(28_232, (), secure=False) is not None
    with pytest.raises(ConfigError, match="28233 agents from 1 source address"):
        check_ports(28_233, (), secure=False)
