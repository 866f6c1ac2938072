"""Signals: the drain runs before anything is closed, and the process ends with exit code 0."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from fairlead.carrier.http_server.uvicorn_server import SAME_STOP

from support.carrier.servers import Dial

pytestmark = pytest.mark.asyncio(loop_scope="module")


PROGRAM = """
import asyncio, sys
import uvloop
from starlette.applications import Starlette
from starlette.routing import WebSocketRoute
from fairlead.carrier.attach import attach
from fairlead.carrier.http_server.uvicorn_server import Server, config
from fairlead.carrier.timer_wheel import TimerWheel

MODE, EPOLL = sys.argv[1], sys.argv[2] == "True"

def report(*words):
    print(*words, flush=True)

class Listener:
    def on_open(self, connection):
        connections.append(connection)
        report("open")
    def on_message(self, connection, message):
        connection.send(message)
        heard.set()
    def on_close(self, connection, code, reason): report("closed", code)
    def on_silence(self, connection): pass
    def on_writable(self, connection): pass
    def on_overflow(self, connection): pass

connections = []
heard = asyncio.Event()

async def link(websocket):
    await attach(websocket, Listener())

async def drain():
    report("drain begins")
    if MODE == "fails":
        raise RuntimeError("on purpose")
    if MODE == "hangs":
        await asyncio.sleep(3600)
    for connection in connections:
        connection.send("drain")
    if MODE == "serves":
        await asyncio.wait_for(heard.wait(), 20)
    report("drain ends")

async def main():
    app = Starlette(routes=[WebSocketRoute("/", link)])
    async with TimerWheel(tick=0.05) as timer_wheel:
        server = Server(config(app, timer_wheel=timer_wheel, close_timeout=0.5, epoll=EPOLL), on_stop=drain)
        other = Server(config(app, timer_wheel=timer_wheel), own_signals=False)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(other.serve())
            running = tasks.create_task(server.serve())
            while not (server.started and other.started):
                await asyncio.sleep(0.01)
            report("port", server.address[1])
            await running
            other.should_exit = True
    report("done")

uvloop.run(main())
"""


class ServerProcess:
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.lines: list[str] = []

    async def read_line(self, words: str) -> str:
        """The next line that begins with these words; what comes before is kept in `lines`."""
        assert self.process.stdout is not None
        async with asyncio.timeout(20):
            while line := (await self.process.stdout.readline()).decode().strip():
                self.lines.append(line)
                if line.startswith(words):
                    return line
        raise AssertionError(f"{words!r} was not lines: {self.lines}")


Spawn = Callable[[str], Awaitable[ServerProcess]]


@pytest_asyncio.fixture(loop_scope="module")
async def spawn(tmp_path: Path, epoll: bool) -> AsyncIterator[Spawn]:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    started: list[asyncio.subprocess.Process] = []

    async def start(mode: str) -> ServerProcess:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            str(program),
            mode,
            str(epoll),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        started.append(process)
        return ServerProcess(process)

    yield start
    for process in started:
        if process.returncode is None:
            process.kill()
        await process.communicate()


@pytest.mark.parametrize("numbers", [(signal.SIGTERM,), (signal.SIGINT,), (signal.SIGTERM, signal.SIGINT)])
async def test_the_first_signal_drains_and_exits_with_0(
    spawn: Spawn, dial: Dial, numbers: tuple[signal.Signals, ...]
) -> None:
    """Two in the same moment are one stop: Ctrl-C reaches a process group, and a wrapper may hand it on as well."""
    program = await spawn("serves")
    port = int((await program.read_line("port")).split()[1])
    raw = await dial(port)
    await program.read_line("open")
    for number in numbers:
        program.process.send_signal(number)
    assert await raw.frame() == (0x81, b"drain")
    raw.send(0x82, b"still served")
    assert await raw.frame() == (0x82, b"still served")
    assert await raw.frame() == (0x88, (1012).to_bytes(2, "big") + b"restart")
    raw.send(0x88, (1012).to_bytes(2, "big"))
    await program.read_line("done")
    assert program.lines[-4:] == ["drain begins", "drain ends", "closed 1012", "done"]
    assert await asyncio.wait_for(program.process.wait(), 20) == 0


async def test_the_second_signal_stops_at_once(spawn: Spawn) -> None:
    program = await spawn("hangs")
    await program.read_line("port")
    program.process.send_signal(signal.SIGTERM)
    await program.read_line("drain begins")
    await asyncio.sleep(SAME_STOP)  # what comes before belongs to the first
    program.process.send_signal(signal.SIGTERM)
    await program.read_line("done")
    assert await asyncio.wait_for(program.process.wait(), 20) == 0


async def test_a_drain_that_fails_still_stops(spawn: Spawn) -> None:
    program = await spawn("fails")
    await program.read_line("port")
    program.process.send_signal(signal.SIGTERM)
    await program.read_line("done")
    assert await asyncio.wait_for(program.process.wait(), 20) == 0


async def test_a_peer_that_never_answers_does_not_keep_the_process_alive(spawn: Spawn, dial: Dial) -> None:
    program = await spawn("drains")
    raw = await dial(int((await program.read_line("port")).split()[1]))
    await program.read_line("open")
    program.process.send_signal(signal.SIGTERM)
    await program.read_line("done")
    assert "closed 1012" in program.lines
    assert await asyncio.wait_for(program.process.wait(), 20) == 0
    assert raw is not None
