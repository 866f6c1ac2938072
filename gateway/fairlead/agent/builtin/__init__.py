"""The agent that `fairlead agent run` runs: an Agent with the built-in methods `exec` and `sys.info`."""

from __future__ import annotations

from typing import Any

from fairlead.agent.agent import Agent
from fairlead.agent.builtin import execute, sysinfo


def builtin_agent(url: str, id: str, token: str, **options: Any) -> Agent:
    """An agent with the built-in methods; `options` are Agent's."""
    agent = Agent(url, id, token, **options)
    agent.command("exec")(execute.execute)
    agent.command("sys.info")(sysinfo.system_info)
    return agent
