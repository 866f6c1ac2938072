"""Agents of the shipped SDK within the test's own process: a handful that run what a test gives them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from fairlead.agent import Agent

from support.gateway.scripted_agent import AGENT_TOKEN


class HostedAgents:
    def __init__(self) -> None:
        self._agents: dict[str, Agent] = {}
        self._serving: dict[str, asyncio.Task[None]] = {}

    def connect(self, link: str, name: str, methods: Mapping[str, Callable[..., Any]], **options: Any) -> Agent:
        """Connect an agent that has these methods; `options` are those of `Agent`."""
        agent = Agent(link, name, AGENT_TOKEN, **options)
        for method, handler in methods.items():
            agent.command(method)(handler)
        return self.host(agent)

    def host(self, agent: Agent) -> Agent:
        """Connect an agent that the test has made."""
        self._agents[agent.id] = agent
        self._serving[agent.id] = asyncio.create_task(agent.serve())
        return agent

    async def stop(self, *names: str) -> None:
        """Stop these agents, or all."""
        chosen = names or tuple(self._agents)
        for name in chosen:
            self._agents.pop(name).stop()
        waited = [self._serving.pop(name) for name in chosen]
        if waited:
            await asyncio.wait(waited, timeout=20)
