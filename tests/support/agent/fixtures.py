"""The types of the fixtures of the agent's tests."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import ModuleType
from typing import Protocol, TypeAlias

from fairlead.agent import Agent

from support.agent.agent_process import AgentProcess

Serve: TypeAlias = "Callable[[Agent], asyncio.Task[None]]"
"""Runs an agent in the test's own process; it is stopped at the end of the test."""
Gone: TypeAlias = Callable[[int], Awaitable[None]]
"""Waits until no process has that pid."""
MakeModule: TypeAlias = Callable[[str], ModuleType]
"""Writes source into a module, and imports it."""


class StartAgentProcess(Protocol):
    """Starts `python …` with the test's folder on its path."""

    def __call__(self, *arguments: str) -> AgentProcess: ...
