"""Requests that a proxy may read differently than we do are refused, with and without an upgrade."""

from __future__ import annotations

import pytest
from starlette.types import Receive, Scope, Send

from support.carrier.servers import Dial, Serve

pytestmark = pytest.mark.asyncio(loop_scope="module")


UPGRADE = (
    b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.accept"})
    elif scope["type"] == "http":
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})


HEADS = {
    b"GET /v1/%6cink HTTP/1.1\r\nHost: t\r\n": 400,
    b"GET /v1/%2e%2E/x HTTP/1.1\r\nHost: t\r\n": 400,
    b"GET /v1%2Flink HTTP/1.1\r\nHost: t\r\n": 400,
    b"GET /v1%5clink HTTP/1.1\r\nHost: t\r\n": 400,
    b"GET /v1/link HTTP/1.1\r\n": 400,
    b"GET /v1/link HTTP/1.1\r\nHost:\r\n": 400,
    b"GET /v1/link HTTP/1.1\r\nHost: t\r\nHost: u\r\n": 400,
    b"GET /v1/link HTTP/1.1\r\nHost: t\r\nHost: t\r\n": 400,
    b"GET /v1/link HTTP/1.1\r\nHost: a b\r\n": 400,
    b"GET /v1/link HTTP/1.1\r\nHost: user@t\r\n": 400,
    b"GET /v1/link HTTP/1.1\r\nHost: t/path\r\n": 400,
    b"GET http://other/v1/link HTTP/1.1\r\nHost: t\r\n": 400,
    b"GET v1/link HTTP/1.1\r\nHost: t\r\n": 400,
    b"GET /v1/link HTTP/2.0\r\nHost: t\r\n": 505,
    b"GET /v1/link HTTP/1.1\r\nHost: t\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n": 400,
    b"GET /v1/link HTTP/1.1\r\nHost: t\r\nContent-Length: 5\r\nContent-Length: 5\r\n": 400,
    b"GET /v1/link HTTP/1.1\r\nHost: t\r\n" + b"X: y\r\n" * 120: 431,
    b"GET /v1/link HTTP/1.1\r\nHost: t\r\nX: " + b"x" * 120_000 + b"\r\n": 431,
    b"CONNECT t:80 HTTP/1.1\r\nHost: t\r\n": 400,
    b"\r\n" * 3 + b"GET /v1/link HTTP/1.1\r\nHost: t\r\n": 400,
}


@pytest.mark.parametrize("upgrade", [b"", UPGRADE], ids=["request", "upgrade"])
@pytest.mark.parametrize("head", HEADS, ids=lambda head: head[:60].decode().replace("\r\n", "|"))
async def test_invalid_request_heads_are_refused(
    serve: Serve, dial: Dial, head: bytes, upgrade: bytes, no_errors: None
) -> None:
    raw = await dial(await serve(app), upgrade=False)
    raw.write(head + upgrade + b"\r\n")
    status = await raw.answer()
    assert status in (HEADS[head], 400)  # the parser refuses some of them itself
    assert raw.headers["connection"] == "close"


@pytest.mark.parametrize(
    "head",
    [
        b"GET /v1/link HTTP/1.0\r\nHost: t\r\n",
        b"GET /v1/link HTTP/1.1\r\nHost: t\r\nContent-Length: 5\r\n",
        b"GET /v1/link HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n",
    ],
)
async def test_a_head_with_an_invalid_upgrade_is_400(serve: Serve, dial: Dial, head: bytes, no_errors: None) -> None:
    raw = await dial(await serve(app), upgrade=False)
    raw.write(head + UPGRADE + b"\r\nhello")
    assert await raw.answer() == 400


@pytest.mark.parametrize(
    "head",
    [
        b"GET /livez HTTP/1.0\r\n",
        b"GET /livez HTTP/1.1\r\nHost: [::1]:8082\r\n",
        b"GET /livez HTTP/1.1\r\nHost: under_score.example.com:65535\r\n",
        b"GET http://t/livez HTTP/1.1\r\nHost: t\r\n",
        b"GET /a%20b%25c?x=%61%2F HTTP/1.1\r\nHost: t\r\n",
        b"\r\n\r\nGET /livez HTTP/1.1\r\nHost: t\r\n",
        b"GET /livez HTTP/1.1\r\nHost: t\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n",
    ],
)
async def test_valid_request_heads_are_served(serve: Serve, dial: Dial, head: bytes, no_errors: None) -> None:
    raw = await dial(await serve(app), upgrade=False)
    raw.write(head + b"\r\n")
    assert await raw.answer() == 200


@pytest.mark.parametrize("data", [b"\x16\x03\x01\x02\x00", b"get / HTTP/1.1\r\n\r\n", b"GET / HTTP/1.1\nHost: t\n\n"])
async def test_data_that_is_not_http_is_refused_at_once(serve: Serve, dial: Dial, data: bytes, no_errors: None) -> None:
    raw = await dial(await serve(app, request_timeout=60.0), upgrade=False)
    raw.write(data)
    assert await raw.answer() == 400
