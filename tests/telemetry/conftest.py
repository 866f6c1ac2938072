"""A Valkey, nodes as processes, a collector that decodes what they export, and agents of the real SDK that trace."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, Protocol, TypeVar

import httpx2
import pytest
import websockets
from websockets.asyncio.client import ClientConnection

from fairlead.store.embedded_valkey.server import EmbeddedValkey
from fairlead.wire.codec import agent_codec
from fairlead.wire.messages import SUBPROTOCOL_MSGPACK, Hb, Hello, Message, Welcome

from support.gateway_process import ServeProcess
from support.otlp_collector import Collector, collecting

M = TypeVar("M", bound=Message)
PATIENCE = 60.0
"""Far more than anything takes: these tests measure no time, and must bear a machine that does much else."""
AGENT = """
import asyncio, sys
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from fairlead.agent import Agent

url, name, collector = sys.argv[1:]
provider = TracerProvider(resource=Resource.create({"service.name": "agent"}))
provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(f"{collector}/v1/traces")))
trace.set_tracer_provider(provider)
tracer = trace.get_tracer("test")
agent = Agent(url, name, token="development-agent-token")

@agent.command("greet")
async def greet(name: str = "you") -> object:
    with tracer.start_as_current_span("look up"):
        await asyncio.sleep(0.01)
    yield f"hello {name}\\n"
    await asyncio.sleep(0.02)

@agent.command("blocking")
def blocking() -> str:
    with tracer.start_as_current_span("block"):
        return "done"

@agent.command("fail")
async def fail(after: float = 0.0) -> str:
    await asyncio.sleep(after)
    raise ValueError("no such thing")

@agent.command("wait")
async def wait(seconds: float) -> str:
    await asyncio.sleep(seconds)
    return "waited"

agent.run()
"""


class Node(ServeProcess):
    """A node, and what it tells of itself."""

    def metrics(self, accept: str = "") -> str:
        return httpx2.get(f"{self.admin}/metrics", headers={"accept": accept} if accept else {}, trust_env=False).text

    def metric(self, line: str) -> float:
        """The value of a sample by all that stands before it; 0 when there is none."""
        found = [one for one in self.metrics().splitlines() if one.startswith(f"{line} ")]
        return float(found[0].rpartition(" ")[2]) if found else 0.0


class MakeNode(Protocol):
    def __call__(self, name: str, *flags: str) -> Node: ...


@pytest.fixture
def make_node(shared_valkey: EmbeddedValkey, tmp_path: Path) -> Iterator[MakeNode]:
    """Heartbeats are rare unless a test asks for others: scripted agents send none, and must not count as silent on a
    busy machine."""
    made: list[Node] = []

    def make(name: str, *flags: str) -> Node:
        made.append(Node(tmp_path, name, shared_valkey.url, "--heartbeat", "30", "--accept-rate", "5000", *flags))
        made[-1].wait_ready()
        return made[-1]

    yield make
    for node in made:
        node.stop()


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as made:
        yield made


class Platform:
    """The API of one node, as a caller uses it."""

    def __init__(self, http: httpx2.AsyncClient) -> None:
        self.http = http

    async def run(self, agent: str, method: str, payload: object = None, **headers: str) -> list[dict[str, Any]]:
        """Post a command and follow it to its end; all lines."""
        answer = await self.http.post(
            "/v1/commands", json={"agent": agent, "method": method, "payload": payload or {}},
            headers={"accept": "application/x-ndjson", **headers},
        )  # fmt: skip
        assert answer.status_code == 200, answer.text
        return [line for raw in answer.text.splitlines() if (line := httpx2.Response(200, text=raw).json())]

    async def post(self, agent: str, method: str, payload: object = None, **more: object) -> str:
        """Post a command without following it; its id."""
        body = {"agent": agent, "method": method, "payload": payload or {}, **more}
        answer = await self.http.post("/v1/commands", json=body)
        assert answer.status_code == 202, answer.text
        return str(answer.json()["id"])

    async def get(self, path: str) -> dict[str, Any]:
        """What it answers; a node that is too busy to be asked by another is asked again."""
        async with asyncio.timeout(PATIENCE):
            while (answer := await self.http.get(path)).status_code == 503:
                await asyncio.sleep(0.2)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    async def ranked(self, query: str = "") -> dict[str, Any]:
        """The ranking, once all nodes have answered in time."""
        async with asyncio.timeout(PATIENCE):
            while (found := await self.get(f"/v1/links{query}"))["missing"]:
                await asyncio.sleep(0.2)
        return found

    async def online(self, agent: str) -> None:
        async with asyncio.timeout(PATIENCE):
            while True:
                answer = await self.http.get(f"/v1/agents/{agent}")
                if answer.status_code == 200 and answer.json()["state"] == "online":
                    return
                await asyncio.sleep(0.05)


@pytest.fixture
def platform_of(http_of: Callable[[str], httpx2.AsyncClient]) -> Callable[[Node], Platform]:
    return lambda node: Platform(http_of(node.api))


class ScriptedAgent:
    """One link that says exactly what a test wants it to say."""

    def __init__(self, socket: ClientConnection, agent: str) -> None:
        self.socket = socket
        self._codec = agent_codec(SUBPROTOCOL_MSGPACK)
        self.agent = agent

    async def send(self, *messages: Message) -> None:
        for message in messages:
            await self.socket.send(self._codec.encode(message))

    async def expect(self, kind: type[M]) -> M:
        """The next message of `kind`; others are passed over."""
        async with asyncio.timeout(PATIENCE):
            while True:
                message = self._codec.decode(await self.socket.recv())
                if isinstance(message, kind):
                    return message

    async def trips(self, *seconds: float) -> None:
        """Report round trips, and see them taken."""
        for n, trip in enumerate(seconds, 1):
            await self.send(Hb(ts=n, rtt=trip * 1000))
            assert (await self.expect(Hb)).echo == n

    async def close(self) -> None:
        await self.socket.close()


@pytest.fixture
async def dial() -> AsyncIterator[Callable[..., Awaitable[ScriptedAgent]]]:
    sockets: list[ClientConnection] = []

    async def connect(node: Node, agent: str, conn: int = 1, **options: Any) -> ScriptedAgent:
        socket = await websockets.connect(
            f"{node.link}/v1/link",
            subprotocols=[websockets.Subprotocol(SUBPROTOCOL_MSGPACK)],
            additional_headers={"Authorization": "Bearer development-agent-token"},
            compression=None, ping_interval=None, proxy=None, **options,
        )  # fmt: skip
        sockets.append(socket)
        made = ScriptedAgent(socket, agent)
        await made.send(Hello(agent=agent, boot="scripted", conn=conn))
        await made.expect(Welcome)
        return made

    yield connect
    for socket in sockets:
        socket.transport.abort()


@pytest.fixture
def start_agent(tmp_path: Path) -> Iterator[Callable[[Node, str, Collector], Awaitable[None]]]:
    """An agent that traces, as a program of its own."""
    running: list[subprocess.Popen[bytes]] = []
    program = tmp_path / "agent.py"
    program.write_text(AGENT)

    async def start(node: Node, name: str, collector: Collector) -> None:
        with (tmp_path / f"{name}.log").open("ab") as log:
            running.append(
                subprocess.Popen([sys.executable, str(program), node.link, name, collector.url], stdout=log, stderr=log)
            )

    yield start
    for process in running:
        process.terminate()
        process.wait(PATIENCE)
