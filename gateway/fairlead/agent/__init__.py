"""The agent SDK: hold one link to the gateway and run what the platform asks for.

    from fairlead.agent import Agent

    agent = Agent("ws://127.0.0.1:8080", id="host-1", token="…")

    @agent.command("greet")
    async def greet(name: str, times: int = 1):
        for _ in range(times):
            yield f"hello {name}\\n"

    if __name__ == "__main__":
        agent.run()

It stands on the carrier and the wire alone: no Starlette, no uvicorn, no redis. It needs Linux: programs are confined,
ended and shown in terminals with its system calls.
"""

import sys

if sys.platform == "win32":
    raise ImportError("fairlead.agent needs Linux: on Windows run it in a container or in WSL, the Linux of Windows")

from fairlead.agent.agent import Agent
from fairlead.agent.commands.command import Command
from fairlead.agent.errors import CommandError

__all__ = ["Agent", "Command", "CommandError"]
