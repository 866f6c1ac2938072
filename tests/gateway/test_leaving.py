"""A node that was told to stop serves on for `shutdown_delay`, with nothing to drain too: whoever still sends to it,
because nobody has told him otherwise yet, gets an answer."""

from __future__ import annotations

import asyncio
import signal
import time
from typing import Any

import httpx2
import pytest
import websockets

from fairlead.wire.messages import SUBPROTOCOL_MSGPACK

PLATFORM = {"authorization": "Bearer development-platform-token"}
DELAY = 2.0


async def test_a_node_without_links_serves_for_the_whole_delay(own_valkey: Any, make_gateway: Any) -> None:
    gateway = make_gateway(own_valkey.url, "--shutdown-delay", str(DELAY))
    async with httpx2.AsyncClient(headers=PLATFORM) as http:
        before = await http.get(f"{gateway.api}/v1/agents")
        assert "connection" not in before.headers
        told = time.monotonic()
        gateway.signal(signal.SIGTERM)
        answered = 0
        while True:
            began = time.monotonic()
            try:
                answer = await http.get(f"{gateway.api}/v1/agents")
            except httpx2.TransportError:
                break
            assert answer.status_code == 200
            if answered and answer.headers.get("connection") != "close":
                pytest.fail("a caller was left on a connection to a node that leaves")
            answered += answer.headers.get("connection") == "close"
            if began - told < DELAY / 2:
                ready = await http.get(f"{gateway.admin}/readyz")
                with pytest.raises(websockets.InvalidStatus) as refused:
                    await websockets.connect(
                        f"{gateway.link}/v1/link", proxy=None, subprotocols=[SUBPROTOCOL_MSGPACK],  # type: ignore[list-item]
                        additional_headers={"Authorization": "Bearer development-agent-token"},
                    )  # fmt: skip
                if answered:
                    assert (ready.status_code, "draining" in ready.text) == (503, True)
                    assert refused.value.response.status_code == 503
                    assert "Retry-After" in refused.value.response.headers
            await asyncio.sleep(0.05)
    assert time.monotonic() - told >= DELAY
    assert answered
    assert await asyncio.to_thread(gateway.wait) == 0
    assert "drained 0 agents" in gateway.log()


async def test_a_second_signal_does_not_wait_for_the_delay(own_valkey: Any, make_gateway: Any) -> None:
    gateway = make_gateway(own_valkey.url, "--shutdown-delay", "3600")
    gateway.signal(signal.SIGTERM)
    async with httpx2.AsyncClient() as http:
        while (await http.get(f"{gateway.admin}/readyz")).status_code != 503:
            await asyncio.sleep(0.02)
    gateway.signal(signal.SIGTERM)
    await asyncio.to_thread(gateway.wait)


async def test_without_a_delay_a_node_that_holds_no_link_ends_at_once(own_valkey: Any, make_gateway: Any) -> None:
    gateway = make_gateway(own_valkey.url)
    gateway.signal(signal.SIGTERM)
    assert await asyncio.to_thread(gateway.wait) == 0
