"""The embedded Valkey of a node, or of several workers, dies: they stop, say why, and start again with what was
stored."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from fairlead.wire.close_codes import CloseCode

from support.gateway.platform_api import MakeGatewayApi
from support.gateway.process import GatewayProcess, MakeGateway
from support.gateway.scripted_agent import DialAgent


def valkey_of(gateway: GatewayProcess) -> int:
    """The process id, read from the lock file."""
    return int((gateway.folder / "data" / "valkey" / "valkey.lock").read_text())


@pytest.mark.parametrize("workers", ["1", "2"])
async def test_a_node_exits_with_an_error_when_its_valkey_dies(
    make_gateway: MakeGateway, api_of: MakeGatewayApi, dial: DialAgent, workers: str
) -> None:
    gateway = make_gateway("embedded", "--workers", workers, "--drain-timeout", "5")
    agent = await dial(gateway, "agent-1")
    await agent.greet()
    os.kill(valkey_of(gateway), signal.SIGKILL)
    assert await agent.close_code() == CloseCode.RESTART
    assert await asyncio.to_thread(gateway.wait) == 1
    assert "the embedded Valkey ended by signal 9 (SIGKILL)" in gateway.log()
    gateway.start()
    assert (await api_of(gateway).agent("agent-1"))["id"] == "agent-1"


async def test_a_node_stopped_together_with_its_valkey_exits_with_0(make_gateway: MakeGateway) -> None:
    gateway = make_gateway("embedded")
    valkey = valkey_of(gateway)
    os.kill(valkey, signal.SIGTERM)
    gateway.signal(signal.SIGTERM)
    assert await asyncio.to_thread(gateway.wait) == 0
