"""The stream of a run's results over HTTP: as NDJSON, or as server-sent events for browsers.

One line for each target, in the order of their ends; on request also lines with the counts so far. The stream ends when
its reader may no longer read it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Final

from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from fairlead.app.routes.result_stream import LAST_LINE, LINES, Format, end_of, octets
from fairlead.errors import FairleadError, Unavailable
from fairlead.fleet.command_record import Result
from fairlead.fleet.runs.run_record import RunRow
from fairlead.routing.runs.run_results import RunUpdate, TargetResult
from fairlead.tenant import local_id

logger = logging.getLogger(__name__)

PROGRESS: Final = 0.25
"""Seconds between two lines of progress."""
CHECK: Final = 1.0
"""Seconds for which a check of the reader's rights holds: with the reader's poll it stays below 5 s."""
IDLE: Final = 5.0
"""Seconds without a line after which an empty one is sent."""


class RunStream:
    """An ASGI response. `check` raises what ends the stream, and `shows` says for the agents of some lines whether the
    reader may see what they returned."""

    def __init__(
        self,
        request: Request,
        form: Format | None,
        row: RunRow,
        updates: AsyncGenerator[RunUpdate],
        check: Callable[[], None],
        shows: Callable[[list[str]], Awaitable[list[bool]]],
        *,
        progress: bool,
    ) -> None:
        self._request = request
        self._form = form or LINES
        self._row = row
        self._updates = updates
        self._check = check
        self._shows = shows
        self._progress = progress
        self._checked = self._told = self._sent = 0.0
        self._clock = asyncio.get_running_loop().time

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send(self._form.start)
        last = b""
        try:
            async with aclosing(self._updates) as updates:
                async for update in updates:
                    now = self._clock()
                    if now - self._checked >= CHECK:
                        # What is sent to a caller that has gone is dropped without an error.
                        if await self._request.is_disconnected():
                            return
                        self._check()
                        self._checked = now
                    body = await self._lines(update)
                    if update.last or update.more is not None:
                        last = body
                        break
                    if not body and now - self._sent >= IDLE:
                        body = self._form.keep_alive
                    if body:
                        self._sent = now
                        await send({"type": "http.response.body", "body": body, "more_body": True})
        except FairleadError as e:
            last = self._error(e)
        except asyncio.CancelledError:
            stopping = Unavailable("this node is stopping: continue at another node, after the last offset")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LAST_LINE):
                    await send({"type": "http.response.body", "body": self._error(stopping)})
            return
        except Exception:
            logger.exception("a stream of a run's results failed")
            last = self._error(FairleadError("internal error: see the gateway's log"))
        await send({"type": "http.response.body", "body": last})

    async def _lines(self, update: RunUpdate) -> bytes:
        now = self._clock()
        form, lines = self._form, []
        shown = await self._shows([result.agent for result in update.results])
        for result, visible in zip(update.results, shown, strict=True):
            lines.append(form.line(_line(result, visible), result.offset))
        summary = {"state": update.state, "counts": {state: count for state, count in update.counts.items() if count}}
        if update.last:
            lines.append(form.line({"end": summary}))
        elif update.more is not None:
            lines.append(form.line({"more": update.more}))
        elif self._progress and now - self._told >= PROGRESS:
            self._told = now
            lines.append(form.line({"progress": summary}))
        return b"".join(lines)

    def _error(self, error: FairleadError) -> bytes:
        return self._form.line({"error": {"code": error.code, "message": error.message, "temporary": error.temporary}})


def _line(result: TargetResult, visible: bool) -> dict[str, object]:
    end = result.end
    line: dict[str, object] = {
        "offset": result.offset, "agent": local_id(result.agent), "command": result.command, "state": end.state,
        "code": end.code or None, "digest": end.digest or None,
    }  # fmt: skip
    if not visible:
        return {**line, "digest": None, "withheld": True}
    record = result.record
    if record is not None:
        shown = end_of(record, record.targets[0])
        line |= {"payload": shown.payload, "error": shown.error}
        line["output"] = _joined(result.output)
        line["truncated"] = result.truncated or shown.truncated
        line["dropped"] = result.dropped or shown.dropped
    return line


def _joined(results: list[Result]) -> list[dict[str, str]]:
    """The output with neighbouring chunks of one kind as one."""
    joined: list[tuple[str, list[bytes]]] = []
    for result in results:
        if joined and joined[-1][0] == result.kind:
            joined[-1][1].append(result.payload)
        else:
            joined.append((result.kind, [result.payload]))
    made: list[dict[str, str]] = []
    for kind, payloads in joined:
        member, value = octets(b"".join(payloads))
        made.append({"kind": kind, member: value})
    return made
