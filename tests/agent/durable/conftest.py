"""The machine on which an agent with a journal is killed and restarted."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.agent.durable_host import DurableHost
from support.agent.fixtures import StartAgentProcess
from support.agent.scripted_gateway import Gateway


@pytest.fixture
def host(gateway: Gateway, tmp_path: Path, agent_process: StartAgentProcess) -> DurableHost:
    return DurableHost(gateway, tmp_path, agent_process)
