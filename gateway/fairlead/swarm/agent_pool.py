"""The agents of one process: who dials when, who beats when, and what each end of a link means.

Made and run by `process`. One queue of attempts, one timer that visits all agents in turn: an idle agent costs
neither task nor timer. Delays are the protocol's own (section 10), so what a gateway sees after a failure is what a
fleet of real agents would do to it. Latency counts from when an attempt was due, not from when this process came to
it: a generator that is late must not make a gateway look fast. And it is told by the system's clock, since the event
loop's stands still for as long as one of its turns takes.
"""

from __future__ import annotations

import asyncio
import gc
import math
import platform
import random
import secrets
import socket
import time

from fairlead.carrier.client import ClientConnection, connect
from fairlead.carrier.listener import Connection
from fairlead.carrier.timer_wheel import TimerWheel
from fairlead.errors import ConnectionRefused
from fairlead.swarm.counters import Counters, count
from fairlead.swarm.dial_queue import DialQueue
from fairlead.swarm.memory import own_bytes
from fairlead.swarm.options import SwarmOptions
from fairlead.swarm.profile import Profile, assign
from fairlead.swarm.simulated_agent import SimulatedAgent
from fairlead.version import __version__
from fairlead.wire.close_codes import CloseCode, CloseKind, describe, find_close_code, may_reconnect
from fairlead.wire.codec import agent_codec
from fairlead.wire.messages import SUBPROTOCOL_MSGPACK, WINDOW, Drain, Hello, Welcome
from fairlead.wire.retry import STABLE_MS, RetryPolicy

DIAL_TIMEOUT = 10.0
"""Seconds, as the SDK's."""
FIRST_BEAT = 10.0
"""Seconds between heartbeats until welcome names the gateway's own."""
SILENCE = 2.5
"""Heartbeats without a word after which a link is dead, on both sides."""
TICK = 0.05
"""Seconds between two turns of the visits: with longer ones heartbeats would come in bursts, which no fleet sends."""
SETTLED = 5.0
"""Seconds a link must have lived for its drain to be followed at once."""
MAX_RETRY_AFTER = 600.0
"""Seconds, as the SDK's."""
LEAVE = 25.0
"""Seconds for the closing handshakes of all agents at the end."""
BACK = 60.0
"""Seconds, the protocol's greatest delay, for which an agent that a storm has dropped may stay away."""
MISCONFIGURED = ("400", "401", "403", "409", "426", "431")


class AgentPool:
    def __init__(self, options: SwarmOptions, number: int, began: float) -> None:
        """`number` is the process's own, from 0: it has the agents whose number leaves it as remainder. `began` is
        when the swarm did, by the system's monotonic clock.
        """
        self.options = options
        self.loop = asyncio.get_running_loop()
        self.codec = agent_codec(SUBPROTOCOL_MSGPACK)
        self.counters = Counters()
        self.heartbeat = FIRST_BEAT
        self.window = WINDOW
        self.stopping = False
        self._number = number
        self._began = began
        self._boot = secrets.token_hex(8)
        self._events = 0
        self._policy = RetryPolicy()
        self._headers = (("Authorization", f"Bearer {options.token}"),)
        self._facts: dict[Profile, dict[str, str]] = {}
        self._timer_wheel = TimerWheel(silence=SILENCE * FIRST_BEAT)
        self._dial_queue = DialQueue(self._dial)
        self._waits: dict[int, float] = {}
        """By index: what a bye has said of the time, in ms."""
        self._dropped: dict[int, float] = {}
        """By index: when a storm has dropped it."""
        self._visited, self._owed, self._turn = 0, 0.0, 0.0
        self._timer: asyncio.TimerHandle | None = None
        gc.collect()
        self._base = own_bytes()
        profiles = assign({Profile(name): share for name, share in options.mix.items()}, options.agents)
        mine = range(number, options.agents, options.processes)
        self._agents = [SimulatedAgent(self, i, profiles[i]) for i in mine]

    # The process calls.

    async def run(self) -> None:
        """Until cancelled."""
        self._timer_wheel.start()
        self._turn = time.monotonic() + TICK
        self._timer = self.loop.call_at(self._turn, self._tick)
        gap = self.options.processes / self.options.rate
        due = time.monotonic() + random.uniform(0, gap)
        for index, agent in enumerate(self._agents):
            self._dial_queue.add(due, index)
            due += random.uniform(0.5, 1.5) * gap
            if agent.profile is Profile.CHATTY:
                self.loop.call_at(due + random.uniform(0, self.options.event_every), agent.emit)
        try:
            await self._dial_queue.run()
        finally:
            self.stopping = True

    async def leave(self) -> None:
        """All agents say goodbye. `run` was cancelled before."""
        if self._timer is not None:
            self._timer.cancel()
        for agent in self._agents:
            agent.leave(CloseCode.GOING_AWAY, "the swarm ends")
        deadline = time.monotonic() + LEAVE
        while len(self._timer_wheel) and time.monotonic() < deadline:  # noqa: ASYNC110  # the last to go tells nobody
            await asyncio.sleep(0.02)
        self._timer_wheel.stop()

    def storm(self) -> None:
        """All agents of that profile lose their links, now."""
        now = time.monotonic()
        for index, agent in enumerate(self._agents):
            if agent.profile is Profile.STORM and agent.connection is not None and agent.welcomed:
                agent.drop()
                self.counters.drops += 1
                self._dropped[index] = now
                self._judge(agent, now)
                self.again(agent, now)

    def count(self) -> Counters:
        """The tally, with what is looked up rather than counted."""
        self.counters.linked = sum(agent.connection is not None and agent.welcomed for agent in self._agents)
        self.counters.cpu = time.process_time()
        return self.counters

    def conclude(self) -> None:
        """Note what is of interest at the end only, and costs milliseconds: who is missing, and the memory."""
        now = time.monotonic()
        self.counters.missing = sum(self._is_missing(index, agent, now) for index, agent in enumerate(self._agents))
        self.counters.footprint = own_bytes()
        self.counters.memory = max(0, self.counters.footprint - self._base)

    def _is_missing(self, index: int, agent: SimulatedAgent, now: float) -> bool:
        if agent.profile is Profile.HALF_OPEN or (agent.connection is not None and agent.welcomed):
            return False
        return now - self._dropped.get(index, -math.inf) > BACK

    # Dialling.

    async def _dial(self, index: int, due: float) -> None:
        agent = self._agents[index]
        agent.conn += 1
        agent.due = due
        self.counters.attempts += 1
        sources = self.options.sources
        try:
            await connect(
                self.options.url, agent, timer_wheel=self._timer_wheel, subprotocols=(SUBPROTOCOL_MSGPACK,),
                headers=self._headers, timeout=DIAL_TIMEOUT,
                local_address=sources[agent.number % len(sources)] if sources else None,
            )  # fmt: skip
        except ConnectionRefused as e:
            wait = None
            if e.retry_after is not None:
                # The header knows whole seconds only: those that got the same are spread over half as long again.
                wait = min(e.retry_after, MAX_RETRY_AFTER) * 1000 * random.uniform(1.0, 1.5)
            words = e.message + (": " + " ".join(e.body[:200].decode(errors="replace").split()) if e.body else "")
            self.refused(agent, str(e.status) if e.status else "unreachable", words, time.monotonic(), wait)

    def again(self, agent: SimulatedAgent, now: float, wait: float | None = None) -> None:
        """Have it dial anew: after `wait` ms, else by the protocol's policy."""
        if self.stopping:
            return
        index = agent.number // self.options.processes
        told = self._waits.pop(index, None)
        if wait is None:
            wait = told
        if wait is None:
            wait = self._policy.delay(agent.retries, random.random())
        agent.retries += 1
        self._dial_queue.add(now + wait / 1000, index)

    # Agents tell.

    def opened(self, agent: SimulatedAgent) -> float:
        now = time.monotonic()
        if agent.due is not None:
            self.counters.dial.add(now - agent.due)
        return now

    def hello(self, agent: SimulatedAgent, have: dict[str, int]) -> Hello:
        facts = self._facts.get(agent.profile)
        if facts is None:
            facts = self._facts[agent.profile] = {
                "swarm": self.options.prefix,
                "profile": agent.profile.value,
                "os": platform.system().lower(),
                "arch": platform.machine(),
                "kernel": platform.release()[:256],
                "host": socket.gethostname()[:256],
            }
        sdk = f"fairlead-swarm/{__version__}"
        return Hello(agent=agent.name, boot=self._boot, conn=agent.conn, sdk=sdk, facts=facts, have=have)

    def welcomed(self, agent: SimulatedAgent, welcome: Welcome) -> float:
        now = time.monotonic()
        self.counters.welcomes += 1
        if agent.due is not None:
            self.counters.connect.add(now - agent.due)
        if agent.since == 0.0:
            self.counters.once += 1
            self.counters.ramp.add(max(0.0, time.monotonic() - self._began))
        dropped = self._dropped.pop(agent.number // self.options.processes, None)
        if dropped is not None:
            self.counters.back.add(now - dropped)
        self.heartbeat = max(welcome.hb, 100) / 1000
        self._timer_wheel.silence = SILENCE * self.heartbeat
        self.window = welcome.limits.window
        self._policy = RetryPolicy(welcome.retry.first, welcome.retry.base, welcome.retry.cap)
        return now

    def echoed(self, agent: SimulatedAgent, ts: int) -> None:
        self.counters.echoes += 1
        if agent.profile is Profile.SLOW:
            return  # it has let the answer wait
        self.counters.rtt.add(max(0.0, time.monotonic() - ts / 1_000_000))

    def told_to_wait(self, agent: SimulatedAgent, retry: int | None) -> None:
        if retry is not None:
            self._waits[agent.number // self.options.processes] = float(retry)

    def drained(self, agent: SimulatedAgent, connection: Connection, drain: Drain) -> None:
        """The gateway wants it elsewhere: go at the slot."""
        if drain.retry is not None:
            self._policy = RetryPolicy(drain.retry.first, drain.retry.base, drain.retry.cap)
        self.loop.call_later(drain.slot / 1000, self._go, agent, connection)

    def _go(self, agent: SimulatedAgent, connection: Connection) -> None:
        if connection is not agent.connection or self.stopping:
            return
        now = time.monotonic()
        self.counters.moved += 1
        agent.leave(CloseCode.NORMAL, "drained")
        self._judge(agent, now)
        self.again(agent, now, 0.0 if now - agent.since >= SETTLED else random.uniform(0, 1000))

    def ended(self, agent: SimulatedAgent, code: int, reason: str) -> None:
        """Its link is over, by the gateway or by the network."""
        if self.stopping:
            return
        now = time.monotonic()
        if not agent.welcomed:
            self.refused(agent, f"close {code}", f"closed with {describe(code)} {reason}".strip(), now)
            return
        count(self.counters.closed, str(code))
        if agent.profile is Profile.HALF_OPEN:
            self.counters.silenced += 1
        elif (known := find_close_code(code)) is not None and known.kind is CloseKind.MOVED:
            self.counters.moved += 1
        elif not (agent.profile is Profile.SLOW and code == CloseCode.SLOW_READER):
            self.counters.lost += 1
        self._judge(agent, now)
        if may_reconnect(code):
            self.again(agent, now)
        else:
            self.counters.gone += 1

    def refused(self, agent: SimulatedAgent, how: str, words: str, now: float, wait: float | None = None) -> None:
        """An attempt that did not come to welcome."""
        count(self.counters.refused, how)
        self.counters.reason = words
        if wait is None and how in MISCONFIGURED:
            wait = self._policy.cap * random.uniform(0.5, 1.0)
        if how.startswith("close ") and not may_reconnect(int(how.removeprefix("close "))):
            self.counters.gone += 1
        else:
            self.again(agent, now, wait)

    def violated(self, agent: SimulatedAgent) -> None:
        """The gateway broke the protocol; the next node may run another version."""
        self.counters.violations += 1
        self.counters.lost += agent.welcomed
        self.again(agent, time.monotonic())

    def event_id(self) -> str:
        self._events += 1
        return f"{self._boot}-{self._number}-{self._events}"

    def shrink(self, connection: Connection, size: int) -> None:
        """Let the system hold back less of what a slow reader has not read."""
        if isinstance(connection, ClientConnection):
            sock = connection.transport.get_extra_info("socket")
            if sock is not None:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, size)

    @staticmethod
    def _judge(agent: SimulatedAgent, now: float) -> None:
        """A link that lived long enough makes the next delay a first one again."""
        if (now - agent.since) * 1000 >= STABLE_MS:
            agent.retries = 0

    def _tick(self) -> None:
        now = time.monotonic()
        self.counters.lag.add(max(0.0, now - self._turn))
        self._turn = max(self._turn + TICK, now)
        self._timer = self.loop.call_at(self._turn, self._tick)
        # Twice in a heartbeat each agent is visited, so that none is silent for longer than one.
        self._owed = min(self._owed + len(self._agents) * TICK / (self.heartbeat / 2), len(self._agents))
        while self._owed >= 1:
            self._owed -= 1
            self._agents[self._visited].visit(now)
            self._visited = (self._visited + 1) % len(self._agents)
