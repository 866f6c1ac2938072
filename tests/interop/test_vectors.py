"""tests/vectors played to the foreign agent, by a gateway that says exactly what the script says.

The conversations are those in which an agent without a journal does right; where the script lets the agent break a
rule there is nothing to test in a correct one. Heartbeats and the moments of input credit are the agent's own choice.
"""

from __future__ import annotations

import asyncio
import base64
import json
import subprocess
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.typing import Subprotocol

HERE = Path(__file__).resolve().parent
VECTORS = HERE.parent / "vectors"
MESSAGES = [v for v in json.loads((VECTORS / "messages.json").read_text()) if v["direction"] == "gateway-to-agent"]
CONVERSATIONS = json.loads((VECTORS / "conversations.json").read_text())
HELLO, WELCOME, HB, ACK, CHUNK, END, CREDIT, EVENT, BYE = 1, 2, 3, 5, 6, 7, 8, 10, 14
GREETING = {"t": WELCOME, "sid": "s", "gen": 1, "now": 1, "hb": 25_000}
SOON = {"first": 20, "base": 20, "cap": 50}  # ms: no test waits for a reconnect
PATIENCE = 10.0


def playable(conversation: dict[str, Any]) -> bool:
    steps = conversation["steps"]
    durable = any("caps" in step.get("agent", {}) for step in steps)
    return not durable and {"by": "gateway", "code": 4500} not in [step.get("close") for step in steps]


class Script:
    """A gateway that has no mind of its own: connections as they come, messages as the test wants them."""

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
        self.socket = await asyncio.wait_for(self._connections.get(), PATIENCE)

    async def say(self, *messages: dict[str, Any]) -> None:
        assert self.socket is not None
        for message in messages:
            await self.socket.send(json.dumps(message))
        # The agent answers pings in the order of reading: with the pong, it has read all of it.
        await asyncio.wait_for(await self.socket.ping(), PATIENCE)

    async def hear(self) -> dict[str, Any]:
        """The next message that is not a mere possibility."""
        assert self.socket is not None
        async with asyncio.timeout(PATIENCE):
            while (message := dict(json.loads(await self.socket.recv())))["t"] in (HB, CREDIT):
                pass
        return message

    async def close_code(self) -> int:
        """Read on until the agent closes."""
        assert self.socket is not None
        try:
            async with asyncio.timeout(PATIENCE):
                while True:
                    await self.socket.recv()
        except ConnectionClosed as closed:
            return closed.rcvd.code if closed.rcvd is not None else 1006

    def break_off(self) -> None:
        assert self.socket is not None
        self.socket.transport.abort()


@pytest.fixture
async def script() -> AsyncIterator[Script]:
    server = Script()
    await server.start()
    yield server
    await server.stop()


def canonical(message: dict[str, Any], events: dict[str, str]) -> dict[str, Any]:
    """What counts of a message of the agent: no defaults, nothing that it may choose."""
    free = {HELLO: ("boot", "sdk", "facts", "resume"), EVENT: ("time",), END: ("payload",)}
    left = {k: v for k, v in message.items() if k not in free.get(message["t"], ()) and v not in ("", {}, None)}
    if message["t"] == END and message.get("payload"):
        left["payload"] = json.loads(base64.b64decode(message["payload"]))
    if message["t"] == EVENT:
        left["id"] = events.get(message["id"], message["id"])
        left.setdefault("qos", 1)
    if left.get("state") in ("ok", "accepted"):
        del left["state"]
    if left.get("state") == "cancelled":
        left.pop("error", None)  # it says no more than the state
    if left.get("error"):
        left["error"] = left["error"]["code"]
    return left


class Player:
    """One conversation: makes the puppet do what the script's agent does, and compares what it says."""

    def __init__(self, script: Script, start: Any, conversation: dict[str, Any]) -> None:
        self._script = script
        self._start = start
        self._steps = conversation["steps"]
        self._foreign: Any = None
        self._boots: dict[str, str] = {}  # the script's to the agent's
        self._events: dict[str, str] = {}  # the agent's to the script's
        self._written: Counter[str] = Counter()
        self._ended: set[str] = set()
        self._taken = 0

    async def play(self) -> Any:
        await self._begin()
        for step in self._steps:
            if "agent" in step:
                await self._agent(step["agent"])
            elif "gateway" in step:
                message = dict(step["gateway"])
                if message["t"] == WELCOME:
                    message["retry"] = SOON
                await self._script.say(message) if step is not self._steps[-2] else await self._last_words(message)
            elif "takes" in step:
                self._taken += 1
                await self._foreign.order("take", id=step["takes"])
                await self._foreign.tells("took", self._taken)
            elif "close" in step:
                await self._close(**step["close"])
            elif "lost" in step:
                self._script.break_off()
            elif "restart" in step:
                await self._foreign.aclose()
                await self._begin()
        return self._foreign

    async def _last_words(self, message: dict[str, Any]) -> None:
        """The agent may close for it, and then answers no ping."""
        try:
            await self._script.say(message)
        except ConnectionClosed:
            assert "close" in self._steps[-1]

    async def _begin(self) -> None:
        refuses = any(step.get("agent", {}).get("state") == "refused" for step in self._steps)
        self._foreign = await self._start([self._script.link], "edge-17", *(() if refuses else ("--puppet",)))
        self._written.clear()

    async def _close(self, by: str, code: int) -> None:
        if by == "agent":
            assert await self._script.close_code() == code
        else:
            assert self._script.socket is not None
            await self._script.socket.close(code)
            assert (await self._foreign.tells("closed"))["code"] == code

    async def _agent(self, expected: dict[str, Any]) -> None:
        kind, stream = expected["t"], expected.get("id", "")
        if kind in (HB, CREDIT, BYE) or kind >= 64:
            return
        if kind == HELLO:
            await self._script.accept()
        elif kind == CHUNK and expected["n"] == self._written[stream]:
            self._written[stream] += 1
            await self._foreign.order("write", id=stream, kind=expected["kind"], payload=expected["payload"])
        elif kind == END and expected.get("state", "ok") == "ok" and stream not in self._ended:
            self._ended.add(stream)
            await self._foreign.order("end", id=stream, end={}, payload=expected["payload"])
        elif kind == EVENT and stream not in self._events.values():
            event = {k: v for k, v in expected.items() if k in ("type", "qos")}
            await self._foreign.order("event", event=event, payload=expected.get("payload", ""))
        heard = await self._script.hear()
        if kind == EVENT:
            self._events.setdefault(heard["id"], stream)
        if kind == HELLO:
            assert self._boots.setdefault(expected["boot"], heard["boot"]) == heard["boot"]
        assert canonical(heard, self._events) == canonical(expected, {})


@pytest.mark.parametrize("conversation", [c for c in CONVERSATIONS if playable(c)], ids=lambda c: c["name"])
async def test_conversations(script: Script, start_foreign: Any, conversation: dict[str, Any]) -> None:
    foreign = await Player(script, start_foreign, conversation).play()
    assert bool(foreign.all("violation")) == conversation["name"].startswith("violation")
    assert not foreign.all("disobeyed")


def contains(whole: Any, part: Any) -> bool:
    """null is an absent member."""
    if isinstance(part, dict):
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


async def test_deep_nesting_does_no_harm(script: Script, start_foreign: Any) -> None:
    """What JavaScript can read is an unknown key, to be ignored; in other languages it is 4500."""
    foreign = await start_foreign([script.link], "edge-17")
    await script.accept()
    await script.hear()
    await script.say(GREETING)
    assert script.socket is not None
    await script.socket.send('{"t":3,"x":' + "[" * 100_000 + "]" * 100_000 + "}")
    await script.say({"t": 3, "echo": 1})
    assert foreign.process.returncode is None
    assert not foreign.all("closed")


async def test_invalid_messages_are_refused(script: Script, start_foreign: Any) -> None:
    foreign = await start_foreign([script.link], "edge-17")
    invalid = [v for v in MESSAGES if not v["valid"] and v["encoding"] == "json"]
    assert len(invalid) > 8
    cases = [(v["name"], v["websocket"], v["data"], v["close_code"]) for v in invalid]
    cases += [("too big", "text", '{"t":64,"x":"' + "x" * (1 << 20) + '"}', 1009)]
    for count, (name, kind, data, code) in enumerate(cases, 1):
        await script.accept()
        await script.hear()
        await script.say({**GREETING, "retry": SOON})
        assert script.socket is not None
        await script.socket.send(bytes.fromhex(data) if kind == "binary" else data.encode(), text=kind == "text")
        assert await script.close_code() == code, name
        assert (await foreign.tells("closed", count))["own"], name


async def test_the_window_bounds_what_is_sent_and_what_is_held(script: Script, start_foreign: Any) -> None:
    foreign = await start_foreign([script.link], "edge-17", "--puppet")
    await script.accept()
    await script.hear()
    await script.say({**GREETING, "limits": {"window": 16}}, {"t": 4, "id": "c1", "method": "x", "credit": 16})
    assert (await script.hear())["t"] == ACK
    eight = base64.b64encode(b"8 bytes.").decode()
    for _ in range(3):
        await foreign.order("write", id="c1", kind="stdout", payload=eight)
    await foreign.order("event", event={"type": "after"}, payload="")
    assert [(await script.hear())["n"] for _ in range(2)] == [0, 1]
    # The third write waits: 16 bytes are not stored. Orders are obeyed in turn, so the event waits with it.
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(script.hear(), 0.3)
    await script.say({"t": 11, "s": 3})
    assert (await script.hear())["t"] == EVENT  # the third chunk was made, and has no credit
    await script.say({"t": CREDIT, "id": "c1", "bytes": 8})
    assert (await script.hear())["n"] == 2
