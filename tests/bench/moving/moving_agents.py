"""Ten thousand light agents behind a load balancer that chooses at random, and what a rebalance does to each of them;
and one agent of the SDK beside them.

`bench.moving.rebalance` makes them. The light ones are those of `fairlead swarm`; instead of a proxy in front of the
nodes, which would cost more than the nodes, each connection goes to one of the nodes that are ready now.
"""

from __future__ import annotations

import asyncio
import random
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from fairlead.agent import Agent, Command
from fairlead.carrier.listener import Connection
from fairlead.settings import DEVELOPMENT_AGENT_TOKEN
from fairlead.swarm.agents.agent_pool import AgentPool
from fairlead.swarm.agents.simulated_agent import SimulatedAgent
from fairlead.swarm.options import SwarmOptions
from fairlead.swarm.profile import Profile
from fairlead.wire.messages import Drain, Welcome

PREFIX = "moved"


class MovingAgents(AgentPool):
    def __init__(self, count: int, rate: float, ports: Callable[[], Sequence[int]]) -> None:
        """`rate`: first connections per second. `ports`: of the nodes that take new connections now."""
        mix, sources = {Profile.IDLE.value: 1}, tuple(f"127.0.0.{n}" for n in range(2, 8))
        options = SwarmOptions("", DEVELOPMENT_AGENT_TOKEN, count, 1, rate, mix, prefix=PREFIX, sources=sources)
        super().__init__(options, 0, time.monotonic())
        self._ports = ports
        self._rng = random.Random(1)
        self._dialled: dict[int, int] = {}
        self.holders: dict[int, int] = {}
        """The port of the node that welcomed each agent last, by the agent's number."""
        self.slots: list[float] = []
        """When agents were told to move, by the monotonic clock."""
        self.closes: list[float] = []
        """When links ended after which the agents have others."""
        self.moves: Counter[int] = Counter()
        self.longest_away = 0.0
        """Seconds without a link, of any agent."""
        self._away: dict[int, float] = {}

    async def _dial(self, index: int, due: float) -> bool:
        self._dialled[index] = port = self._rng.choice(self._ports())
        self.dialer.url = f"ws://127.0.0.1:{port}/v1/link"
        return await super()._dial(index, due)

    def drained(self, agent: SimulatedAgent, connection: Connection, drain: Drain) -> None:
        self.slots.append(time.monotonic() + drain.slot / 1000)
        super().drained(agent, connection, drain)

    def welcomed(self, agent: SimulatedAgent, welcome: Welcome) -> float:
        now, number = super().welcomed(agent, welcome), agent.number
        if number in self._away:
            self.longest_away = max(self.longest_away, now - self._away.pop(number))
        elif number in self.holders:  # it closes its old link now
            self._left(number, now)
        self.holders[number] = self._dialled[number]
        return now

    def ended(self, agent: SimulatedAgent, code: int, reason: str, was_welcomed: bool) -> None:
        if was_welcomed and not self.stopping:
            now = time.monotonic()
            self._left(agent.number, now)
            self._away[agent.number] = now
        super().ended(agent, code, reason, was_welcomed)

    def _left(self, number: int, now: float) -> None:
        self.moves[number] += 1
        self.closes.append(now)


class ProbedAgent:
    """An agent of the SDK that moves as well; it counts what it runs."""

    def __init__(self, port: int) -> None:
        self.ran: Counter[str] = Counter()
        self.agent = Agent(f"ws://127.0.0.1:{port}", "probed", DEVELOPMENT_AGENT_TOKEN)

        @self.agent.command("echo")
        async def echo(command: Command) -> None:
            self.ran[command.id] += 1

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        serving = asyncio.create_task(self.agent.serve())
        try:
            yield
        finally:
            self.agent.stop()
            await asyncio.wait({serving})


def most_within(times: Sequence[float], seconds: float) -> int:
    """The most of `times` in any interval of that length."""
    ordered = sorted(times)
    return max((i - bisect_left(ordered, late - seconds) + 1 for i, late in enumerate(ordered)), default=0)


def above_budget(times: Sequence[float], rates: Sequence[tuple[float, float]]) -> int:
    """The most of `times` in any second above the rate that was allowed in it. `rates`: from when on, and how many a
    second; where two apply, the higher one counts, since nodes ask for moves ahead."""
    ordered, excess = sorted(times), 0.0
    for i, late in enumerate(ordered):
        count = i - bisect_left(ordered, late - 1) + 1
        # A grant is asked for up to a second before its slot, and its agent closes a link within two after that.
        known = [rate for n, (at, rate) in enumerate(rates) if at <= late and _until(rates, n) >= late - 4]
        excess = max(excess, count - max(known, default=0.0))
    return int(excess)


def _until(rates: Sequence[tuple[float, float]], n: int) -> float:
    return rates[n + 1][0] if n + 1 < len(rates) else float("inf")
