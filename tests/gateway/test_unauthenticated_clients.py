"""What clients without a valid token can do to a real node: little, and nothing that others notice."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import psutil
import pytest

from fairlead.store.embedded_valkey.server import EmbeddedValkey
from fairlead.wire.messages import SUBPROTOCOL_MSGPACK, Cmd, End

from support.gateway.platform_api import GatewayApi, MakeGatewayApi
from support.gateway.process import GatewayProcess, MakeGateway
from support.gateway.scripted_agent import DialAgent, ScriptedAgent
from support.plain_http import plain_client, plain_get

pytestmark = pytest.mark.timeout(180)
STRANGER, NEIGHBOUR = "127.0.0.66", "127.0.0.67"
AGENT, PLATFORM = "development-agent-token", "development-platform-token"
GET = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


def place(url: str) -> int:
    return int(url.rpartition(":")[2])


def upgrade(token: str) -> bytes:
    return (
        f"GET /v1/link HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
        f"Sec-WebSocket-Protocol: {SUBPROTOCOL_MSGPACK}\r\nAuthorization: Bearer {token}\r\n\r\n"
    ).encode()


async def answer(port: int, request: bytes, source: str = STRANGER) -> tuple[int, str]:
    """Status and head of the response; 0 if the connection was closed without one."""
    try:
        async with asyncio.timeout(30):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(source, 0))
            try:
                writer.write(request)
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                return int(head.split(" ")[1]), head
            finally:
                writer.transport.abort()
    except (OSError, asyncio.IncompleteReadError):
        return 0, ""


async def a_command_ends(api: GatewayApi, peer: ScriptedAgent) -> None:
    command = await api.start(peer.agent)
    await peer.send(End(id=(await peer.expect(Cmd)).id, total=0))
    assert (await api.end(command))["state"] == "ok"


@contextlib.asynccontextmanager
async def connections(port: int, count: int, first: bytes, source: str = STRANGER) -> AsyncIterator[list[Any]]:
    opened: list[Any] = []
    for n in range(count):
        with contextlib.suppress(OSError):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(source, 0))
            writer.write(first)
            opened.append((reader, writer))
        if n % 50 == 49:
            await asyncio.sleep(0.01)
    yield opened
    for _, writer in opened:
        writer.transport.abort()


@pytest.fixture(scope="module", params=["epoll", "asyncio"])
def accepting(request: pytest.FixtureRequest) -> tuple[str, ...]:
    """With epoll the node accepts links without an HTTP connection, and leaves every refusal to the application."""
    return ("--link-transport", request.param)


@pytest.mark.parametrize("first", [b"", GET, GET[:-2]], ids=["silent", "idle", "slow"])
@pytest.mark.parametrize("port", ["link", "api", "admin"])
async def test_many_unauthenticated_connections_keep_nobody_out(
    make_gateway: MakeGateway,
    own_valkey: EmbeddedValkey,
    dial: DialAgent,
    api_of: MakeGatewayApi,
    port: str,
    first: bytes,
) -> None:
    node = make_gateway(own_valkey.url, "--unauthenticated-limit", "100")
    api, peer = api_of(node), await dial(node)
    await peer.greet()
    async with connections(place(getattr(node, port)), 400, first):
        await a_command_ends(api, peer)
        await (await dial(node)).greet()
        async with plain_client() as http:
            assert (await http.get(f"{node.admin}/readyz")).status_code == 200
            metrics = (await http.get(f"{node.admin}/metrics")).text
    assert "to make room" in node.log()
    evicted = next(line for line in metrics.splitlines() if line.startswith("fairlead_connections_evicted_total"))
    assert float(evicted.split()[1]) >= 250
    open_now = next(line for line in metrics.splitlines() if line.startswith("fairlead_unauthenticated_connections"))
    assert float(open_now.split()[1]) <= 100
    assert "Traceback" not in node.log()


async def test_a_flood_of_pipelined_requests_takes_no_memory(
    gateway: GatewayProcess, dial: DialAgent, api: GatewayApi
) -> None:
    """20 MB of GETs to each port, on two connections each."""
    peer = await dial(gateway)
    await peer.greet()
    process = psutil.Process(gateway.pid)
    before = most = process.memory_info().rss

    async def flood(port: int) -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(STRANGER, 0))
        try:
            for _ in range(160):
                writer.write(GET * 1800)
                await writer.drain()
        except OSError:
            pass  # closed by the gateway
        finally:
            writer.transport.abort()

    floods = [
        asyncio.create_task(flood(place(url))) for url in (gateway.link, gateway.api, gateway.admin) for _ in range(2)
    ]
    for _ in range(10):
        await a_command_ends(api, peer)
        await asyncio.sleep(0.2)
        most = max(most, process.memory_info().rss)
    for one in floods:
        one.cancel()
    await asyncio.gather(*floods, return_exceptions=True)
    assert most - before < 20 << 20


@pytest.mark.parametrize("port", ["link", "api"])
async def test_wrong_tokens_are_delayed_and_the_right_one_is_not(
    make_gateway: MakeGateway, own_valkey: EmbeddedValkey, port: str
) -> None:
    node = make_gateway(own_valkey.url)
    number = place(getattr(node, port))
    right = AGENT if port == "link" else PLATFORM

    def request(token: str) -> bytes:
        if port == "link":
            return upgrade(token)
        return f"GET /v1/agents HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}\r\n\r\n".encode()

    well = 101 if port == "link" else 200
    loop = asyncio.get_running_loop()
    began = loop.time()
    assert (await answer(number, request("wrong-token-of-a-stranger")))[0] == 401
    seen: Counter[int] = Counter()
    for _ in range(3):
        answers = await asyncio.gather(*(answer(number, request("wrong-token-of-a-stranger")) for _ in range(40)))
        seen.update(status for status, _ in answers)
    assert set(seen) == {401, 429}
    assert seen[429] >= 80
    assert loop.time() - began > 4, "three rounds were answered late"
    status, head = await answer(number, request("wrong-token-of-a-stranger"))
    assert status == 429
    assert "retry-after: " in head.lower()
    assert (await answer(number, request(right)))[0] == well, "who shares the address has the right token"
    assert (await answer(number, request("wrong-token"), NEIGHBOUR))[0] == 401
    log = node.log()
    assert "wrong-token" not in log
    assert STRANGER in log
    assert log.count("refused a credential") < 30
    metrics = plain_get(f"{node.admin}/metrics").text
    assert f'fairlead_credentials_refused_total{{port="{port}"}} 123.0' in metrics


async def test_clients_behind_a_proxy_are_counted_separately(
    make_gateway: MakeGateway, own_valkey: EmbeddedValkey
) -> None:
    node = make_gateway(own_valkey.url, "--trusted-proxies", "127.0.0.0/24")
    number = place(node.api)

    def request(client: str) -> bytes:
        return f"GET /v1/agents HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Forwarded-For: {client}\r\n\r\n".encode()

    for _ in range(2):
        await asyncio.gather(*(answer(number, request("192.0.2.66")) for _ in range(30)))
    assert (await answer(number, request("192.0.2.66")))[0] == 429
    assert (await answer(number, request("192.0.2.1")))[0] == 401
    assert "192.0.2.66" in node.log()


async def test_one_looping_client_with_a_valid_token_keeps_nobody_out(
    make_gateway: MakeGateway, own_valkey: EmbeddedValkey
) -> None:
    node = make_gateway(own_valkey.url, "--accept-rate", "20")
    number = place(node.link)
    ended = False
    loops: Counter[int] = Counter()

    async def loop() -> None:
        while not ended:
            loops[(await answer(number, upgrade(AGENT)))[0]] += 1

    tasks = [asyncio.create_task(loop()) for _ in range(10)]
    while not loops[429]:
        await asyncio.sleep(0.05)
    others = []
    for _ in range(8):
        others.append((await answer(number, upgrade(AGENT), NEIGHBOUR))[0])
        await asyncio.sleep(0.3)
    ended = True
    await asyncio.gather(*tasks)
    assert others == [101] * 8
    assert loops[101] >= 20
    assert loops[429] < 200, "an address that does not wait is answered ever later: without that, thousands"


async def test_a_node_serves_with_few_open_files(
    make_gateway: MakeGateway, own_valkey: EmbeddedValkey, dial: DialAgent, api_of: MakeGatewayApi
) -> None:
    """1,500 connections from three addresses on all ports, with a limit of 2,048 files: some are always left."""
    node = make_gateway(own_valkey.url, files=2048)
    api, peer = api_of(node), await dial(node)
    await peer.greet()
    async with contextlib.AsyncExitStack() as stack:
        for source, url in zip((STRANGER, NEIGHBOUR, "127.0.0.68"), (node.link, node.api, node.admin), strict=True):
            await stack.enter_async_context(connections(place(url), 500, GET, source))
            await a_command_ends(api, peer)
            await (await dial(node)).greet()
            assert (await answer(place(node.admin), GET.replace(b"/ ", b"/readyz "), "127.0.0.1"))[0] == 200
        assert psutil.Process(node.pid).num_fds() < 700
    assert "Too many open files" not in node.log()


def test_the_connection_limit_is_fitted_to_the_open_files(
    make_gateway: MakeGateway, own_valkey: EmbeddedValkey
) -> None:
    node = make_gateway(own_valkey.url, files=2048)
    assert "unauthenticated_limit is lowered from 1000 to" in node.log()
