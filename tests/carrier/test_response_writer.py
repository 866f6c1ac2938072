"""How the events of an ASGI response reach the socket: when the head leaves, how the body ends, what is refused."""

from __future__ import annotations

import asyncio

import pytest
from starlette.types import Message, Receive, Scope, Send

from fairlead.carrier.http_server import uvicorn_server

from support.carrier.servers import Dial, Serve

pytestmark = pytest.mark.asyncio(loop_scope="module")

GET = b"GET / HTTP/1.1\r\nHost: t\r\n\r\n"
START: Message = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]}
LENGTH: Message = {**START, "headers": [(b"Content-Length", b"2")]}


def body(content: bytes, more: bool = False) -> Message:
    return {"type": "http.response.body", "body": content, "more_body": more}


class Application:
    """Sends its events; where an event is None it waits until the test goes on."""

    def __init__(self, *events: Message | None) -> None:
        self._events = events
        self.waits = asyncio.Event()
        self.goes_on = asyncio.Event()
        self.error: BaseException | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        if scope["path"] == "/other":
            for event in (START, body(b"")):
                await send(event)
            return
        try:
            for step in self._events:
                if step is None:
                    self.waits.set()
                    await self.goes_on.wait()
                else:
                    await send(step)
        except RuntimeError as e:
            self.error = e
            raise


async def exchange(serve: Serve, dial: Dial, app: Application, request: bytes = GET) -> bytes:
    """The whole answer, on a connection that the server closes."""
    raw = await dial(await serve(app), upgrade=False)
    raw.write(request.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
    async with asyncio.timeout(20):
        return await raw.reader.read()


async def round_trips(port: int, dial: Dial) -> None:
    """Two exchanges on another connection: after them, whatever the server had written before has arrived."""
    for _ in range(2):
        other = await dial(port, upgrade=False)
        other.write(b"GET /other HTTP/1.1\r\nHost: t\r\n\r\n")
        assert await other.answer() == 200


async def test_the_head_leaves_with_the_first_part_of_the_body(serve: Serve, dial: Dial) -> None:
    app = Application(START, None, body(b"first", True), None, body(b"last"))
    port = await serve(app)
    raw = await dial(port, upgrade=False)
    first = asyncio.create_task(raw.reader.readuntil(b"first\r\n"))
    async with asyncio.timeout(20):
        raw.write(GET)
        await app.waits.wait()
        await round_trips(port, dial)
        assert not first.done()
        assert bytes(raw.reader._buffer) == b""  # type: ignore[attr-defined]  # nothing has arrived
        app.goes_on.set()
        assert (await first).startswith(b"HTTP/1.1 200 OK\r\ndate: ")
        assert await raw.reader.readuntil(b"0\r\n\r\n") == b"4\r\nlast\r\n0\r\n\r\n"


async def test_an_empty_event_of_the_body_sends_the_head(serve: Serve, dial: Dial) -> None:
    """A stream of results that has nothing to say yet begins its answer like that."""
    app = Application(START, body(b"", True), None, body(b"last"))
    raw = await dial(await serve(app), upgrade=False)
    async with asyncio.timeout(20):
        raw.write(GET)
        head = await raw.reader.readuntil(b"\r\n\r\n")
        assert not app.goes_on.is_set()
        assert head.endswith(b"\r\ncontent-type: text/plain\r\ntransfer-encoding: chunked\r\n\r\n")
        app.goes_on.set()
        assert await raw.reader.readuntil(b"0\r\n\r\n") == b"4\r\nlast\r\n0\r\n\r\n"


async def test_a_body_with_a_length_is_sent_as_it_is(serve: Serve, dial: Dial) -> None:
    answer = await exchange(serve, dial, Application(LENGTH, body(b"o", True), body(b"k")))
    assert answer.endswith(b"\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok")


@pytest.mark.parametrize("status", [204, 304])
async def test_statuses_without_a_body_have_no_transfer_coding(serve: Serve, dial: Dial, status: int) -> None:
    answer = await exchange(serve, dial, Application({**START, "status": status, "headers": []}, body(b"")))
    assert answer.startswith(b"HTTP/1.1 %d " % status)
    assert b"transfer-encoding" not in answer
    assert answer.endswith(b"\r\n\r\n")


async def test_a_head_request_gets_the_head_alone(serve: Serve, dial: Dial) -> None:
    answer = await exchange(serve, dial, Application(LENGTH, body(b"ok")), GET.replace(b"GET", b"HEAD"))
    assert answer.endswith(b"\r\ncontent-length: 2\r\nconnection: close\r\n\r\n")


async def test_headers_may_be_lists(serve: Serve, dial: Dial) -> None:
    answer = await exchange(serve, dial, Application({**START, "headers": [[b"x-one", b"1"]]}, body(b"ok")))
    assert b"\r\nx-one: 1\r\n" in answer


@pytest.mark.parametrize("headers", [[(b"connection", b"close")], [(b"Connection", b"x, Close")]])
async def test_the_application_may_close_the_connection(
    serve: Serve, dial: Dial, headers: list[tuple[bytes, bytes]]
) -> None:
    raw = await dial(await serve(Application({**START, "headers": headers}, body(b"ok"))), upgrade=False)
    raw.write(GET)
    async with asyncio.timeout(20):
        answer = await raw.reader.read()
    assert answer.lower().count(b"\r\nconnection: ") == 1
    assert answer.endswith(b"2\r\nok\r\n0\r\n\r\n")


@pytest.mark.parametrize(
    ("events", "error"),
    [
        ([body(b"ok")], "expected 'http.response.start'"),
        ([START, START], "expected 'http.response.body'"),
        ([START, body(b"ok"), body(b"ok")], "the response is complete"),
        ([LENGTH, body(b"long")], "longer than its Content-Length"),
        ([LENGTH, body(b"s")], "shorter than its Content-Length"),
        ([{**START, "headers": [(b"x one", b"1")]}], "invalid HTTP header b'x one'"),
        ([{**START, "headers": [(b"x-one", b"1\r\nx-two: 2")]}], "invalid HTTP header b'x-one'"),
    ],
)
async def test_what_the_application_must_not_send(serve: Serve, dial: Dial, events: list[Message], error: str) -> None:
    app = Application(*events)
    answer = await exchange(serve, dial, app)
    assert error in str(app.error)
    assert b"x-two" not in answer


async def test_an_idle_connection_is_closed_after_its_time(
    serve: Serve, dial: Dial, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uvicorn_server, "KEEP_ALIVE", 1)
    raw = await dial(await serve(Application(START, body(b"ok"))), upgrade=False)
    raw.write(GET)
    began = asyncio.get_running_loop().time()
    async with asyncio.timeout(20):
        assert (await raw.reader.read()).endswith(b"0\r\n\r\n")
    assert asyncio.get_running_loop().time() - began > 0.95
