"""A Valkey, nodes as processes, a collector that decodes what they export, and agents of the real SDK that trace."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
import websockets
from websockets.asyncio.client import ClientConnection

from fairlead.store.embedded_valkey.server import EmbeddedValkey
from fairlead.wire.messages import SUBPROTOCOL_MSGPACK, Hello, Welcome

from support.otlp_collector import Collector, collecting
from support.telemetry.node import MakeNode, Node
from support.telemetry.platform_api import TIMEOUT, Platform
from support.telemetry.scripted_agent import ScriptedLink

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


@pytest.fixture
def platform_of(http_of: Callable[[str], httpx2.AsyncClient]) -> Callable[[Node], Platform]:
    return lambda node: Platform(http_of(node.api))


@pytest.fixture
async def dial() -> AsyncIterator[Callable[..., Awaitable[ScriptedLink]]]:
    sockets: list[ClientConnection] = []

    async def connect(node: Node, agent: str, conn: int = 1, **options: Any) -> ScriptedLink:
        socket = await websockets.connect(
            f"{node.link}/v1/link",
            subprotocols=[websockets.Subprotocol(SUBPROTOCOL_MSGPACK)],
            additional_headers={"Authorization": "Bearer development-agent-token"},
            compression=None, ping_interval=None, proxy=None, **options,
        )  # fmt: skip
        sockets.append(socket)
        made = ScriptedLink(socket, agent)
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
        process.wait(TIMEOUT)
