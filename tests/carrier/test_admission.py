"""The limit for connections without a valid token: a new connection is accepted, the oldest is closed, and connections
that have shown a token are kept."""

from __future__ import annotations

import asyncio
import logging
from functools import partial

import pytest
from starlette.types import Receive, Scope, Send

from fairlead.carrier.http_server.admission import Admission, authenticated

from support.carrier.raw_client import RawClient
from support.carrier.servers import Dial, Serve
from support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    """Accepts each upgrade, and takes requests for /known as having a valid token."""
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.accept"})
        await receive()
    elif scope["type"] == "http":
        if scope["path"] == "/known":
            authenticated(scope)
        body = (scope["client"][0]).encode()
        headers = [(b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})


def get(path: str = "/", client: str = "") -> bytes:
    forwarded = f"X-Forwarded-For: {client}\r\n" if client else ""
    return f"GET {path} HTTP/1.1\r\nHost: t\r\n{forwarded}\r\n".encode()


async def answered(raw: RawClient) -> bytes:
    assert await raw.answer() == 200
    body: bytes = await raw.reader.readexactly(int(raw.headers["content-length"]))
    return body


async def closed(raw: RawClient) -> bool:
    try:
        async with asyncio.timeout(20):
            return bool(await raw.reader.read() == b"")
    except ConnectionResetError:
        return True


async def test_at_the_limit_the_oldest_connection_is_closed(
    serve: Serve, dial: Dial, caplog: pytest.LogCaptureFixture
) -> None:
    admission = Admission(4, per_address=4)
    port = await serve(app, admission=admission, request_timeout=30.0)
    known, link = await dial(port, upgrade=False), await dial(port)
    known.write(get("/known"))
    await answered(known)
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        silent = [await dial(port, upgrade=False) for _ in range(10)]
        await until(lambda: admission.evicted == 6)
    for one in silent[:6]:
        assert await closed(one)
    for one in (*silent[6:], known):
        one.write(get("/known"))
        await answered(one)
    link.send(0x81, b"")
    assert len(admission) == 0
    lines = [record.getMessage() for record in caplog.records if "to make room" in record.getMessage()]
    assert len(lines) == 1, "one line at once, the others of its second in another"
    assert "127.0.0.1" in lines[0]


async def test_each_address_has_its_own_limit(serve: Serve, dial: Dial) -> None:
    admission = Admission(100, per_address=3)
    port = await serve(app, admission=admission, request_timeout=30.0)
    silent = [await dial(port, upgrade=False) for _ in range(5)]
    await until(lambda: admission.evicted == 2)
    assert await closed(silent[0])
    assert await closed(silent[1])
    assert len(admission) == 3


async def test_clients_of_a_trusted_proxy_are_limited_and_the_proxy_is_not(serve: Serve, dial: Dial) -> None:
    admission = Admission(100, per_address=2)
    waiting: list[asyncio.Event] = []

    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] == "/slow":
            waiting.append(asyncio.Event())
            await waiting[-1].wait()
        await app(scope, receive, send)

    port = await serve(slow, admission=admission, trusted_proxies=["127.0.0.0/8"], request_timeout=30.0)
    pool = [await dial(port, upgrade=False) for _ in range(6)]
    await until(lambda: len(admission) == 6)
    for _ in range(20):  # more requests than an unknown client may send: they come from many clients
        pool[0].write(get(client="192.0.2.1"))
        assert await answered(pool[0]) == b"192.0.2.1"
    for n, one in enumerate(pool[:4]):
        one.write(get("/slow", client="192.0.2.66"))
        await until(partial(lambda before: len(waiting) > before, n))
    assert admission.evicted == 2
    pool[4].write(get("/slow", client="192.0.2.1"))
    await until(lambda: len(waiting) == 5)
    assert admission.evicted == 2
    for event in waiting:
        event.set()
    for one in pool[2:5]:
        await answered(one)
    await until(lambda: len(admission) == 4)
    assert await closed(pool[0])


async def test_only_a_trusted_proxy_may_name_a_client(serve: Serve, dial: Dial) -> None:
    raw = await dial(await serve(app, trusted_proxies=["192.0.2.0/24"]), upgrade=False)
    raw.write(get(client="203.0.113.9"))
    assert await answered(raw) == b"127.0.0.1"


async def test_refused_and_lost_connections_are_not_counted_any_more(serve: Serve, dial: Dial) -> None:
    async def deny(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close"})

    admission = Admission()
    port = await serve(deny, admission=admission)
    raw = await dial(port, upgrade=False)
    raw.write(raw.request())
    assert await raw.answer() == 403
    (await dial(port, upgrade=False)).end()
    await until(lambda: len(admission) == 0)
