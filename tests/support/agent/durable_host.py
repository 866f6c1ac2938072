"""One machine with a durable agent: its program, its folder, and its process, however often that is killed.

Made by the fixture `host`. The program notes each start of a handler in a file, so that a test can count them over
restarts.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Unpack

from fairlead.wire.messages import Hello

from support.agent.agent_process import AgentProcess
from support.agent.scripted_gateway import Gateway
from support.agent.scripted_link import Link, WelcomeOptions

AGENT = '''
import asyncio, resource, sys
from pathlib import Path
from fairlead.agent import Agent, Command
from fairlead.errors import Unavailable

here = Path(__file__).parent
agent = Agent(sys.argv[1], "edge-1", "token-1", journal=here / "memory")

def ran(command):
    with (here / "runs").open("a") as f:
        f.write(f"{command.id} {command.attempt}\\n")

@agent.command("count")
async def count(command: Command, chunks: int, hang: bool = False):
    ran(command)
    for n in range(chunks):
        yield f"{n}\\n"
    if hang:
        await asyncio.Event().wait()

@agent.command("read-then-hang")
async def read_then_hang(command: Command):
    ran(command)
    await command.stdin.read()
    await asyncio.Event().wait()

@agent.command("once-hung")
async def once_hung(command: Command) -> str:
    """Hangs in the first process that runs it."""
    ran(command)
    if len((here / "runs").read_text().splitlines()) == 1:
        await asyncio.Event().wait()
    return "done"

@agent.command("emit")
async def emit(count: int) -> list[str]:
    failed = []
    for n in range(count):
        try:
            agent.emit("happened", n)
        except Unavailable as e:
            failed.append(e.code)
    return failed

@agent.command("no-more-disk")
async def no_more_disk() -> None:
    """From now on a write beyond what the journal has fails, as on a full disk."""
    size = (here / "memory" / "journal").stat().st_size
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 200, resource.RLIM_INFINITY))

@agent.command("until-full")
async def until_full(command: Command):
    await no_more_disk()
    for n in range(100):
        await command.write("stdout", f"{n:050d}")

@agent.command("emit-when-full")
async def emit_when_full() -> list[str]:
    await no_more_disk()
    return await emit(10)

if __name__ == "__main__":
    agent.run()
'''


class DurableHost:
    """One machine: the agent's program and its folder, however often the process is killed."""

    def __init__(self, gateway: Gateway, folder: Path, start: Callable[..., AgentProcess]) -> None:
        self.gateway = gateway
        self.folder = folder
        self.memory = folder / "memory"
        self._start = start
        (folder / "durable.py").write_text(AGENT)
        self.process: AgentProcess | None = None

    async def linked(self, **welcome: Unpack[WelcomeOptions]) -> Link:
        self.process = self._start(str(self.folder / "durable.py"), self.gateway.url)
        return await self.gateway.linked(**welcome)

    async def killed(self) -> None:
        assert self.process is not None
        self.process.signal(signal.SIGKILL)
        await self.process.exit_code()

    @property
    def runs(self) -> list[str]:
        path = self.folder / "runs"
        return path.read_text().splitlines() if path.exists() else []


def hello(link: Link) -> Hello:
    return link.of(Hello)[0]
