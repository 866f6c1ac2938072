"""A real gateway with a real agent, a scripted platform API, a relay that maltreats connections, and the command line
as a real process.

The script stands in for a gateway only where a test needs an answer that a healthy gateway never gives: a refusal, an
end that never comes. The relay stands where proxies stand.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

COMMAND = "01990000-0000-7000-8000-000000000001"
WAIT = 20.0


def problem(status: int, code: str, detail: str, temporary: bool = False) -> Response:
    body = {"type": "about:blank", "title": code, "status": status, "code": code, "detail": detail}
    return JSONResponse({**body, "temporary": temporary}, status_code=status, media_type="application/problem+json")


@dataclass
class Api:
    """What the API shall answer, and what it was asked."""

    url: str = ""
    lines: list[dict[str, object]] = field(default_factory=list)
    end: dict[str, object] | None = None
    cuts: list[int] = field(default_factory=list)
    """Each connection loses its peer after so many lines; when the list is used up, none does."""
    refusals: list[Response] = field(default_factory=list)
    """Answers to the next requests of a stream, in place of it."""
    input_refusals: list[Response] = field(default_factory=list)
    pages: list[dict[str, object]] = field(default_factory=list)
    busy_pages: bool = False
    """After the first page this node is busy."""
    overlap: int = 0
    """A re-attached stream begins so many lines too early, as a cautious gateway may."""
    end_on_cancel: bool = True
    go: threading.Event = field(default_factory=threading.Event)
    """The end is sent once this is set, or the command is cancelled."""

    streams: list[tuple[str, str, dict[str, str], bytes]] = field(default_factory=list)
    inputs: dict[int, bytes] = field(default_factory=dict)
    input_requests: list[int] = field(default_factory=list)
    stdin_end: threading.Event = field(default_factory=threading.Event)
    cancelled: threading.Event = field(default_factory=threading.Event)
    cursors: list[str | None] = field(default_factory=list)
    tokens: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.go.set()

    def say(self, data: bytes, kind: str = "stdout") -> None:
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
        if self.refusals:
            return self.refusals.pop(0)
        start = max(0, int(request.query_params.get("from", 0)) - (self.overlap if len(self.streams) > 1 else 0))
        cut = self.cuts.pop(0) if self.cuts else None
        wait = request.query_params.get("follow", "true") == "true"
        return StreamingResponse(self._lines(start, cut, wait), media_type="application/x-ndjson")

    async def _lines(self, start: int, cut: int | None, wait: bool) -> AsyncIterator[bytes]:
        sent = 0
        for line in [{"id": COMMAND, "state": "running"}, *self.lines[start:]]:
            if sent == cut:
                raise ConnectionResetError("cut by the test")
            yield json.dumps(line, ensure_ascii=False).encode() + b"\n{}\n"
            sent += 1
        if sent == cut:
            raise ConnectionResetError("cut by the test")
        while wait and not self.go.is_set():
            if self.cancelled.is_set() and self.end_on_cancel:
                self.finish("cancelled")
                break
            yield b"{}\n"
            await asyncio.sleep(0.02)
        if self.end is not None:
            yield json.dumps({"end": self.end}).encode() + b"\n"

    async def cancel(self, request: Request) -> Response:
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


@pytest.fixture
def api() -> Iterator[Api]:
    yield from scripted()


@pytest.fixture
def second_api() -> Iterator[Api]:
    yield from scripted()


def scripted() -> Iterator[Api]:
    script = Api()
    # Cut connections are errors to uvicorn; the test made them and does not want to read of them.
    config = uvicorn.Config(script.app(), port=0, ws="none", log_level=60, lifespan="off")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    wait_until(lambda: server.started)
    script.url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    yield script
    script.go.set()
    server.should_exit = server.force_exit = True
    thread.join(WAIT)
    assert not thread.is_alive()


T = TypeVar("T")


def wait_until(condition: Callable[[], T], timeout: float = WAIT) -> T:
    """What is true at last."""
    deadline = time.monotonic() + timeout
    while not (found := condition()):
        assert time.monotonic() < deadline, "the condition did not come true in time"
        time.sleep(0.01)
    return found


@pytest.fixture(name="wait_until")
def wait_until_fixture() -> Callable[[Callable[[], object]], object]:
    return wait_until


Start = Callable[..., subprocess.Popen[bytes]]
Run = Callable[..., subprocess.CompletedProcess[bytes]]


def address(api: Api | Fleet | str | None) -> str | None:
    return api.url if isinstance(api, Api) else api.api if isinstance(api, Fleet) else api


def environment(api: str | None) -> dict[str, str]:
    env = {key: value for key, value in os.environ.items() if not key.startswith("FAIRLEAD_")}
    return {**env, "FAIRLEAD_API": api} if api is not None else env


@pytest.fixture
def start(api: Api) -> Iterator[Start]:
    """Start `fairlead …` against the scripted API; what still runs at the end of the test is killed."""
    started: list[subprocess.Popen[bytes]] = []

    def popen(*args: str, stdin: int | None = subprocess.DEVNULL) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "fairlead", *args],
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(api.url),
        )
        started.append(process)
        return process

    yield popen
    for process in started:
        if process.poll() is None:
            process.kill()
        process.wait(WAIT)
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None and not pipe.closed:
                pipe.close()


@pytest.fixture
def run() -> Run:
    """Run `fairlead …` to its end. Without an `api` it goes to the default address."""

    def call(
        *args: str, api: Api | Fleet | str | None = None, input: bytes | None = None, env: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [sys.executable, "-P", "-m", "fairlead", *args],
            input=input,
            stdin=subprocess.DEVNULL if input is None else None,
            capture_output=True,
            timeout=WAIT * 2,
            env={**environment(address(api)), **(env or {})},
            check=False,
        )

    return call


class Part:
    """A process of the fleet, with its log."""

    def __init__(self, log: Path, *args: str) -> None:
        self.log = log
        with log.open("wb") as sink:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "fairlead", *args],
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                env=environment(None),
                cwd=log.parent,
            )

    def said(self, pattern: str) -> re.Match[str]:
        """What it has said that matches."""

        def look() -> re.Match[str] | None:
            text = self.log.read_text()
            assert self.process.poll() is None, text
            return re.search(pattern, text)

        found = wait_until(look)
        assert found is not None
        return found

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(WAIT)


@dataclass
class Fleet:
    """One gateway and the agent web-1, for tests that leave them as they were."""

    links: str
    api: str
    admin: str
    agent: Part


def gateway(folder: Path, *flags: str) -> tuple[Part, str, str, str]:
    """A gateway, and its three addresses: links, API, probes."""
    ports = ("--link-port=0", "--api-port=0", "--admin-port=0")
    part = Part(folder / "gateway.log", "serve", "--node=node-1", f"--data={folder / 'data'}", *ports, *flags)
    try:
        where = part.said(r"is ready: links on ([\d.:]+), api on ([\d.:]+), admin on ([\d.:]+)")
    except BaseException:
        part.stop()
        raise
    return part, f"ws://{where[1]}", f"http://{where[2]}", f"http://{where[3]}"


@pytest.fixture(scope="session")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("fleet")
    parts: list[Part] = []
    try:
        part, links, api, admin = gateway(folder, "--redis=embedded")
        parts.append(part)
        agent = Part(folder / "agent.log", "agent", "run", f"--url={links}", "--id=web-1")
        parts.append(agent)
        line = [sys.executable, "-P", "-m", "fairlead", "agents", "ls", "--state=online", "--output=name"]

        def online() -> bool:
            return b"web-1" in subprocess.run(line, env=environment(api), capture_output=True, check=False).stdout

        wait_until(online)
        yield Fleet(links, api, admin, agent)
    finally:
        for part in reversed(parts):
            part.stop()


@pytest.fixture
def gateway_over() -> Iterator[Callable[..., tuple[str, str, str]]]:
    """Make a gateway of the test's own over the Redis at a URL: its addresses of links, API, probes."""
    parts: list[Part] = []

    def make(folder: Path, redis: str, *flags: str) -> tuple[str, str, str]:
        part, *where = gateway(folder, f"--redis={redis}", *flags)
        parts.append(part)
        return where[0], where[1], where[2]

    yield make
    for part in parts:
        part.stop()


class Relay:
    """A proxy before an address, as good or as bad as the test wants it."""

    def __init__(self, target: str) -> None:
        self._host, _, port = target.partition("://")[2].partition(":")
        self._port = int(port)
        self.port = 0
        self.strips = False
        """The upgrade is lost in it."""
        self.server = ""
        """What it calls itself in answers."""
        self.cuts: list[int] = []
        """Each connection is cut after so many bytes of answers; when the list is used up, none is."""
        self.idle: float | None = None
        """A connection that was silent for so many seconds is closed …"""
        self.forgets = False
        """… or is dead and nobody is told."""
        self.connections = 0
        self.spoils = False
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()
        assert self._ready.wait(WAIT)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(WAIT)

    def refuse(self) -> None:
        """Cut what is open, and take no more."""
        self.idle = -1
        self._loop.call_soon_threadsafe(self._server.close)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._server = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        self._loop.run_forever()
        server.close()
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()

    def spoil(self) -> None:
        """Cut what is open, and answer whoever comes again with a fault of its own."""
        self.spoils = True
        self.idle = -1

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        if self.spoils:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 500 Oops\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            writer.close()
            return
        far_reader, far_writer = await asyncio.open_connection(self._host, self._port)
        road = _Road(self, self.cuts.pop(0) if self.cuts else None)
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            if self.strips:
                lines = head.split(b"\r\n")
                head = b"\r\n".join(one for one in lines if not one.lower().startswith((b"upgrade:", b"connection:")))
            far_writer.write(head)
            pumps = [
                asyncio.create_task(road.pump(reader, far_writer, False)),
                asyncio.create_task(road.pump(far_reader, writer, True)),
                asyncio.create_task(road.watch()),
            ]
            try:
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for pump in pumps:
                    pump.cancel()
                await asyncio.gather(*pumps, return_exceptions=True)
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            for one in (writer, far_writer):
                one.transport.abort()


class _Road:
    """One connection through the relay."""

    def __init__(self, relay: Relay, cut: int | None) -> None:
        self._relay = relay
        self._left = cut
        self._heard = time.monotonic()
        self._dead = False
        self._first = True

    async def pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answers: bool) -> None:
        while data := await reader.read(1 << 16):
            self._heard = time.monotonic()
            if self._dead:
                continue
            if answers and self._first and self._relay.server:
                data = data.replace(b"\r\n", f"\r\nserver: {self._relay.server}\r\n".encode(), 1)
            self._first = self._first and not answers
            if answers and self._left is not None:
                data = data[: self._left]
                self._left -= len(data)
            writer.write(data)
            await writer.drain()
            if self._left == 0:
                return

    async def watch(self) -> None:
        while True:
            await asyncio.sleep(0.02)
            if self._relay.idle is not None and time.monotonic() - self._heard > self._relay.idle:
                if not self._relay.forgets:
                    return
                self._dead = True


@pytest.fixture
def relay_to() -> Iterator[Callable[[str], Relay]]:
    """Make a relay before an address."""
    made: list[Relay] = []

    def make(target: str) -> Relay:
        relay = Relay(target)
        relay.start()
        made.append(relay)
        return relay

    yield make
    for relay in made:
        relay.stop()
