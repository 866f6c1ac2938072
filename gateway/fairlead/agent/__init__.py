"""The agent SDK: keep one link to the gateway and run what the platform asks for.

    from fairlead.agent import Agent

    agent = Agent("ws://127.0.0.1:8080", id="host-1", token="…")

    @agent.command("greet")
    async def greet(name: str, times: int = 1):
        for _ in range(times):
            yield f"hello {name}\\n"

    if __name__ == "__main__":
        agent.run()

A handler that takes a `Command` as its first parameter can write output itself and read input from `command.stdin`.

`agent` is the class above; `link` keeps the link and sends, `commands` runs handlers, `journal` remembers across
restarts, `host` is about this process and machine. `builtin` and `settings` are what `fairlead agent run` adds. The
SDK imports nothing of the gateway but the carrier's client and the wire protocol: no Starlette, no uvicorn, no redis.
It needs Linux: programs are confined, ended and shown in terminals with its system calls.
"""

import sys

if sys.platform == "win32":
    raise ImportError("fairlead.agent needs Linux: on Windows run it in a container or in WSL")

from fairlead.agent.agent import Agent
from fairlead.agent.commands.command import Command, Stdin
from fairlead.agent.errors import CommandError, JournalFailed, JournalFull
from fairlead.agent.link.tls_files import TlsFiles

__all__ = ["Agent", "Command", "CommandError", "JournalFailed", "JournalFull", "Stdin", "TlsFiles"]
