"""A gateway that does exactly what the test says, on a real socket, and agents that are linked to it.

Each link is judged by the gateway's own state machine, so that a test fails when the agent breaks the protocol
(a gap, a chunk beyond the credit, anything before welcome), even where the test looks at something else.
"""

from __future__ import annotations

import asyncio
import json
import os
import ssl as tls
import subprocess
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any, TypeVar

import psutil
import pytest
import websockets
from websockets.asyncio.server import Server, ServerConnection
from websockets.datastructures import Headers
from websockets.http11 import Request, Response

from fairlead.agent import Agent
from fairlead.errors import ProtocolViolation
from fairlead.wire.codec import Codec, gateway_codec
from fairlead.wire.gateway_link import Act, GatewayLink, Stream
from fairlead.wire.messages import (
    SUBPROTOCOL_JSON,
    SUBPROTOCOL_MSGPACK,
    WINDOW,
    Ack,
    Bye,
    Cancel,
    Chunk,
    Cmd,
    Credit,
    Drain,
    End,
    Event,
    FromAgent,
    Hb,
    Hello,
    Limits,
    Message,
    Retry,
    Welcome,
)

PATIENCE = 20.0
"""Seconds for anything that must happen: the machine may be busy with other tests."""
SOON = Retry(first=20, base=20, cap=100)
"""A policy for tests that do not look at it."""

M = TypeVar("M", bound=Message)


class Link:
    """One connection of the agent, from the gateway's side. What was heard stays in `heard` with its time."""

    def __init__(self, socket: ServerConnection, codec: Codec[FromAgent]) -> None:
        self.socket = socket
        self.codec = codec
        self.heard: list[tuple[float, FromAgent]] = []
        self.violation: ProtocolViolation | None = None
        self.close_code: int | None = None
        """What the agent's close frame said; 1006 when there was none."""
        self.answers = True
        """Heartbeats are answered."""
        self.stores = True
        """What comes is receipted at once, and paid back as credit."""
        self.grants = True
        self.state = GatewayLink()
        self._unstored: deque[tuple[Message, Act]] = deque()
        self._news = asyncio.Event()

    # -- what the agent said -----------------------------------------------------------------------

    async def read(self) -> None:
        """Take in everything until the connection ends."""
        try:
            async for data in self.socket:
                assert isinstance(data, bytes | str)
                await self._take(data)
        except websockets.ConnectionClosed:
            pass
        finally:
            received = self.socket.protocol.close_rcvd
            self.close_code = received.code if received is not None else 1006
            self._news.set()

    async def _take(self, data: bytes | str) -> None:
        try:
            message = self.codec.decode(data)
            act = self.state.receive(message)
        except ProtocolViolation as violation:
            self.violation = violation
            await self.socket.close(violation.close_code, violation.message[:100])
            return
        if message is None:
            return
        self.heard.append((time.monotonic(), message))
        if act is Act.ANSWER and isinstance(message, Hb) and self.answers:
            await self.send(Hb(echo=message.ts))
        if isinstance(message, Ack | Chunk | End) or (isinstance(message, Event) and message.qos == 1):
            self._unstored.append((message, act))
            if isinstance(message, End):
                self.state.ended(message.id)
            if self.stores:
                await self.store(len(self._unstored))
        self._news.set()

    @property
    def unstored(self) -> int:
        """Numbered messages without a receipt."""
        return len(self._unstored)

    async def store(self, count: int) -> None:
        """Receipt the next `count` messages, and grant what they took."""
        granted: list[Credit] = []
        for _ in range(count):
            message, act = self._unstored.popleft()
            if isinstance(message, Chunk) and act is Act.STORE and self.grants:
                credit = self.state.repay(message.id, len(message.payload))
                if credit is not None:
                    granted.append(credit)
        await self.send(self.state.store(count), *granted)

    def of(self, kind: type[M], id: str | None = None) -> list[M]:
        """All messages of `kind` so far, of one stream if it is named."""
        return [m for _, m in self.heard if isinstance(m, kind) and (id is None or getattr(m, "id", None) == id)]

    def output(self, id: str, kind: str = "stdout") -> bytes:
        return b"".join(c.payload for c in self.of(Chunk, id) if c.kind == kind)

    def rows(self, id: str) -> list[Any]:
        return [json.loads(c.payload) for c in self.of(Chunk, id) if c.kind == "row"]

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until `condition` holds; it is looked at whenever something was heard."""
        try:
            async with asyncio.timeout(PATIENCE):
                while not condition():
                    assert self.close_code is None, f"closed with {self.close_code}; last heard: {self.last()}"
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            raise AssertionError(f"waited {PATIENCE:g} s in vain; last heard: {self.last()}") from None

    def last(self) -> str:
        """The last things heard, for a failure's message."""
        return " · ".join(repr(m)[:300] for _, m in self.heard[-5:])

    async def expect(self, kind: type[M], id: str | None = None) -> M:
        """The first message of `kind` on this link (of that stream), now or when it comes."""
        await self.until(lambda: bool(self.of(kind, id)))
        return self.of(kind, id)[0]

    async def end(self, id: str) -> End:
        return await self.expect(End, id)

    async def closed(self) -> int:
        """Wait until the agent has closed; the code it gave."""
        await self.until(lambda: self.close_code is not None)
        assert self.close_code is not None
        return self.close_code

    # -- what the gateway says ---------------------------------------------------------------------

    async def send(self, *messages: Message) -> None:
        for message in messages:
            try:
                await self.socket.send(self.codec.encode(message))
            except websockets.ConnectionClosed:
                return

    async def welcome(
        self,
        *,
        hb: int = 25_000,
        have: dict[str, int] | None = None,
        retry: Retry = SOON,
        window: int = WINDOW,
        resumed: bool = False,
    ) -> Hello:
        """Wait for hello and answer it; streams named in `have` are open again. Returns the hello."""
        hello = await self.expect(Hello)
        self.state.welcomed()
        self.state.window = window
        for command, n in (have or {}).items():
            self.state.opened(command, n, hello.have.get(command, 0))
        limits = Limits(window=window)
        await self.send(
            Welcome(
                sid="sid", gen=hello.conn, now=0, hb=hb, have=have or {}, retry=retry, limits=limits, resumed=resumed
            )
        )
        return hello

    async def command(
        self,
        id: str,
        method: str,
        arguments: object = None,
        *,
        deadline: int = 60_000,
        payload: bytes | None = None,
        **more: Any,
    ) -> Stream:
        """Send a cmd; its stream as this link sees it."""
        stream = self.state.stream(id) or self.state.opened(id)
        if payload is None:
            payload = json.dumps({} if arguments is None else arguments).encode()
        await self.send(Cmd(id=id, method=method, payload=payload, deadline=deadline, credit=self.state.window, **more))
        return stream

    async def feed(self, id: str, *parts: bytes) -> None:
        """Input for a command, behind what it got on this link."""
        stream = self.state.stream(id)
        assert stream is not None
        for part in parts:
            await self.send(Chunk(id=id, n=stream.input_next, kind="stdin", payload=part))
            stream.fed(len(part))

    async def feed_end(self, id: str) -> None:
        stream = self.state.stream(id)
        assert stream is not None
        await self.send(End(id=id, total=stream.input_next))

    async def cancel(self, id: str) -> None:
        await self.send(Cancel(id=id))

    async def drain(self, slot: int, retry: Retry | None = None) -> None:
        await self.send(Drain(why="rebalance", slot=slot, retry=retry))

    async def close(self, code: int, retry: int | None = None) -> None:
        """Say bye and close, as a gateway does."""
        self.state.closed()
        await self.send(Bye(code=code, retry=retry))
        await self.socket.close(code)

    async def cut(self) -> None:
        """Lose the connection without a word."""
        self.socket.transport.abort()
        await self.until(lambda: self.close_code is not None)


class Gateway:
    """The server. `refusals` are the answers to the next attempts; when they are used up, all are let in."""

    def __init__(self) -> None:
        self.refusals: deque[tuple[int, dict[str, str]]] = deque()
        self.attempts: list[float] = []
        self.requests: list[Request] = []
        self.links: list[Link] = []
        self._server: Server | None = None
        self._tls = False
        self._next = 0
        self._news = asyncio.Event()

    async def start(self, ssl: tls.SSLContext | None = None) -> None:
        self._tls = ssl is not None
        self._server = await websockets.serve(
            self._serve,
            "127.0.0.1",
            0,
            subprotocols=[websockets.Subprotocol(SUBPROTOCOL_MSGPACK), websockets.Subprotocol(SUBPROTOCOL_JSON)],
            process_request=self._asked,
            compression=None,
            ping_interval=None,
            close_timeout=5,
            max_size=1 << 20,
            ssl=ssl,
        )

    async def stop(self) -> None:
        assert self._server is not None
        for link in self.links:
            link.socket.transport.abort()
        self._server.close()
        await self._server.wait_closed()

    @property
    def url(self) -> str:
        assert self._server is not None
        port = next(iter(self._server.sockets)).getsockname()[1]
        return f"wss://localhost:{port}" if self._tls else f"ws://127.0.0.1:{port}"

    def _asked(self, socket: ServerConnection, request: Request) -> Response | None:
        self.attempts.append(time.monotonic())
        self.requests.append(request)
        self._news.set()
        if not self.refusals:
            return None
        status, headers = self.refusals.popleft()
        fields = Headers({"Content-Length": "0", "Connection": "close", **headers})
        return Response(status, HTTPStatus(status).phrase, fields, b"")

    async def _serve(self, socket: ServerConnection) -> None:
        link = Link(socket, gateway_codec(str(socket.subprotocol)))
        self.links.append(link)
        self._news.set()
        await link.read()

    async def attempted(self, count: int) -> None:
        """Wait until the agent has tried so often, refused attempts included."""
        async with asyncio.timeout(PATIENCE):
            while len(self.attempts) < count:
                self._news.clear()
                await self._news.wait()

    async def accept(self) -> Link:
        """The next connection, not welcomed yet."""
        async with asyncio.timeout(PATIENCE):
            while len(self.links) <= self._next:
                self._news.clear()
                await self._news.wait()
        self._next += 1
        return self.links[self._next - 1]

    async def linked(self, **welcome: Any) -> Link:
        """The next connection, welcomed: see Link.welcome."""
        link = await self.accept()
        await link.welcome(**welcome)
        return link


@pytest.fixture
async def gateway() -> AsyncIterator[Gateway]:
    gateway = Gateway()
    await gateway.start()
    yield gateway
    await gateway.stop()
    for link in gateway.links:
        assert link.violation is None, f"the agent broke the protocol: {link.violation}"


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A self-signed P-256 certificate for localhost, key and certificate in one file."""
    folder = tmp_path_factory.mktemp("tls")
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=localhost"
    files = f"-addext subjectAltName=DNS:localhost -keyout {folder}/key.pem -out {folder}/cert.pem"
    subprocess.run(f"{command} {files}".split(), check=True, capture_output=True, timeout=30)
    both = folder / "both.pem"
    both.write_bytes((folder / "key.pem").read_bytes() + (folder / "cert.pem").read_bytes())
    return both


@pytest.fixture
async def tls_gateway(certificate: Path) -> AsyncIterator[Gateway]:
    """One that is reached by wss://localhost."""
    context = tls.SSLContext(tls.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    gateway = Gateway()
    await gateway.start(context)
    yield gateway
    await gateway.stop()


class Proxy:
    """An HTTP proxy that knows CONNECT. `refuse` is a status that it answers with instead."""

    def __init__(self) -> None:
        self.heads: list[bytes] = []
        self.refuse = 0
        self.wants = ""
        """What Proxy-Authorization has to be."""
        self._server: asyncio.Server | None = None
        self._secure = False
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, ssl: tls.SSLContext | None = None) -> None:
        self._secure = ssl is not None
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0, ssl=ssl)

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def authority(self) -> str:
        assert self._server is not None
        return f"localhost:{self._server.sockets[0].getsockname()[1]}"

    @property
    def url(self) -> str:
        return f"http{'s' * self._secure}://{self.authority}"

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._tasks.add(task)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            self.heads.append(head)
            method, target, _ = head.split(b"\r\n")[0].split(b" ")
            assert method == b"CONNECT"
            status = self.refuse
            if self.wants and f"Proxy-Authorization: {self.wants}\r\n".encode() not in head:
                status = 407
            if status:
                writer.write(f"HTTP/1.1 {status} Refused\r\nContent-Length: 0\r\n\r\n".encode())
                await writer.drain()
                return
            host, _, port = target.decode().rpartition(":")
            far_reader, far_writer = await asyncio.open_connection(host, int(port))
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(_copy(reader, far_writer))
                    group.create_task(_copy(far_reader, writer))
            finally:
                far_writer.close()
        except* (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    raise ConnectionResetError("this way is over")  # and the other one with it


@pytest.fixture
async def proxy() -> AsyncIterator[Proxy]:
    proxy = Proxy()
    await proxy.start()
    yield proxy
    await proxy.stop()


@pytest.fixture
async def tls_proxy(certificate: Path) -> AsyncIterator[Proxy]:
    context = tls.SSLContext(tls.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    proxy = Proxy()
    await proxy.start(context)
    yield proxy
    await proxy.stop()


@pytest.fixture
async def serve(gateway: Gateway) -> AsyncIterator[Callable[[Agent], asyncio.Task[None]]]:
    """Run agents in this process; they are stopped at the end, which must not take long."""
    serving: list[tuple[Agent, asyncio.Task[None]]] = []

    def start(agent: Agent) -> asyncio.Task[None]:
        task = asyncio.create_task(agent.serve())
        serving.append((agent, task))
        return task

    yield start
    for agent, task in serving:
        if not task.done():
            agent.stop()
            async with asyncio.timeout(PATIENCE):
                await task


@pytest.fixture
def agent(gateway: Gateway) -> Agent:
    """One that is not started yet, so that the test can register its methods."""
    return Agent(gateway.url, "edge-1", "token-1", facts={"env": "test"})


class AgentProcess:
    """An agent in a process of its own. Its log is a file: a pipe that nobody reads would stop it."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self._log = folder / "agent.log"
        environment = os.environ | {
            "FAIRLEAD_AGENT_TOKEN": "token-1",
            "FAIRLEAD_AGENT_CONFIG": os.devnull,  # and not that of an agent which is installed here
            "PYTHONPATH": os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH", "")])),
        }
        with self._log.open("ab") as sink:
            self._process = subprocess.Popen(
                [sys.executable, *arguments], stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, env=environment
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def log(self) -> str:
        return self._log.read_text()

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    async def exit_code(self) -> int:
        return await asyncio.to_thread(self._process.wait, PATIENCE)

    def stop(self) -> None:
        """End it with all that it started."""
        if self._process.poll() is None:
            family = psutil.Process(self.pid).children(recursive=True)
            self._process.kill()
            for child in family:
                try:
                    child.kill()
                except psutil.NoSuchProcess:
                    pass
        self._process.wait(PATIENCE)


@pytest.fixture
def agent_process(tmp_path: Path) -> Iterator[Callable[..., AgentProcess]]:
    """Start `python …` with the test's folder on its path."""
    made: list[AgentProcess] = []

    def start(*arguments: str) -> AgentProcess:
        made.append(AgentProcess(tmp_path, *arguments))
        return made[-1]

    yield start
    for process in made:
        process.stop()


@pytest.fixture
def gone() -> Callable[[int], Any]:
    """Wait until no process has that pid: dead and reaped, or at least a zombie that only its parent can reap."""

    async def wait(pid: int) -> None:
        async with asyncio.timeout(PATIENCE):
            while _alive(pid):
                await asyncio.sleep(0.02)

    return wait


def _alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
