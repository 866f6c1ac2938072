"""A node that is told to stop serves on for `shutdown_delay`, even with nothing to drain: callers that do not know yet
that it stops still get answers."""

from __future__ import annotations

import asyncio
import itertools
import signal
import time
from typing import Any

import httpx2
import pytest
import websockets

from fairlead.carrier.http_server.uvicorn_server import SAME_STOP
from fairlead.store.embedded_valkey.server import EmbeddedValkey
from fairlead.wire.messages import SUBPROTOCOL_MSGPACK

from support.gateway.process import MakeGateway
from support.plain_http import plain_client
from support.streams import copy_stream

LEARNS = 1.5
"""Seconds until the balancer of these tests has noticed what a node says of itself: as long as endpoints and the
configuration of an ingress controller take."""
PLATFORM = {"authorization": "Bearer development-platform-token"}
DELAY = 2.0


async def test_a_node_without_links_serves_for_the_whole_delay(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway
) -> None:
    gateway = make_gateway(own_valkey.url, "--shutdown-delay", str(DELAY))
    async with plain_client(headers=PLATFORM) as http:
        before = await http.get(f"{gateway.api}/v1/agents")
        assert "connection" not in before.headers
        stopped = time.monotonic()
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
            if began - stopped < DELAY / 2:
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
    assert time.monotonic() - stopped >= DELAY
    assert answered
    assert await asyncio.to_thread(gateway.wait) == 0
    assert "drained 0 agents" in gateway.log()


async def test_a_second_signal_ends_the_delay(own_valkey: EmbeddedValkey, make_gateway: MakeGateway) -> None:
    gateway = make_gateway(own_valkey.url, "--shutdown-delay", "3600")
    gateway.signal(signal.SIGTERM)
    async with plain_client() as http:
        while (await http.get(f"{gateway.admin}/readyz")).status_code != 503:
            await asyncio.sleep(0.02)
    await asyncio.sleep(SAME_STOP)  # what comes before belongs to the first
    gateway.signal(signal.SIGTERM)
    await asyncio.to_thread(gateway.wait)


async def test_without_a_delay_a_node_without_links_ends_at_once(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway
) -> None:
    gateway = make_gateway(own_valkey.url)
    gateway.signal(signal.SIGTERM)
    assert await asyncio.to_thread(gateway.wait) == 0


class IngressBalancer:
    """Spreads connections over nodes as an ingress does: it learns late that a node stops, and tries no other one."""

    def __init__(self, nodes: list[Any]) -> None:
        self._known = list(nodes)
        self._turns = itertools.count()

    async def __aenter__(self) -> IngressBalancer:
        self._server = await asyncio.start_server(self._relay, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        self._learning = asyncio.create_task(self._learn_forever())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._learning.cancel()
        self._server.close()

    async def _learn_forever(self) -> None:
        async with plain_client() as http:
            while True:
                for node in list(self._known):
                    try:
                        ready = (await http.get(f"{node.admin}/readyz")).status_code == 200
                    except httpx2.TransportError:
                        ready = False
                    if not ready:
                        await asyncio.sleep(LEARNS)
                        self._known.remove(node)
                await asyncio.sleep(0.05)

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        node = self._known[next(self._turns) % len(self._known)]
        host, _, port = node.api.removeprefix("http://").partition(":")
        try:
            inner = await asyncio.open_connection(host, int(port))
        except OSError:
            writer.write(b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
            await writer.drain()
            writer.close()
            return
        await asyncio.gather(copy_stream(reader, inner[1]), copy_stream(inner[0], writer))


async def test_no_caller_behind_a_load_balancer_notices_that_a_node_leaves(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway
) -> None:
    nodes = [
        await asyncio.to_thread(make_gateway, own_valkey.url, "--shutdown-delay", str(2 * LEARNS), name=name)
        for name in ("node-1", "node-2")
    ]
    answers: list[int | str] = []

    async def call(http: httpx2.AsyncClient, balancer: IngressBalancer) -> None:
        """Send calls until the node is gone, and for a moment longer."""
        after = 0
        while after < 10:
            after += not nodes[0].running
            try:
                answers.append((await http.get(f"{balancer.url}/v1/agents")).status_code)
            except httpx2.TransportError as e:
                answers.append(repr(e))
            await asyncio.sleep(0.05)

    async with IngressBalancer(nodes) as balancer, plain_client(headers=PLATFORM) as keeps:
        fresh = plain_client(headers={**PLATFORM, "connection": "close"})
        calls = [asyncio.create_task(call(http, balancer)) for http in (keeps, fresh)]
        while len(answers) < 20:
            await asyncio.sleep(0.02)
        nodes[0].signal(signal.SIGTERM)
        await asyncio.gather(*calls)
        await fresh.aclose()
    assert nodes[0].wait() == 0
    assert [one for one in answers if one != 200] == [], f"of {len(answers)} calls"
