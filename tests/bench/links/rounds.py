"""One round of the bench: N clients connect, each sends `{"c": n}` and waits for `{"c": n, "ts": …}`, all then close.

All clients of a round are connected at once by its end. Every answer is checked: a server that mixes its clients up
has no figure. CPU time is the server's, over connects, answers and closes; latencies are what the client saw, whose
own work on the second core is in them.
"""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass

from fairlead.carrier.client import ClientConnection, connect
from fairlead.carrier.listener import Connection
from fairlead.carrier.timer_wheel import TimerWheel

from bench.probe import BenchProcess, cpu_us
from support.simulated_fleet import SOURCES

AT_ONCE = 100
"""Clients that are on their way at the same time."""
TIMEOUT = 60.0


@dataclass(frozen=True)
class Round:
    """Latencies in milliseconds."""

    cpu_us: float
    """Of the server, per client."""
    seconds: float
    connect_p50: float
    connect_p99: float
    answer_p50: float
    answer_p99: float
    load: float
    """The share of its core that the load generator used while the clients connected and asked."""


class RoundClient:
    """Asks once it is connected."""

    def __init__(self, number: int) -> None:
        self._number = number
        self.opened = 0.0
        self.answered: asyncio.Future[float] = asyncio.get_running_loop().create_future()

    def on_open(self, connection: Connection) -> None:
        self.opened = time.perf_counter()
        connection.send(json.dumps({"c": self._number}))

    def on_message(self, connection: Connection, message: bytes | str) -> None:
        answer = json.loads(message)
        if answer["c"] != self._number or not isinstance(answer["ts"], float | int):
            self.answered.set_exception(SystemExit(f"client {self._number} got {message!r}"))
        else:
            self.answered.set_result(time.perf_counter())

    def on_close(self, connection: Connection, code: int, reason: str) -> None:
        if not self.answered.done():
            self.answered.set_exception(SystemExit(f"client {self._number} was closed with {code} {reason}"))

    def on_silence(self, connection: Connection) -> None: ...
    def on_writable(self, connection: Connection) -> None: ...
    def on_overflow(self, connection: Connection) -> None: ...


async def stamped(process: BenchProcess, timer_wheel: TimerWheel, clients: int) -> Round:
    """One round at the server."""
    numbers = iter(range(clients))
    held: list[ClientConnection] = []
    connects: list[float] = []
    answers: list[float] = []

    async def work() -> None:
        for number in numbers:
            client, began = RoundClient(number), time.perf_counter()
            held.append(
                await connect(
                    f"ws://127.0.0.1:{process.port}/v1/link", client, timer_wheel=timer_wheel,
                    subprotocols=("fairlead.v1.msgpack",), local_address=SOURCES[number % len(SOURCES)],
                )
            )  # fmt: skip
            answered = await client.answered
            connects.append(client.opened - began)
            answers.append(answered - client.opened)

    cpu, started, own = cpu_us(process.pid), time.perf_counter(), time.process_time()
    async with asyncio.timeout(TIMEOUT):
        await asyncio.gather(*(work() for _ in range(min(AT_ONCE, clients))))
        seconds, own = time.perf_counter() - started, time.process_time() - own
        for connection in held:
            connection.close()
        while not all(connection.transport.is_closing() for connection in held):  # nothing tells of the last
            await asyncio.sleep(0.02)
    cpu = cpu_us(process.pid) - cpu
    connects.sort()
    answers.sort()
    middle, late = clients // 2, clients * 99 // 100
    return Round(
        cpu / clients, seconds, connects[middle] * 1000, connects[late] * 1000, answers[middle] * 1000,
        answers[late] * 1000, own / seconds,
    )  # fmt: skip
