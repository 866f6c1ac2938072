"""Streams of results over HTTP: as NDJSON, or as server-sent events for browsers.

`ResultStream` replaces Starlette's StreamingResponse, which starts two tasks for each response and notices that the
caller has disconnected only when it writes. `ResultStream` checks for that whenever it has had nothing to send for a
while.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass, replace
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from fairlead.app.api import schemas
from fairlead.app.api.headers import find_header
from fairlead.app.api.operation import NDJSON, SSE
from fairlead.errors import FairleadError, Unavailable
from fairlead.fleet.command_record import CommandRecord, Result, StoredEnd, Target
from fairlead.routing.commands.results import ResultsUpdate
from fairlead.routing.observability.telemetry_recorder import FAILED_STATES
from fairlead.telemetry.request_trace import RequestTrace
from fairlead.tenant import local_id

logger = logging.getLogger(__name__)

OPENING = 0.01
"""Seconds to wait after the body of a post before the answer begins, unless the answer is complete and short.

Go's HTTP client, on which proxies are built, sends a body of known length and only then checks whether more of it
follows. If the answer begins before that check, `httputil.ReverseProxy` closes the body, the check fails, and the
client closes the connection in the middle of the answer. A chunked body ends only after that check.
"""
SHORT = 3 << 10
"""Bytes of lines that such a client has read, with the head, before it can close: it reads 4 KiB at once."""

LAST_LINE = 1.0
"""Seconds to send a last line to a caller while the server stops. A caller that does not read must not delay it."""

DEPTH_RESERVE = 32
"""Levels by which a result is less deep than what can still be read, for the answer that it becomes a part of."""

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Format:
    """How lines are written. `keep_alive` is sent without content, often enough for the least patient proxy."""

    name: str
    start: dict[str, Any]
    keep_alive: bytes
    events: bool

    def replayed(self) -> Format:
        """The same format for a post whose command existed already."""
        headers = [*self.start["headers"], (b"idempotency-replayed", b"true")]
        return replace(self, start={**self.start, "headers": headers})

    def line(self, made: object, offset: object = None) -> bytes:
        data = _encode(made)
        if not self.events:
            return data + b"\n"
        # The id comes back as Last-Event-ID when a browser connects again.
        return (b"" if offset is None else b"id: %b\n" % str(offset).encode()) + b"data: " + data + b"\n\n"


def _start(kind: str) -> dict[str, Any]:
    headers = [(b"content-type", kind.encode()), (b"cache-control", b"no-store"), (b"x-accel-buffering", b"no")]
    return {"type": "http.response.start", "status": 200, "headers": headers}


LINES = Format(NDJSON, _start(NDJSON), b"{}\n", events=False)
EVENTS = Format(SSE, _start(SSE), b":\n\n", events=True)


def wanted(request: Request) -> Format | None:
    """The format of the stream that the caller accepts, None when it asked for none."""
    accept = find_header(request, b"accept") or ""
    if SSE in accept:
        return EVENTS
    return LINES if NDJSON in accept else None


def opening(request: Request) -> float:
    """The monotonic time at which the answer to a post whose body has just been read may begin (see OPENING), or
    0 for at once."""
    return time.monotonic() + OPENING if find_header(request, b"content-length") else 0.0


class ResultStream:
    """An ASGI response. `head` is the first line, if any, and `pages` come from `ResultReader.read`. Before the time
    `opens`, only an answer that is complete and short is sent."""

    __slots__ = ("_begun", "_body", "_form", "_head", "_opens", "_pages", "_request", "_request_trace")

    def __init__(
        self,
        request: Request,
        form: Format,
        head: object | None,
        pages: AsyncGenerator[ResultsUpdate],
        request_trace: RequestTrace | None = None,
        opens: float = 0.0,
    ) -> None:
        self._request = request
        self._form = form
        self._head = head
        self._pages = pages
        self._request_trace = request_trace
        self._opens = opens

        self._body = b""
        """Lines that are not sent yet."""
        self._begun = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        form, pages = self._form, self._pages
        if self._head is not None:
            self._body = form.line(self._head)
        if not self._opens:
            await self._begin(send)
        try:
            try:  # not `aclosing`, nor a coroutine of its own: most answers are one page, and each level costs
                async for page in pages:
                    if self._add(page):
                        break
                    if not await self._pass_on(page, send):
                        return
            finally:
                await pages.aclose()
        except FairleadError as e:
            # The status has been sent or fixed as 200, so the stream ends with the error instead of an `end`.
            self._body = (b"" if self._begun else self._body) + form.line(_error(e))
        except asyncio.CancelledError:
            # The server stops, and has waited long enough for Redis or for a caller that does not read.
            stopping = Unavailable("this node is stopping: continue at another node, after the last offset")
            self._body = form.line(_error(stopping))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LAST_LINE):
                    if not self._begun:
                        await send(form.start)
                    await self._flush(send, more=False)
            return
        except Exception:
            logger.exception("a stream of results failed")
            self._body = form.line(_error(FairleadError("internal error: see the gateway's log")))
        # The last lines go out together with the end of the response, in one write.
        if not self._begun:
            if len(self._body) > SHORT:
                await self._opening_over()
            await send(form.start)
        await send({"type": "http.response.body", "body": self._body})

    def _add(self, page: ResultsUpdate) -> bool:
        """Add the lines of the page to the body; return whether it is the last page."""
        form, request_trace = self._form, self._request_trace
        if page.results:
            self._body += b"".join([form.line(_line(result), result.offset) for result in page.results])
        if request_trace is not None and page.results:
            request_trace.first_results()
        if page.ended is not None:
            self._body += b"".join([form.line({"end": end_of(page.ended, t)}) for t in page.ended.targets])
            if request_trace is not None:
                request_trace.end(failed=any(t.state in FAILED_STATES for t in page.ended.targets))
            return True
        if page.more is not None:
            self._body += form.line({"more": page.more})
            if request_trace is not None:
                request_trace.end(failed=False)  # this answer, not the command
            return True
        return False

    async def _pass_on(self, page: ResultsUpdate, send: Send) -> bool:
        """Send what there is of an answer that goes on; return whether the caller is still there."""
        if not self._begun:
            if len(self._body) > SHORT:
                await self._opening_over()
            elif page.results and time.monotonic() < self._opens:
                return True
            await self._begin(send)
            return True
        if not self._body:
            if await self._request.is_disconnected():
                return False
            self._body = self._form.keep_alive
        await self._flush(send)
        return True

    async def _begin(self, send: Send) -> None:
        """Send the head and what there is of the body, even if it is nothing: the head leaves with the first event of
        the body."""
        self._begun = True
        await send(self._form.start)
        await self._flush(send)

    async def _opening_over(self) -> None:
        """Wait until the answer may begin."""
        await asyncio.sleep(self._opens - time.monotonic())

    async def _flush(self, send: Send, *, more: bool = True) -> None:
        body, self._body = self._body, b""
        await send({"type": "http.response.body", "body": body, "more_body": more})


def _error(error: FairleadError) -> dict[str, object]:
    return {"error": {"code": error.code, "message": error.message, "temporary": error.temporary}}


def _line(result: Result) -> dict[str, object]:
    member, value = octets(result.payload)
    return {"offset": result.offset, "agent": local_id(result.agent), "n": result.n, "kind": result.kind, member: value}


def octets(payload: bytes) -> tuple[str, str]:
    """The member name and value for `payload`: `text` when it is UTF-8, else `base64`."""
    try:
        return "text", payload.decode()
    except UnicodeDecodeError:
        return "base64", base64.b64encode(payload).decode()


def end_of(command: CommandRecord, target: Target) -> schemas.CommandEnd:
    """How a target ended, as the API shows it."""
    ending = target.ending or StoredEnd()
    error: schemas.CommandError | None = None
    if ending.code:
        error = schemas.CommandError(ending.code, ending.message, ending.temporary, ending.details)
    payload, octets = payload_of(ending)
    return schemas.CommandEnd(
        local_id(target.agent), target.state, payload, error, target.next, command.truncated, bool(command.dropped_at),
        octets,
    )  # fmt: skip


def payload_of(ending: StoredEnd) -> tuple[object, str | msgspec.UnsetType]:
    """Return the agent's result as JSON, or None if there is none; and in base64 a result that is not JSON, or nested
    too deeply to be part of an answer.

    So the result of an agent that breaks this convention is neither dropped silently nor the end of the answer that it
    is a part of.
    """
    payload = ending.payload
    if payload is None:
        return None, msgspec.UNSET
    try:
        if payload.count(b"[") + payload.count(b"{") > DEPTH_RESERVE:
            msgspec.json.decode(b"[" * DEPTH_RESERVE + payload + b"]" * DEPTH_RESERVE)
        return msgspec.json.decode(payload), msgspec.UNSET
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None, base64.b64encode(payload).decode()
