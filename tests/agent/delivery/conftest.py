"""A link to an agent with the methods of `support.agent.delivery_methods`, with and without a journal.

The journal must change nothing as long as the process lives, so that all of these tests run twice.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from fairlead.agent import Agent

from support.agent.delivery_methods import Script
from support.agent.fixtures import Serve
from support.agent.scripted_gateway import Gateway
from support.agent.scripted_link import Link


@pytest.fixture(params=["plain", "journal"])
def agent(request: pytest.FixtureRequest, gateway: Gateway, tmp_path: Path) -> Agent:
    journal = tmp_path / "journal" if request.param == "journal" else None
    return Agent(gateway.url, "edge-1", "token-1", journal=journal)


@pytest.fixture
async def script(agent: Agent) -> Script:
    return Script(agent)


@pytest.fixture
async def link(gateway: Gateway, agent: Agent, script: Script, serve: Serve) -> Link:
    serve(agent)
    return await gateway.linked()
