"""Upgrades that are refused: the HTTP the client sees, and no error in the log."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import WebSocketRoute
from starlette.types import Message, Receive, Scope, Send
from starlette.websockets import WebSocket

from fairlead.carrier.timer_wheel import TimerWheel

from support.carrier.raw_client import RawClient
from support.carrier.servers import Dial, Serve
from support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def close_first(websocket: WebSocket) -> None:
    await websocket.close()


async def deny(websocket: WebSocket) -> None:
    status = int(websocket.query_params["status"])
    headers = {
        "retry-after": "7",
        "x-why": "test",
        "connection": "keep-alive",
        "transfer-encoding": "chunked",
    }
    await websocket.send_denial_response(JSONResponse({"error": "no"}, status, headers))


async def deny_in_parts(websocket: WebSocket) -> None:
    async def parts() -> AsyncIterator[bytes]:
        for number in range(3):
            yield b"%d" % number

    await websocket.send_denial_response(StreamingResponse(parts(), 401))


async def raise_http(websocket: WebSocket) -> None:
    raise HTTPException(401, "no token", {"www-authenticate": "Bearer"})


async def crash(websocket: WebSocket) -> None:
    raise RuntimeError("on purpose")


async def silent(websocket: WebSocket) -> None:
    return


async def split_header(websocket: WebSocket) -> None:
    await websocket.send_denial_response(Response(b"", 403, {"x-evil": "a\r\nb: c"}))


async def split_accept(websocket: WebSocket) -> None:
    await websocket.accept(headers=[(b"x-evil", b"a\r\nb: c")])


async def choose(websocket: WebSocket) -> None:
    await websocket.accept(subprotocol=websocket.scope["subprotocols"][-1], headers=[(b"x-mine", b"1")])
    await websocket.close(4000)


ROUTES = [close_first, deny, deny_in_parts, raise_http, crash, silent, split_header, split_accept, choose]
APP = Starlette(routes=[WebSocketRoute(f"/{route.__name__}", route) for route in ROUTES])


async def refused(raw: RawClient, status: int) -> bytes:
    """The answer has `status`, a body of the length it names, and ends the connection."""
    assert await raw.answer() == status
    body: bytes = await raw.body()
    assert len(body) == int(raw.headers["content-length"])
    assert "close" in raw.headers["connection"]
    assert "transfer-encoding" not in raw.headers
    return body


async def test_closing_before_accepting_is_403(serve: Serve, dial: Dial, no_errors: None) -> None:
    raw = await dial(await serve(APP), upgrade=False)
    raw.write(raw.request("/close_first"))
    assert await refused(raw, 403) == b""


async def test_no_route_is_403(serve: Serve, dial: Dial, no_errors: None) -> None:
    raw = await dial(await serve(APP), upgrade=False)
    raw.write(raw.request("/nowhere"))
    await refused(raw, 403)


@pytest.mark.parametrize("status", [400, 401, 403, 409, 426, 429, 503])
async def test_a_denial_response_is_sent(serve: Serve, dial: Dial, status: int, no_errors: None) -> None:
    raw = await dial(await serve(APP), upgrade=False)
    raw.write(raw.request(f"/deny?status={status}"))
    assert await refused(raw, status) == b'{"error":"no"}'
    assert raw.headers["retry-after"] == "7"
    assert raw.headers["x-why"] == "test"
    assert raw.headers["content-type"] == "application/json"
    assert ("upgrade" in raw.headers) is (status == 426)


async def test_a_denial_response_may_come_in_parts(serve: Serve, dial: Dial, no_errors: None) -> None:
    raw = await dial(await serve(APP), upgrade=False)
    raw.write(raw.request("/deny_in_parts"))
    assert await refused(raw, 401) == b"012"


async def test_a_raised_http_exception_is_the_answer(serve: Serve, dial: Dial, no_errors: None) -> None:
    raw = await dial(await serve(APP), upgrade=False)
    raw.write(raw.request("/raise_http"))
    assert await refused(raw, 401) == b"no token"
    assert raw.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize("version", ["8", "12", "14", "thirteen", ""])
async def test_another_websocket_version_is_426_and_names_13(
    serve: Serve, dial: Dial, version: str, no_errors: None
) -> None:
    raw = await dial(await serve(APP), upgrade=False)
    raw.write(raw.request("/choose", Sec_WebSocket_Version=version))
    await refused(raw, 426)
    assert raw.headers["sec-websocket-version"] == "13"
    assert raw.headers["upgrade"] == "websocket"
    assert "upgrade" in raw.headers["connection"]


@pytest.mark.parametrize("key", ["", "short", "x" * 24, "dGhlIHNhbXBsZSBub25jZQ==, dGhlIHNhbXBsZSBub25jZQ=="])
async def test_a_bad_key_is_400(serve: Serve, dial: Dial, key: str, no_errors: None) -> None:
    raw = await dial(await serve(APP), upgrade=False)
    raw.write(raw.request("/choose", Sec_WebSocket_Key=key))
    await refused(raw, 400)


async def test_a_post_is_400(serve: Serve, dial: Dial, no_errors: None) -> None:
    raw = await dial(await serve(APP), upgrade=False)
    raw.write(raw.request("/choose").replace(b"GET", b"POST"))
    await refused(raw, 400)


@pytest.mark.parametrize(
    ("route", "logged"),
    [
        ("crash", "on purpose"),
        ("silent", "without an answer to /silent"),
        ("split_header", "control character in the response header"),
        ("split_accept", "control character in the response header"),
    ],
)
async def test_an_application_that_fails_is_500_and_logged(
    serve: Serve, dial: Dial, route: str, logged: str, caplog: pytest.LogCaptureFixture
) -> None:
    raw = await dial(await serve(APP), upgrade=False)
    raw.write(raw.request(f"/{route}"))
    await refused(raw, 500)
    assert logged in caplog.text


async def test_an_accept_sends_subprotocol_and_headers(serve: Serve, dial: Dial, no_errors: None) -> None:
    raw = await dial(await serve(APP), path="/choose", Sec_WebSocket_Protocol="one, two,three")
    assert raw.headers["sec-websocket-protocol"] == "three"
    assert raw.headers["x-mine"] == "1"
    assert "sec-websocket-extensions" not in raw.headers
    assert (await raw.expect_frame())[1] == (4000).to_bytes(2, "big")


async def test_an_application_gets_the_asgi_scope(serve: Serve, dial: Dial) -> None:
    seen: list[Scope] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            seen.append(dict(scope))
            await send({"type": "websocket.close"})

    raw = await dial(await serve(app), upgrade=False)
    raw.write(raw.request("/a%20b/%C3%A9?x=1&y=%20", X_Twice="1", Sec_WebSocket_Protocol="p"))
    await refused(raw, 403)
    scope = seen[0]
    assert scope["path"] == "/a b/é"
    assert scope["raw_path"] == b"/a%20b/%C3%A9"
    assert scope["query_string"] == b"x=1&y=%20"
    assert (b"x-twice", b"1") in scope["headers"]
    assert scope["subprotocols"] == ["p"]
    assert scope["scheme"] == "ws"
    assert scope["http_version"] == "1.1"
    assert scope["client"][0] == scope["server"][0] == "127.0.0.1"
    assert set(scope["extensions"]) == {"websocket.http.response", "fairlead.attach", "fairlead.peer"}


async def test_an_application_is_told_when_a_client_disconnects_before_the_answer(
    serve: Serve, dial: Dial, no_errors: None
) -> None:
    events: list[Message] = []
    sent: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            events.append(await receive())
            events.append(await receive())
            try:
                await send({"type": "websocket.accept"})
            except OSError as error:
                sent.append(type(error).__name__)
                raise

    raw = await dial(await serve(app), upgrade=False)
    raw.write(raw.request())
    await until(lambda: events)
    raw.end()
    await until(lambda: sent)
    assert events == [
        {"type": "websocket.connect"},
        {"type": "websocket.disconnect", "code": 1006, "reason": ""},
    ]
    assert sent == ["ClientDisconnected"]


async def test_a_stopping_server_answers_an_undecided_upgrade_with_503(
    timer_wheel: TimerWheel, dial: Dial, no_errors: None
) -> None:
    import asyncio

    from fairlead.carrier.http_server.uvicorn_server import Server, config

    deciding = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            deciding.set()
            await receive()
            await receive()

    server = Server(config(app, timer_wheel=timer_wheel, stop_timeout=2), own_signals=False)
    running = asyncio.create_task(server.serve())
    await until(lambda: server.started)
    raw = await dial(server.address[1], upgrade=False)
    raw.write(raw.request())
    await asyncio.wait_for(deciding.wait(), 20)
    server.should_exit = True
    await refused(raw, 503)
    assert raw.headers["retry-after"] == "1"
    await asyncio.wait_for(running, 20)
