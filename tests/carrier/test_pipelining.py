"""Requests that are sent ahead of their answers: one at a time, in order, and at most a read of them in memory."""

from __future__ import annotations

import asyncio

import pytest
from starlette.types import Receive, Scope, Send

from fairlead.carrier.http_server.admission import Admission, authenticated
from fairlead.carrier.http_server.request.body import MAX_CODED
from fairlead.carrier.http_server.uvicorn_server import Server, ServerConfig, config
from fairlead.carrier.timer_wheel import TimerWheel

from support.carrier.raw_client import RawClient
from support.carrier.servers import Dial, Serve
from support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")


class CountingApp:
    """Answers each request with its path and body, and counts how many it answers at once. A path below /known counts
    as a valid token."""

    def __init__(self) -> None:
        self.running = self.most = self.answered = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        if scope["path"].startswith("/known"):
            authenticated(scope)
        self.running += 1
        self.most = max(self.most, self.running)
        body = b""
        more = scope["path"] != "/known/unread"
        while more:
            event = await receive()
            body += event.get("body", b"")
            more = event.get("more_body", False)
        await asyncio.sleep(0)
        answer = scope["path"].encode() + b" " + body
        headers = [(b"content-length", b"%d" % len(answer))]
        self.running -= 1
        self.answered += 1
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": answer})


def get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: t\r\n\r\n".encode()


async def answers(raw: RawClient, count: int) -> list[bytes]:
    found = []
    for _ in range(count):
        assert await raw.answer() == 200
        found.append(await raw.reader.readexactly(int(raw.headers["content-length"])))
    return found


async def test_all_answers_come_in_order_one_request_at_a_time(serve: Serve, dial: Dial) -> None:
    app = CountingApp()
    raw = await dial(await serve(app), upgrade=False)
    raw.write(b"".join(get(f"/known/{n}") for n in range(2000)))
    assert await answers(raw, 2000) == [b"/known/%d " % n for n in range(2000)]
    assert app.most == 1


@pytest.mark.parametrize("piece", [1, 7, 50, 4096])
async def test_heads_and_bodies_may_arrive_in_pieces_of_any_size(serve: Serve, dial: Dial, piece: int) -> None:
    raw = await dial(await serve(CountingApp()), upgrade=False)
    request = b"POST /known HTTP/1.1\r\nHost: t\r\nContent-Length: 20\r\n\r\n" + b"GET / HTTP/1.1\r\n\r\nxx"
    sent = (request + get("/known/2") + b"\r\n\r\n") * 3
    for start in range(0, len(sent), piece):
        raw.write(sent[start : start + piece])
        await asyncio.sleep(0)
    expected = [b"/known GET / HTTP/1.1\r\n\r\nxx", b"/known/2 "] * 3
    assert await answers(raw, 6) == expected


async def test_a_request_may_follow_a_chunked_body(serve: Serve, dial: Dial) -> None:
    raw = await dial(await serve(CountingApp()), upgrade=False)
    for _ in range(2):
        raw.write(b"POST /known HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n")
        assert await answers(raw, 1) == [b"/known abc"]


CODED = b"POST %s HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n"


async def test_a_trailer_is_not_a_header(serve: Serve, dial: Dial) -> None:
    """A proxy that looks at headers has not seen it; here it would even be a second Host."""
    seen: list[list[bytes]] = []
    counting = CountingApp()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await asyncio.sleep(0)  # all of the request has come by now
        seen.append([name for name, _ in scope.get("headers", ())])
        await counting(scope, receive, send)

    raw = await dial(await serve(app), upgrade=False)
    for _ in range(2):
        raw.write(CODED % b"/known" + b"3\r\nabc\r\n0\r\nAuthorization: Bearer x\r\nHost: u\r\n\r\n")
        assert await answers(raw, 1) == [b"/known abc"]
    assert [names for names in seen if names] == [[b"host", b"transfer-encoding"]] * 2


@pytest.mark.parametrize("piece", [b"1\r\nx\r\n" * 40_000, b"1" + b";a=b" * 60_000, b"0\r\na: " + b"x" * 250_000])
async def test_a_chunked_body_without_a_token_is_read_only_a_little(serve: Serve, dial: Dial, piece: bytes) -> None:
    """Small chunks and long trailers cost much more than their bytes. The answer is sent, and the connection is
    closed."""
    got: list[int] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        await asyncio.sleep(0.05)  # a refusal is held back; meanwhile the body is read ahead
        got.append(len((await receive())["body"]) if piece.startswith(b"1\r") else 0)
        await send({"type": "http.response.start", "status": 401, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    raw = await dial(await serve(app), upgrade=False)
    raw.write(CODED % b"/x" + piece)
    assert await raw.answer() == 401
    raw.write(piece)
    assert await raw.reader.read() == b""
    assert got[0] <= MAX_CODED // 6 + 1


async def test_a_long_chunked_body_with_a_token_is_read(serve: Serve, dial: Dial) -> None:
    raw = await dial(await serve(CountingApp()), upgrade=False)
    for _ in range(2):
        raw.write(CODED % b"/known" + (b"3e8\r\n" + b"x" * 1000 + b"\r\n") * 300 + b"0\r\n\r\n")
        assert await answers(raw, 1) == [b"/known " + b"x" * 300_000]


async def test_a_request_pipelined_behind_a_chunked_body_is_asked_to_retry(serve: Serve, dial: Dial) -> None:
    """Where a chunked body ends only the parser knows; RFC 9112 §9.3.2 lets a server close, and a client send again."""
    app = CountingApp()
    raw = await dial(await serve(app), upgrade=False)
    chunked = b"POST /known HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
    raw.write(chunked + get("/known/2") * 500)
    assert await answers(raw, 1) == [b"/known abc"]
    assert "close" in raw.headers["connection"]
    assert app.answered == 1


async def test_an_answer_may_be_sent_before_the_body_ends(serve: Serve, dial: Dial) -> None:
    raw = await dial(await serve(CountingApp()), upgrade=False)
    raw.write(b"POST /known/unread HTTP/1.1\r\nHost: t\r\nContent-Length: 100000\r\n\r\n")
    assert await answers(raw, 1) == [b"/known/unread "]
    raw.write(bytes(100_000) + get("/known"))
    assert await answers(raw, 1) == [b"/known "]


async def test_a_body_that_continues_after_its_answer_is_cut_off(serve: Serve, dial: Dial) -> None:
    raw = await dial(await serve(CountingApp(), request_timeout=0.4), upgrade=False)
    raw.write(b"POST /known/unread HTTP/1.1\r\nHost: t\r\nContent-Length: 1000000000\r\n\r\n")
    await answers(raw, 1)

    async def go_on() -> None:
        while True:
            raw.write(bytes(1 << 16))
            await raw.writer.drain()
            await asyncio.sleep(0.001)

    with pytest.raises(ConnectionError):
        await asyncio.wait_for(go_on(), 20)
    dripping = await dial(await serve(CountingApp(), request_timeout=0.4), upgrade=False)
    dripping.write(b"POST /known/unread HTTP/1.1\r\nHost: t\r\nContent-Length: 1000000000\r\n\r\n")
    await answers(dripping, 1)
    async with asyncio.timeout(20):
        assert await dripping.reader.read() == b""


async def test_a_flood_is_not_read_ahead(serve: Serve, dial: Dial) -> None:
    """16 MB of requests to an application that never answers: what is held is one read, the rest stays outside."""
    admission = Admission()
    asked = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            authenticated(scope)
            asked.set()
            while (await receive())["type"] != "http.disconnect":
                pass

    raw = await dial(await serve(app, admission=admission), upgrade=False)
    flood = get("/") * 500_000
    raw.write(flood)
    await asyncio.wait_for(asked.wait(), 20)
    await until(lambda: admission.ahead > 0)
    await asyncio.sleep(0.2)  # time to read on, which must not be used
    assert admission.ahead <= 1 << 20
    assert raw.writer.transport.get_write_buffer_size() > len(flood) // 2
    raw.writer.transport.abort()


async def test_bytes_received_ahead_share_a_limit_for_all_connections(serve: Serve, dial: Dial) -> None:
    """Heads that never end: who holds most without a token goes first."""
    admission = Admission(ahead=200_000)
    port = await serve(CountingApp(), admission=admission, request_timeout=30.0)
    half = b"GET / HTTP/1.1\r\nHost: t\r\nX: " + b"x" * 50_000
    held = []
    for _ in range(8):
        held.append(await dial(port, upgrade=False))
        held[-1].write(half)
    await until(lambda: admission.evicted == 5)
    assert admission.ahead <= 200_000
    held[-1].write(b"\r\n\r\n")
    assert await held[-1].answer() == 200


async def test_a_connection_without_a_token_may_send_only_a_few_requests(serve: Serve, dial: Dial) -> None:
    raw = await dial(await serve(CountingApp(), admission=Admission(requests=3)), upgrade=False)
    raw.write(get("/") * 3)
    await answers(raw, 3)
    assert "close" in raw.headers["connection"]
    assert await raw.reader.read() == b""
    known = await dial(await serve(CountingApp(), admission=Admission(requests=3)), upgrade=False)
    known.write(get("/known") * 30)
    await answers(known, 30)


async def test_a_connection_without_a_token_is_closed_after_some_time(serve: Serve, dial: Dial) -> None:
    port = await serve(CountingApp(), admission=Admission(lifetime=0.5), request_timeout=30.0)
    raw, known = await dial(port, upgrade=False), await dial(port, upgrade=False)
    for one, path in ((raw, "/"), (known, "/known")):
        one.write(get(path))
        await answers(one, 1)
    async with asyncio.timeout(20):
        assert await raw.reader.read() == b""
    known.write(get("/"))
    await answers(known, 1)


async def test_a_connection_closed_while_requests_wait_leaves_nothing(timer_wheel: TimerWheel, dial: Dial) -> None:
    made: ServerConfig = config(CountingApp(), timer_wheel=timer_wheel, admission=Admission(pace=0.3), stop_timeout=2)
    server = Server(made, own_signals=False)
    running = asyncio.create_task(server.serve())
    await until(lambda: server.started)
    raw = await dial(server.address[1], upgrade=False)
    raw.write(get("/") * 100)
    await answers(raw, 1)
    assert made.admission.ahead > 0
    raw.end()
    await until(lambda: len(made.admission) == 0 and made.admission.ahead == 0)
    assert len(made.requests) == len(made.bodies) == 0
    server.should_exit = True
    await asyncio.wait_for(running, 20)
