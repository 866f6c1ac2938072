"""Results as NDJSON over HTTP, line by line as they come.

Not Starlette's StreamingResponse: that one starts two tasks for each response, and tells of a caller who left only
when something is written. Here the caller's absence is looked for whenever there is nothing to send for a while.
"""

from __future__ import annotations

import base64
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from fairlead.errors import FairleadError
from fairlead.fleet.commands import Command, Ending, Result, Target
from fairlead.routing.results import News

logger = logging.getLogger(__name__)

_encode = msgspec.json.Encoder().encode
NDJSON = "application/x-ndjson"
_START = {
    "type": "http.response.start",
    "status": 200,
    "headers": [
        (b"content-type", NDJSON.encode()),
        (b"cache-control", b"no-store"),
        (b"x-accel-buffering", b"no"),
    ],
}
KEEP_ALIVE = b"{}\n"


class ResultStream:
    """An ASGI response. `head` is the first line, if any; `pages` are `Results.read`'s."""

    def __init__(self, request: Request, head: bytes, pages: AsyncGenerator[News]) -> None:
        self._request = request
        self._head = head
        self._pages = pages

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send(_START)
        body = self._head
        if body:
            await send({"type": "http.response.body", "body": body, "more_body": True})
        body = b""
        try:
            async with aclosing(self._pages) as pages:
                async for news in pages:
                    body = b"".join(map(_line, news.results))
                    if news.ended is not None:
                        # The end goes out with the last results and closes the response: one write, not three.
                        body += b"".join(_encode({"end": end_of(news.ended, t)}) + b"\n" for t in news.ended.targets)
                        break
                    if not body:
                        if await self._request.is_disconnected():
                            return
                        body = KEEP_ALIVE
                    await send({"type": "http.response.body", "body": body, "more_body": True})
                    body = b""
        except FairleadError as e:
            # The status is out already: the stream ends without an `end`, and says why.
            body = _error(e)
        except Exception:
            logger.exception("a stream of results failed")
            body = _error(FairleadError("an internal error; the gateway's log tells more"))
        await send({"type": "http.response.body", "body": body, "more_body": False})


def _error(error: FairleadError) -> bytes:
    return _encode({"error": {"code": error.code, "message": error.message, "temporary": error.temporary}}) + b"\n"


def _line(result: Result) -> bytes:
    member, value = octets(result.payload)
    return (
        _encode(
            {
                "offset": result.offset,
                "agent": result.agent,
                "n": result.n,
                "kind": result.kind,
                member: value,
            }
        )
        + b"\n"
    )


def octets(payload: bytes) -> tuple[str, str]:
    """The member name and value for `payload`: `text` when it is UTF-8, else `base64`."""
    try:
        return "text", payload.decode()
    except UnicodeDecodeError:
        return "base64", base64.b64encode(payload).decode()


def end_of(command: Command, target: Target) -> dict[str, object]:
    """How a target ended, as the API shows it."""
    ending = target.ending or Ending()
    error: dict[str, object] | None = None
    if ending.code:
        error = {
            "code": ending.code,
            "message": ending.message,
            "temporary": ending.temporary,
            "details": ending.details,
        }
    return {
        "agent": target.agent,
        "state": target.state.value,
        "payload": payload_of(ending),
        "error": error,
        "total": target.next,
        "truncated": command.truncated,
    }


def payload_of(ending: Ending) -> object:
    """What the agent returned, as JSON; None when it returned nothing or something else than JSON."""
    if ending.payload is None:
        return None
    try:
        return msgspec.json.decode(ending.payload)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None
