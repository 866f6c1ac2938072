"""HTTP requests on the link port: the deadline and the size limit of their heads, and what must not be cut off."""

from __future__ import annotations

import asyncio

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from fairlead.carrier.timer_wheel import TimerWheel

from support.carrier.raw_client import RawClient
from support.carrier.servers import Dial, EchoApp, Serve
from support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")


TIMEOUT = 1.5
"""Seconds: longer than a busy machine lets a process wait, because requests that are in time must arrive within it."""


async def slow(request: Request) -> PlainTextResponse:
    await asyncio.sleep(3 * TIMEOUT)  # the application's own time, longer than a head may take
    return PlainTextResponse("slow")


async def length(request: Request) -> PlainTextResponse:
    return PlainTextResponse(str(len(await request.body())))


APP = Starlette(routes=[Route("/slow", slow), Route("/length", length, methods=["GET", "POST"])])
GET = b"GET /length HTTP/1.1\r\nHost: t\r\n\r\n"


async def ends(raw: RawClient, *, within: float) -> float:
    """Seconds until the server ends the connection."""
    began = asyncio.get_running_loop().time()
    try:
        await asyncio.wait_for(raw.reader.read(), within)
    except ConnectionResetError:
        pass
    return asyncio.get_running_loop().time() - began


async def test_a_connection_that_sends_nothing_is_closed(serve: Serve, dial: Dial) -> None:
    raw = await dial(await serve(APP, request_timeout=TIMEOUT), upgrade=False)
    assert await ends(raw, within=20) > TIMEOUT - 0.05


async def test_a_request_that_arrives_too_slowly_is_closed(serve: Serve, dial: Dial) -> None:
    """A byte now and then is no progress: the time runs from the connection, not from the last byte."""
    raw = await dial(await serve(APP, request_timeout=TIMEOUT), upgrade=False)

    async def drip() -> None:
        for byte in raw.request():
            raw.write(bytes([byte]))
            await asyncio.sleep(TIMEOUT / 8)

    dripping = asyncio.create_task(drip())
    assert await ends(raw, within=20) > TIMEOUT - 0.05
    dripping.cancel()


async def test_a_slow_application_is_waited_for(serve: Serve, dial: Dial) -> None:
    raw = await dial(await serve(APP, request_timeout=TIMEOUT), upgrade=False)
    raw.write(b"GET /slow HTTP/1.1\r\nHost: t\r\n\r\n")
    assert await raw.answer() == 200
    assert await raw.reader.readexactly(4) == b"slow"


async def test_a_slow_body_is_left_to_the_application(serve: Serve, dial: Dial) -> None:
    raw = await dial(await serve(APP, request_timeout=TIMEOUT), upgrade=False)
    raw.write(b"POST /length HTTP/1.1\r\nHost: t\r\nContent-Length: 8\r\n\r\n")
    for _ in range(8):
        await asyncio.sleep(TIMEOUT / 4)
        raw.write(b"x")
    assert await raw.answer() == 200
    assert await raw.reader.readexactly(1) == b"8"


async def test_an_idle_kept_alive_connection_has_its_own_timeout(serve: Serve, dial: Dial) -> None:
    raw = await dial(await serve(APP, request_timeout=TIMEOUT), upgrade=False)
    for _ in range(2):
        raw.write(GET)
        assert await raw.answer() == 200
        assert await raw.reader.readexactly(1) == b"0"
        await asyncio.sleep(2 * TIMEOUT)  # a kept-alive connection has 75 s
    raw.write(GET)
    assert await raw.answer() == 200


@pytest.mark.parametrize("beginning", [GET[:20], b"\r"], ids=["a part of a head", "a lone CR"])
async def test_a_second_request_that_arrives_too_slowly_is_closed(serve: Serve, dial: Dial, beginning: bytes) -> None:
    raw = await dial(await serve(APP, request_timeout=TIMEOUT), upgrade=False)
    raw.write(GET)
    assert await raw.answer() == 200
    await raw.reader.readexactly(1)
    raw.write(beginning)
    assert await ends(raw, within=20) > TIMEOUT - 0.05


async def test_an_endless_head_is_refused(serve: Serve, dial: Dial) -> None:
    raw = await dial(await serve(APP, request_timeout=30.0), upgrade=False)
    raw.write(b"GET / HTTP/1.1\r\nX: ")
    for _ in range(64):
        raw.write(b"x" * 1024)
        await asyncio.sleep(0)
    assert await raw.answer() == 431
    await ends(raw, within=20)


async def test_a_large_body_does_not_count_as_a_head(serve: Serve, dial: Dial) -> None:
    raw = await dial(await serve(APP, request_timeout=TIMEOUT), upgrade=False)
    raw.write(b"POST /length HTTP/1.1\r\nHost: t\r\nContent-Length: 300000\r\n\r\n" + bytes(300_000))
    assert await raw.answer() == 200
    assert await raw.reader.readexactly(6) == b"300000"


async def test_an_open_websocket_is_never_late(serve: Serve, dial: Dial, plain_echo_app: EchoApp) -> None:
    raw = await dial(await serve(plain_echo_app(), request_timeout=TIMEOUT))
    await asyncio.sleep(2 * TIMEOUT)
    raw.send(0x82, b"still here")
    assert await raw.frame() == (0x82, b"still here")


async def test_garbage_is_400(serve: Serve, dial: Dial) -> None:
    raw = await dial(await serve(APP), upgrade=False)
    raw.write(b"\x16\x03\x01 this is TLS\r\n\r\n")
    assert await raw.answer() == 400


async def test_a_closed_connection_leaves_no_timer(serve: Serve, dial: Dial, timer_wheel: TimerWheel) -> None:
    """A closed connection is removed from the queue of deadlines."""
    port = await serve(APP, request_timeout=7.0)
    for number in range(5):
        raw = await dial(port, upgrade=False)
        if number % 2:
            raw.write(GET)
            await raw.answer()
        raw.end()
    await until(lambda: len(timer_wheel.timeout_queue(7.0)) == 0)
