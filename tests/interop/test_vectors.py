"""Single messages played to the foreign agent, by a gateway that says exactly what the test says.

The conversations are played by `fairlead mock-gateway`: test_mock_gateway.py.
"""

from __future__ import annotations

import asyncio
import base64
import json
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.typing import Subprotocol

from fairlead.mock.script import data_of, load_messages

from support.interop.foreign_agent import StartForeign

HERE = Path(__file__).resolve().parent
MESSAGES = [v for v in load_messages() if v["direction"] == "gateway-to-agent"]
HELLO, WELCOME, HB, ACK, CHUNK, END, CREDIT, EVENT, BYE = 1, 2, 3, 5, 6, 7, 8, 10, 14
GREETING = {"t": WELCOME, "sid": "s", "gen": 1, "now": 1, "hb": 25_000}
SOON = {"first": 20, "base": 20, "cap": 50}  # ms: no test waits for a reconnect
TIMEOUT = 10.0


class ScriptedGateway:
    """A gateway that is driven by the test: it accepts every connection and sends what the test says."""

    def __init__(self) -> None:
        self._connections: asyncio.Queue[ServerConnection] = asyncio.Queue()
        self._server: Server | None = None
        self.link = ""
        self.socket: ServerConnection | None = None

    async def _serve(self, socket: ServerConnection) -> None:
        self._connections.put_nowait(socket)
        await socket.wait_closed()

    async def start(self) -> None:
        self._server = await serve(
            self._serve, "127.0.0.1", 0, subprotocols=[Subprotocol("fairlead.v1.json")], compression=None,
            ping_interval=None,
        )  # fmt: skip
        self.link = f"ws://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        await self._server.wait_closed()

    async def accept(self) -> None:
        self.socket = await asyncio.wait_for(self._connections.get(), TIMEOUT)

    async def send(self, *messages: dict[str, Any]) -> None:
        assert self.socket is not None
        for message in messages:
            await self.socket.send(json.dumps(message))
        # The agent answers pings in the order of reading: with the pong, it has read all of it.
        await asyncio.wait_for(await self.socket.ping(), TIMEOUT)

    async def receive(self) -> dict[str, Any]:
        """The next message that the agent must send."""
        assert self.socket is not None
        async with asyncio.timeout(TIMEOUT):
            while (message := dict(json.loads(await self.socket.recv())))["t"] in (HB, CREDIT):
                pass
        return message

    async def close_code(self) -> int:
        """Read on until the agent closes."""
        assert self.socket is not None
        try:
            async with asyncio.timeout(TIMEOUT):
                while True:
                    await self.socket.recv()
        except ConnectionClosed as closed:
            return closed.rcvd.code if closed.rcvd is not None else 1006

    def break_off(self) -> None:
        assert self.socket is not None
        self.socket.transport.abort()


@pytest.fixture
async def script() -> AsyncIterator[ScriptedGateway]:
    server = ScriptedGateway()
    await server.start()
    yield server
    await server.stop()


def contains(whole: object, part: object) -> bool:
    """null is an absent member."""
    if isinstance(part, dict):
        assert isinstance(whole, dict)
        return all(value is None or contains(whole.get(key), value) for key, value in part.items())
    return bool(whole == part)


def test_valid_messages_are_decoded(node_js: str) -> None:
    """Every member of the vector comes out of the agent's decoder with its value."""
    valid = [v for v in MESSAGES if v["valid"]]
    program = """
        import { decode } from "./messages.mjs";
        let input = "";
        for await (const part of process.stdin) input += part;
        const plain = (key, value) => value instanceof Map ? Object.fromEntries(value)
            : value?.type === "Buffer" ? Buffer.from(value.data).toString("base64") : value;
        console.log(JSON.stringify(JSON.parse(input).map(decode), plain));
    """
    done = subprocess.run(
        [node_js, "--input-type=module", "--eval", program], input=json.dumps([v["json"] for v in valid]),
        capture_output=True, text=True, timeout=20, cwd=HERE, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    decoded = json.loads(done.stdout)
    assert len(valid) == len(decoded) > 20
    for vector, got in zip(valid, decoded, strict=True):
        if vector.get("ignored"):
            assert got is None, vector["name"]
        else:
            assert contains(got, json.loads(vector["json"])), vector["name"]


async def test_deep_nesting_does_not_crash_the_agent(script: ScriptedGateway, start_foreign: StartForeign) -> None:
    """What JavaScript can read is an unknown key, to be ignored; in other languages it is 4500."""
    foreign = await start_foreign([script.link], "edge-17")
    await script.accept()
    await script.receive()
    await script.send(GREETING)
    assert script.socket is not None
    await script.socket.send('{"t":3,"x":' + "[" * 100_000 + "]" * 100_000 + "}")
    await script.send({"t": 3, "echo": 1})
    assert foreign.process.returncode is None
    assert not foreign.all("closed")


async def test_invalid_messages_are_refused(script: ScriptedGateway, start_foreign: StartForeign) -> None:
    foreign = await start_foreign([script.link], "edge-17")
    invalid = [v for v in MESSAGES if not v["valid"] and v["encoding"] == "json"]
    assert len(invalid) > 8
    cases = [(v["name"], data_of(v), v["close_code"]) for v in invalid if "or_read_as" not in v]
    for count, (name, data, code) in enumerate(cases, 1):
        await script.accept()
        await script.receive()
        await script.send({**GREETING, "retry": SOON})
        assert script.socket is not None
        await script.socket.send(data)
        assert await script.close_code() == code, name
        assert (await foreign.wait_for_line("closed", count))["own"], name


async def test_the_window_bounds_what_is_sent_and_buffered(
    script: ScriptedGateway, start_foreign: StartForeign
) -> None:
    foreign = await start_foreign([script.link], "edge-17", "--orders")
    await script.accept()
    await script.receive()
    await script.send({**GREETING, "limits": {"window": 16}}, {"t": 4, "id": "c1", "method": "exec", "credit": 16})
    assert (await script.receive())["t"] == ACK
    eight = base64.b64encode(b"8 bytes.").decode()
    for _ in range(3):
        await foreign.order("write", id="c1", kind="stdout", payload=eight)
    assert [(await script.receive())["n"] for _ in range(2)] == [0, 1]
    await foreign.order("event", type="after", qos=1, payload="")
    # The third write waits: 16 bytes are not stored, and there is no credit. The event needs none.
    assert (await script.receive())["t"] == EVENT
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(script.receive(), 0.3)
    await script.send({"t": 11, "s": 4})
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(script.receive(), 0.3)  # the third chunk was made, and has no credit
    await script.send({"t": CREDIT, "id": "c1", "bytes": 8})
    assert (await script.receive())["n"] == 2
