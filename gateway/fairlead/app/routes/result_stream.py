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
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from fairlead.app.api import schemas
from fairlead.app.api.operations import NDJSON, SSE
from fairlead.errors import FairleadError, Unavailable
from fairlead.fleet.command_record import CommandRecord, Result, StoredEnd, Target
from fairlead.routing.commands.results import ResultsUpdate
from fairlead.routing.observability.telemetry_recorder import FAILED_STATES
from fairlead.telemetry.request_trace import RequestTrace

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

    def line(self, made: object, offset: int | None = None) -> bytes:
        data = _encode(made)
        if not self.events:
            return data + b"\n"
        # The id comes back as Last-Event-ID when a browser connects again.
        return (b"" if offset is None else b"id: %d\n" % offset) + b"data: " + data + b"\n\n"


def _start(kind: str) -> dict[str, Any]:
    headers = [(b"content-type", kind.encode()), (b"cache-control", b"no-store"), (b"x-accel-buffering", b"no")]
    return {"type": "http.response.start", "status": 200, "headers": headers}


LINES = Format(NDJSON, _start(NDJSON), b"{}\n", events=False)
EVENTS = Format(SSE, _start(SSE), b":\n\n", events=True)


def wanted(request: Request) -> Format | None:
    """The format of the stream that the caller accepts, None when it asked for none."""
    accept = request.headers.get("accept", "")
    if SSE in accept:
        return EVENTS
    return LINES if NDJSON in accept else None


def opening(request: Request) -> float:
    """The loop time at which the answer to a post whose body has just been read may begin (see OPENING), or
    0 for at once."""
    return asyncio.get_running_loop().time() + OPENING if "content-length" in request.headers else 0.0


class ResultStream:
    """An ASGI response. `head` is the first line, if any, and `pages` come from `ResultReader.read`. Before the time
    `opens`, only an answer that is complete and short is sent."""

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

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        form, request_trace, opens = self._form, self._request_trace, self._opens
        clock = asyncio.get_running_loop().time
        body = b"" if self._head is None else form.line(self._head)
        begun = not opens
        if begun:
            await send(form.start)
            if body:
                await send({"type": "http.response.body", "body": body, "more_body": True})
                body = b""
        try:
            async with aclosing(self._pages) as pages:
                async for page in pages:
                    if request_trace is not None and page.results:
                        request_trace.first_results()
                    body += b"".join([form.line(_line(result), result.offset) for result in page.results])
                    if page.ended is not None:
                        # The end goes out with the last results and closes the response: one write, not three.
                        body += b"".join([form.line({"end": end_of(page.ended, t)}) for t in page.ended.targets])
                        if request_trace is not None:
                            request_trace.end(failed=any(t.state in FAILED_STATES for t in page.ended.targets))
                        break
                    if page.more is not None:
                        body += form.line({"more": page.more})
                        if request_trace is not None:
                            request_trace.end(failed=False)  # this answer, not the command
                        break
                    if not begun:
                        if len(body) > SHORT:
                            await asyncio.sleep(opens - clock())
                        elif page.results and clock() < opens:
                            continue
                        begun = True
                        await send(form.start)
                    elif not body:
                        if await self._request.is_disconnected():
                            return
                        body = form.keep_alive
                    await send({"type": "http.response.body", "body": body, "more_body": True})
                    body = b""
        except FairleadError as e:
            # The status has been sent or fixed as 200, so the stream ends with the error instead of an `end`.
            body = (b"" if begun else body) + form.line(_error(e))
        except asyncio.CancelledError:
            # The server stops, and has waited long enough for Redis or for a caller that does not read.
            body = form.line(
                _error(Unavailable("this node is stopping: continue at another node, after the last offset"))
            )
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LAST_LINE):
                    if not begun:
                        await send(form.start)
                    await send({"type": "http.response.body", "body": body, "more_body": False})
            return
        except Exception:
            logger.exception("a stream of results failed")
            body = form.line(_error(FairleadError("internal error: see the gateway's log")))
        if not begun:
            if len(body) > SHORT:
                await asyncio.sleep(opens - clock())
            await send(form.start)
        await send({"type": "http.response.body", "body": body, "more_body": False})


def _error(error: FairleadError) -> dict[str, object]:
    return {"error": {"code": error.code, "message": error.message, "temporary": error.temporary}}


def _line(result: Result) -> dict[str, object]:
    member, value = octets(result.payload)
    return {"offset": result.offset, "agent": result.agent, "n": result.n, "kind": result.kind, member: value}


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
        target.agent, target.state, payload, error, target.next, command.truncated, octets
    )  # fmt: skip


def payload_of(ending: StoredEnd) -> tuple[object, str | msgspec.UnsetType]:
    """Return the agent's result as JSON, or None if there is none; and in base64 a result that is not JSON.

    So the result of an agent that breaks this convention is not dropped silently.
    """
    if ending.payload is None:
        return None, msgspec.UNSET
    try:
        return msgspec.json.decode(ending.payload), msgspec.UNSET
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None, base64.b64encode(ending.payload).decode()
