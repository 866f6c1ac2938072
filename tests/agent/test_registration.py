"""What an agent refuses when it is created: invalid methods, URLs and ids; and the cost of its import."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from fairlead.agent import Agent, Command
from fairlead.errors import ConfigError

from support.agent.fixtures import StartAgentProcess


def test_an_invalid_handler_is_refused_at_its_registration(agent: Agent) -> None:
    wrong = (ConfigError, TypeError)

    async def coroutine() -> None: ...
    async def stream() -> AsyncIterator[str]:
        yield ""

    def function() -> None: ...
    def with_command(command: Command) -> None: ...
    def many(*args: int) -> None: ...
    def named(**options: int) -> None: ...
    def positional(a: int, /) -> None: ...

    agent.command("once")(function)
    with pytest.raises(wrong, match="once"):
        agent.command("once")(coroutine)
    for run in ("thread", "process"):
        with pytest.raises(wrong, match="m"):
            agent.command("m", run=run)(coroutine)
        with pytest.raises(wrong, match="m"):
            agent.command("m", run=run)(stream)
    with pytest.raises(wrong, match="m"):
        agent.command("m", run="loop")(function)
    with pytest.raises(wrong, match="m"):
        agent.command("m", run="process")(with_command)
    for odd in (many, named, positional):
        with pytest.raises(wrong, match="m"):
            agent.command("m")(odd)
    # A failed registration leaves nothing behind.
    agent.command("m")(coroutine)


def test_a_decorated_function_can_still_be_called(agent: Agent) -> None:
    def function(a: int) -> int:
        return a + 1

    assert agent.command("f")(function) is function
    assert function(1) == 2


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "127.0.0.1:8080", "ws://", "", "ws:///path"])
def test_invalid_urls_are_refused(url: str) -> None:
    with pytest.raises(ConfigError):
        Agent(url, "edge-1", "t")


@pytest.mark.parametrize("id", ["", "-x", "a b", "x" * 129, "ä"])
def test_invalid_agent_ids_are_refused(id: str) -> None:
    from fairlead.errors import InvalidRequest

    with pytest.raises((InvalidRequest, ConfigError)):
        Agent("ws://127.0.0.1:1", id, "t")


def test_facts_beyond_the_limits_of_gateways_are_refused_at_once() -> None:
    Agent("ws://127.0.0.1:1", "edge-1", "token-1", facts={f"fact-{n}": "x" * 250 for n in range(14)})
    with pytest.raises(ConfigError, match=r"facts of \d+ bytes as JSON are too large: expected at most 4096"):
        Agent("ws://127.0.0.1:1", "edge-1", "token-1", facts={f"fact-{n}": "x" * 250 for n in range(16)})


async def test_the_sdk_needs_only_the_base_install(agent_process: StartAgentProcess) -> None:
    source = (
        "import sys, fairlead.agent, fairlead.agent.builtin\n"
        "heavy = {'starlette', 'uvicorn', 'uvloop', 'httptools', 'redis', 'prometheus_client', 'click'}\n"
        "sys.exit(', '.join(heavy & set(sys.modules)) or 0)\n"
    )
    process = agent_process("-c", source)
    assert await process.exit_code() == 0, process.log


@pytest.mark.parametrize(("type", "why"), [("", "1 to 128"), ("x" * 129, "1 to 128"), ("fairlead.new", "not begin")])
def test_the_type_of_an_event_is_checked_where_it_is_sent(type: str, why: str) -> None:
    """The gateway would close the link for good."""
    with pytest.raises(ValueError, match=why):
        Agent("ws://127.0.0.1:1", "edge-1", "token-1").emit(type)
