"""An agent of the SDK whose method `exec` does what it is ordered on stdin: see docs/protocol.md, section 14.

python controlled_agent.py ws://127.0.0.1:8090 msgpack [FOLDER OF A JOURNAL]
"""

from __future__ import annotations

import asyncio
import base64
import json
import sys
import threading
from typing import Literal

from fairlead.agent import Agent, Command

url, encoding, *journal = sys.argv[1:]
agent = Agent(url, "edge-17", "any token", encoding=encoding, journal=journal[0] if journal else None)  # type: ignore[arg-type]
commands: dict[str, Command] = {}
ends: dict[str, asyncio.Future[object]] = {}


@agent.command("exec")
async def execute(command: Command, argv: list[str]) -> object:
    commands[command.id] = command
    ends[command.id] = asyncio.get_running_loop().create_future()
    return await ends[command.id]


async def obey(
    order: str, number: int, id: str = "", payload: str = "", kind: str = "", type: str = "", qos: Literal[0, 1] = 0
) -> None:
    data = base64.b64decode(payload)
    if order == "write":
        await commands[id].write(kind, data)
    elif order == "end":
        ends[id].set_result(json.loads(data))
    elif order == "take":
        await commands[id].stdin.read()
    elif order == "event":
        agent.emit(type, json.loads(data), qos=qos)
    elif order == "leave":
        agent.stop()
    print(json.dumps({"done": number}), flush=True)


async def serve() -> None:
    loop = asyncio.get_running_loop()
    tasks = set()

    def ordered(line: str) -> None:
        tasks.add(loop.create_task(obey(**json.loads(line))))

    def hear() -> None:
        for line in sys.stdin:
            loop.call_soon_threadsafe(ordered, line)

    threading.Thread(target=hear, daemon=True).start()
    await agent.serve()


asyncio.run(serve())
