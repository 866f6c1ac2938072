"""A platform API that answers what the test says, on a real socket.

It stands in for a gateway only where a test needs an answer that a healthy gateway never gives: a refusal, an end that
never comes, a connection that is cut at a certain line.
"""

from __future__ import annotations

import asyncio
import base64
import json
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from support.waiting import WAIT, wait_until

COMMAND = "01990000-0000-7000-8000-000000000001"


def problem(status: int, code: str, detail: str, temporary: bool = False) -> Response:
    body = {"type": "about:blank", "title": code, "status": status, "code": code, "detail": detail}
    return JSONResponse({**body, "temporary": temporary}, status_code=status, media_type="application/problem+json")


@dataclass
class ScriptedApi:
    """The answers of the API, and the requests that it received."""

    url: str = ""
    lines: list[dict[str, object]] = field(default_factory=list)
    end: dict[str, object] | None = None
    cuts: list[int] = field(default_factory=list)
    """Each connection loses its peer after so many lines; when the list is used up, none does."""
    refusals: list[Response] = field(default_factory=list)
    """Answers to the next requests of a stream, in place of it."""
    results_refusal: Response | None = None
    """Answers every request that re-attaches to the stream, in place of it."""
    input_refusals: list[Response] = field(default_factory=list)
    cancel_refusals: list[Response] = field(default_factory=list)
    pages: list[dict[str, object]] = field(default_factory=list)
    busy_pages: bool = False
    """After the first page this node is busy."""
    overlap: int = 0
    """A re-attached stream begins so many lines too early, as a cautious gateway may."""
    end_on_cancel: bool = True
    may_end: threading.Event = field(default_factory=threading.Event)
    """The end is sent once this is set, or the command is cancelled."""
    answering: threading.Event = field(default_factory=threading.Event)
    """A stream begins once this is set."""

    posted: threading.Event = field(default_factory=threading.Event)
    streams: list[tuple[str, str, dict[str, str], bytes]] = field(default_factory=list)
    inputs: dict[int, bytes] = field(default_factory=dict)
    input_requests: list[int] = field(default_factory=list)
    stdin_end: threading.Event = field(default_factory=threading.Event)
    cancelled: threading.Event = field(default_factory=threading.Event)
    cursors: list[str | None] = field(default_factory=list)
    tokens: set[str] = field(default_factory=set)
    presence: dict[str, object] = field(default_factory=dict)
    """What the first line says of the agent's link."""

    def __post_init__(self) -> None:
        self.may_end.set()
        self.answering.set()

    def add_output(self, data: bytes, kind: str = "stdout") -> None:
        """One more chunk of output."""
        offset = len(self.lines)
        line: dict[str, object] = {"offset": offset, "agent": "agent-1", "n": offset, "kind": kind}
        try:
            line["text"] = data.decode()
        except UnicodeDecodeError:
            line["base64"] = base64.b64encode(data).decode()
        self.lines.append(line)

    def finish(self, state: str, payload: object = None, error: object = None, truncated: bool = False) -> None:
        total = len(self.lines)
        self.end = {"agent": "agent-1", "state": state, "payload": payload, "error": error, "total": total}
        self.end["truncated"] = truncated

    async def stream(self, request: Request) -> Response:
        headers = {key.lower(): value for key, value in request.headers.items()}
        self.tokens.add(headers.get("authorization", ""))
        self.streams.append((request.method, str(request.url.query), headers, await request.body()))
        if request.method == "POST":
            self.posted.set()
        await asyncio.to_thread(self.answering.wait, WAIT)
        if self.refusals:
            return self.refusals.pop(0)
        if self.results_refusal is not None and request.method == "GET":
            return self.results_refusal
        start = max(0, int(request.query_params.get("from", 0)) - (self.overlap if len(self.streams) > 1 else 0))
        cut = self.cuts.pop(0) if self.cuts else None
        wait = request.query_params.get("follow", "true") == "true"
        return StreamingResponse(self._lines(start, cut, wait), media_type="application/x-ndjson")

    async def _lines(self, start: int, cut: int | None, wait: bool) -> AsyncIterator[bytes]:
        sent = 0
        for line in [{"id": COMMAND, "state": "running", **self.presence}, *self.lines[start:]]:
            if sent == cut:
                raise ConnectionResetError("cut by the test")
            yield json.dumps(line, ensure_ascii=False).encode() + b"\n{}\n"
            sent += 1
        if sent == cut:
            raise ConnectionResetError("cut by the test")
        while wait and not self.may_end.is_set():
            if self.cancelled.is_set() and self.end_on_cancel:
                self.finish("cancelled")
                break
            yield b"{}\n"
            await asyncio.sleep(0.02)
        if self.end is not None:
            yield json.dumps({"end": self.end}).encode() + b"\n"

    async def cancel(self, request: Request) -> Response:
        if self.cancel_refusals:
            return self.cancel_refusals.pop(0)
        self.cancelled.set()
        return JSONResponse({"id": COMMAND, "state": "running"}, status_code=202)

    async def input(self, request: Request) -> Response:
        n = int(request.query_params["n"])
        data = await request.body()
        self.input_requests.append(n)
        if self.input_refusals:
            return self.input_refusals.pop(0)
        self.inputs[n] = data
        if request.query_params.get("end") == "true":
            self.stdin_end.set()
        return JSONResponse({}, status_code=202)

    async def agents(self, request: Request) -> Response:
        cursor = request.query_params.get("cursor")
        self.cursors.append(cursor)
        if cursor is not None and self.busy_pages:
            return problem(503, "node_busy", "draining", True)
        return JSONResponse(self.pages[int(cursor or 0)])

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/v1/commands", self.stream, methods=["POST"]),
                Route("/v1/commands/{id}/results", self.stream, methods=["GET"]),
                Route("/v1/commands/{id}/input", self.input, methods=["POST"]),
                Route("/v1/commands/{id}", self.cancel, methods=["DELETE"]),
                Route("/v1/agents", self.agents, methods=["GET"]),
            ]
        )


def scripted() -> Iterator[ScriptedApi]:
    script = ScriptedApi()
    # Cut connections are errors to uvicorn; the test made them and does not want to read of them.
    config = uvicorn.Config(script.app(), port=0, ws="none", log_level=60, lifespan="off")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    wait_until(lambda: server.started)
    script.url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    yield script
    script.may_end.set()
    script.answering.set()
    server.should_exit = server.force_exit = True
    thread.join(WAIT)
    assert not thread.is_alive()
