"""The machine on which a durable agent is killed and started again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from support.agent.agent_process import AgentProcess
from support.agent.durable_host import Host
from support.agent.scripted_gateway import Gateway


@pytest.fixture
def host(gateway: Gateway, tmp_path: Path, agent_process: Callable[..., AgentProcess]) -> Host:
    return Host(gateway, tmp_path, agent_process)
