"""What the link endpoint refuses before and after the upgrade, each with its own status or close code."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
import websockets

from fairlead.store.embedded_valkey.server import EmbeddedValkey
from fairlead.wire.close_codes import CloseCode
from fairlead.wire.messages import (
    SUBPROTOCOL_JSON,
    SUBPROTOCOL_MSGPACK,
    Ack,
    Chunk,
    Hb,
    Hello,
    Welcome,
)

from support.gateway.platform_api import GatewayApi
from support.gateway.process import GatewayProcess, MakeGateway
from support.gateway.scripted_agent import DialAgent
from support.plain_http import plain_client


@pytest.fixture(scope="module", params=["epoll", "asyncio"])
def accepting(request: pytest.FixtureRequest) -> tuple[str, ...]:
    """With epoll the node accepts links without an HTTP connection, and leaves every refusal to the application."""
    return ("--link-transport", request.param)


async def refusal(gateway: GatewayProcess, path: str = "/v1/link", **options: Any) -> websockets.Response:
    options.setdefault("subprotocols", [SUBPROTOCOL_MSGPACK])
    options.setdefault("additional_headers", {"Authorization": "Bearer development-agent-token"})
    with pytest.raises(websockets.InvalidStatus) as refused:
        await websockets.connect(f"{gateway.link}{path}", proxy=None, **options)
    return refused.value.response


@pytest.mark.parametrize("offered", [["fairlead.v9.msgpack", "chat"], None])
async def test_an_unknown_subprotocol_is_refused_and_the_known_ones_are_named(
    gateway: GatewayProcess, offered: list[websockets.Subprotocol] | None
) -> None:
    answer = await refusal(gateway, subprotocols=offered)
    assert answer.status_code == 426
    assert answer.headers["Upgrade"] == "websocket"
    assert SUBPROTOCOL_MSGPACK.encode() in answer.body
    assert SUBPROTOCOL_JSON.encode() in answer.body


@pytest.mark.parametrize(
    "headers",
    [{}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic development-agent-token"},
     {"Authorization": "Bearer development-platform-token"}, {"Authorization": ""}],
)  # fmt: skip
async def test_a_missing_or_wrong_token_is_refused_before_the_upgrade(
    gateway: GatewayProcess, headers: dict[str, str]
) -> None:
    answer = await refusal(gateway, additional_headers=headers)
    assert answer.status_code == 401
    assert answer.headers["WWW-Authenticate"] == "Bearer"
    assert b"unauthorized" in answer.body


async def test_another_path_is_refused_and_the_right_one_is_named(gateway: GatewayProcess) -> None:
    answer = await refusal(gateway, "/v2/link")
    assert answer.status_code == 403
    assert b"agents connect to /v1/link" in answer.body


async def test_a_request_whose_upgrade_was_dropped_is_explained(gateway: GatewayProcess) -> None:
    async with plain_client() as http:
        answer = await http.get(f"{gateway.link.replace('ws://', 'http://')}/v1/link")
    assert answer.status_code == 426
    assert answer.headers["Upgrade"] == "websocket"
    assert "Sec-WebSocket-Protocol" not in answer.headers
    assert "a proxy in between has removed them" in answer.text


async def test_a_full_node_refuses_with_retry_after(
    make_gateway: MakeGateway, own_valkey: EmbeddedValkey, dial: DialAgent
) -> None:
    small = make_gateway(own_valkey.url, "--capacity", "1")
    await (await dial(small)).greet()
    answer = await refusal(small)
    assert answer.status_code == 503
    assert 1 <= int(answer.headers["Retry-After"]) <= 60


async def test_too_many_connections_at_once_are_refused_with_retry_after(
    make_gateway: MakeGateway, own_valkey: EmbeddedValkey, dial: DialAgent
) -> None:
    slow = make_gateway(own_valkey.url, "--accept-rate", "1")
    for _ in range(2):
        await dial(slow)
    answer = await refusal(slow)
    assert answer.status_code == 429
    assert 1 <= int(answer.headers["Retry-After"]) <= 60


@pytest.mark.parametrize("agent", ["a{b}", "two words", "", "-dash", "ä", "x" * 129, "a:b", "a/b", "a\n"])
async def test_an_illegal_agent_id_is_refused(gateway: GatewayProcess, dial: DialAgent, agent: str) -> None:
    peer = await dial(gateway)
    await peer.send(Hello(agent=agent, boot="b", conn=1))
    assert await peer.close_code() == CloseCode.PROTOCOL


async def test_a_late_hello_closes_the_link(gateway: GatewayProcess, dial: DialAgent) -> None:
    assert await (await dial(gateway)).close_code() == CloseCode.SILENT


async def test_a_second_hello_closes_the_link(gateway: GatewayProcess, dial: DialAgent) -> None:
    peer = await dial(gateway)
    await peer.greet()
    await peer.send(Hello(agent=peer.agent, boot="b", conn=1))
    assert await peer.close_code() == CloseCode.PROTOCOL


async def test_any_message_before_hello_closes_the_link(gateway: GatewayProcess, dial: DialAgent) -> None:
    peer = await dial(gateway)
    await peer.send(Ack(id="x"))
    assert await peer.close_code() == CloseCode.PROTOCOL


async def test_text_on_a_binary_link_and_binary_on_a_text_link_are_refused(
    gateway: GatewayProcess, dial: DialAgent
) -> None:
    binary = await dial(gateway)
    await binary.greet()
    await binary.socket.send('{"t":3}')
    text = await dial(gateway, subprotocol=SUBPROTOCOL_JSON)
    await text.greet()
    await text.socket.send(b"\x81\xa1t\x03")
    assert await binary.close_code() == CloseCode.ENCODING
    assert await text.close_code() == CloseCode.ENCODING


async def test_both_encodings_carry_the_same_messages(gateway: GatewayProcess, dial: DialAgent) -> None:
    for subprotocol in (SUBPROTOCOL_MSGPACK, SUBPROTOCOL_JSON):
        peer = await dial(gateway, subprotocol=subprotocol)
        assert isinstance(await peer.greet(), Welcome)
        await peer.send(Hb(ts=77))
        assert (await peer.expect(Hb)).echo == 77


async def test_a_message_above_the_limit_closes_the_link(gateway: GatewayProcess, dial: DialAgent) -> None:
    peer = await dial(gateway)
    await peer.greet()
    await peer.socket.send(b"\x81\xa1t" + bytes(1 << 20))
    assert await peer.close_code() == CloseCode.FRAME_TOO_BIG


async def test_a_chunk_above_the_limit_closes_the_link(
    gateway: GatewayProcess, dial: DialAgent, api: GatewayApi
) -> None:
    peer = await dial(gateway)
    await peer.greet()
    command = await api.start(peer.agent)
    await peer.command()
    await peer.send(Chunk(id=command, n=0, kind="stdout", payload=bytes((64 << 10) + 1)))
    assert await peer.close_code() == CloseCode.TOO_BIG


async def test_chunks_out_of_order_close_the_link(gateway: GatewayProcess, dial: DialAgent, api: GatewayApi) -> None:
    peer = await dial(gateway)
    await peer.greet()
    command = await api.start(peer.agent)
    await peer.command()
    await peer.send_output(command, 0, "first")
    await peer.send_output(command, 2, "third")
    assert await peer.close_code() == CloseCode.PROTOCOL


async def test_more_output_than_the_credit_closes_the_link(
    gateway: GatewayProcess, dial: DialAgent, api: GatewayApi
) -> None:
    peer = await dial(gateway)
    await peer.greet()
    command = await api.start(peer.agent)
    credit = (await peer.command()).credit
    for n in range(credit // 60_000 * 40):
        try:
            await peer.send(Chunk(id=command, n=n, kind="stdout", payload=bytes(60_000)))
        except websockets.ConnectionClosed:
            break
    code = await peer.close_code()
    assert code in (CloseCode.PROTOCOL, 1006)  # 1006: our unread flood made the kernel reset the connection


@pytest.mark.parametrize("kind", [0, 2, 4, 15, 63])
async def test_an_unknown_type_below_64_closes_the_link(gateway: GatewayProcess, dial: DialAgent, kind: int) -> None:
    peer = await dial(gateway, subprotocol=SUBPROTOCOL_JSON)
    await peer.greet()
    await peer.socket.send(f'{{"t":{kind}}}')
    assert await peer.close_code() == CloseCode.PROTOCOL


async def test_unknown_types_from_64_and_unknown_keys_are_ignored(gateway: GatewayProcess, dial: DialAgent) -> None:
    peer = await dial(gateway, subprotocol=SUBPROTOCOL_JSON)
    await peer.greet()
    await peer.socket.send('{"t":64,"new":{"x":[1]}}')
    await peer.socket.send('{"t":3,"ts":5,"novelty":true}')
    assert (await peer.expect(Hb)).echo == 5


@pytest.mark.parametrize(
    ("subprotocol", "data"),
    [(SUBPROTOCOL_JSON, '{"t":3,"x":' + "[" * 100_000 + "]" * 100_000 + "}"),
     (SUBPROTOCOL_MSGPACK, b"\x82\xa1t\x03\xa1x" + b"\x91" * 100_000 + b"\xc0")],
)  # fmt: skip
async def test_a_hundred_thousand_nested_arrays_close_the_link(
    gateway: GatewayProcess, dial: DialAgent, subprotocol: str, data: str | bytes
) -> None:
    peer = await dial(gateway, subprotocol=subprotocol)
    await peer.greet()
    await peer.socket.send(data)
    assert await peer.close_code() == CloseCode.PROTOCOL
    other = await dial(gateway)
    assert isinstance(await other.greet(), Welcome)


async def test_connections_that_never_complete_a_request_are_closed(gateway: GatewayProcess) -> None:
    """One sends nothing, one sends a byte a second: both are dropped after 10 s."""

    async def lifetime(drip: bool) -> float:
        host, _, port = gateway.link.removeprefix("ws://").rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        loop = asyncio.get_running_loop()
        started = loop.time()
        gone = asyncio.ensure_future(reader.read())
        head = b"GET /v1/link HTTP/1.1\r\nHost: x\r\n" + b"X-Slow: " + b"y" * 100
        async with asyncio.timeout(30):
            for i in range(len(head)):
                if drip:
                    writer.write(head[i : i + 1])
                done, _ = await asyncio.wait({gone}, timeout=1.0)
                if done:
                    break
        writer.close()
        return loop.time() - started

    silent, dripping = await asyncio.gather(lifetime(False), lifetime(True))
    assert silent >= 9
    assert dripping >= 9


async def test_errors_of_agents_may_contain_integers_of_any_size(
    gateway: GatewayProcess, api: GatewayApi, dial: DialAgent
) -> None:
    peer = await dial(gateway, subprotocol="fairlead.v1.json")
    await peer.greet()
    command = await api.start(peer.agent)
    await peer.command()
    error = {"code": "big", "details": {"n": 10**30}}
    await peer.socket.send(json.dumps({"t": 7, "id": command, "total": 0, "state": "error", "error": error}))
    assert (await api.end(command))["error"]["details"] == {"n": str(10**30)}
