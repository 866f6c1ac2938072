"""The agents of the trial, some hundred of one kind in one process outside the cluster.

    python -m trial.agents KIND URL FIRST COUNT RATE BOOK

Started by `fleet`. KIND is `fairlead`, agents of the SDK, or `plain`, clients of the library websockets as its
documentation writes them: a loop that connects again, and a task for each message. Both do the same work, write each
command that they begin to BOOK, and put their names into the URL, where the Ingress logs them.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
from collections.abc import AsyncIterator

import uvloop
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from fairlead.agent import Agent

from trial.calls import text


def name(number: int) -> str:
    return f"agent-{number}"


class ExecutionLog:
    """A line for each command that is begun, written before its first result."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def begin(self, key: str) -> None:
        os.write(self._file, f"{key}\n".encode())


async def fairlead_agent(url: str, agent: str, executions: ExecutionLog) -> None:
    sdk = Agent(f"{url}/v1/link?trial={agent}", id=agent, token=os.environ["FAIRLEAD_AGENT_TOKEN"])

    @sdk.command("work")
    async def work(key: str, count: int, pause: float) -> AsyncIterator[str]:
        executions.begin(key)
        for n in range(count):
            yield f"{text(key, n)}\n"
            await asyncio.sleep(pause)

    @sdk.command("answer")
    async def answer() -> None: ...

    await sdk.serve()


async def plain_agent(url: str, agent: str, executions: ExecutionLog) -> None:
    work: set[asyncio.Task[None]] = set()
    while True:
        try:
            async for socket in connect(f"{url}/agents/{agent}"):
                try:
                    async for message in socket:
                        work.add(task := asyncio.create_task(_plain_work(socket, json.loads(message), executions)))
                        task.add_done_callback(work.discard)
                except ConnectionClosed:
                    continue
        except Exception:  # what the library takes for final, such as a 404 of the Ingress
            await asyncio.sleep(random.uniform(1, 2))


async def _plain_work(socket: ClientConnection, order: dict[str, object], executions: ExecutionLog) -> None:
    request, key = order["request"], str(order["key"])
    count, pause = int(str(order["count"])), float(str(order["pause"]))
    if count:
        executions.begin(key)
    try:
        for n in range(count):
            await socket.send(json.dumps({"request": request, "line": text(key, n)}))
            await asyncio.sleep(pause)
        await socket.send(json.dumps({"request": request, "end": "ok"}))
    except ConnectionClosed:
        pass  # the result has nowhere to go


async def serve(kind: str, url: str, first: int, count: int, rate: float, executions: ExecutionLog) -> None:
    """All of them, `rate` more in each second."""
    one = {"fairlead": fairlead_agent, "plain": plain_agent}[kind]
    async with asyncio.TaskGroup() as group:
        for number in range(first, first + count):
            group.create_task(one(url, name(number), executions))
            await asyncio.sleep(1 / rate)


if __name__ == "__main__":
    kind, url, first, count, rate, path = sys.argv[1:]
    uvloop.run(serve(kind, url, int(first), int(count), float(rate), ExecutionLog(path)))
