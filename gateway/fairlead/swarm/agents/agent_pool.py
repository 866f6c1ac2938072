"""The agents of one worker: when each connects, and what the end of each link means.

Made and run by `worker`. There is one queue of attempts, and one timer that visits all agents in turn: an idle agent
has neither a task nor a timer. Delays are those of the protocol (section 10), so that after a failure a gateway sees
what a fleet of real agents would do. Latencies are measured from when an attempt was due, not from when this process
made it: a generator that is late must not make a gateway look fast. They are measured with the system's clock, because
the event loop's clock does not advance within an iteration.
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
from collections.abc import Iterator

from fairlead.carrier.client import ClientConnection
from fairlead.carrier.listener import Connection
from fairlead.swarm.agents.attempts import Attempts, UnwelcomedLinks
from fairlead.swarm.agents.dial_queue import DialQueue, concurrent
from fairlead.swarm.agents.dialer import PoolDialer, limit_receive_buffer
from fairlead.swarm.agents.simulated_agent import SimulatedAgent
from fairlead.swarm.agents.visits import TICK, Visits
from fairlead.swarm.counters import Counters, count
from fairlead.swarm.options import SwarmOptions
from fairlead.swarm.profile import Profile, assign
from fairlead.swarm.system import private_memory
from fairlead.version import __version__
from fairlead.wire.close_codes import CloseCode, CloseKind, describe, find_close_code, may_reconnect
from fairlead.wire.codec import agent_codec
from fairlead.wire.messages import SUBPROTOCOL_MSGPACK, WINDOW, Drain, Hello, Welcome
from fairlead.wire.retry import STABLE_MS, RetryPolicy

FIRST_HEARTBEAT = 10.0
"""Seconds between heartbeats until the welcome specifies the interval."""
SETTLED = 5.0
"""Seconds that a link must have lived for its drain to be followed by an immediate attempt."""
STORM_RETURN_TIMEOUT = 60.0
"""Seconds for which an agent that a storm has dropped may stay away: the longest delay of the protocol."""
MISCONFIGURED = ("400", "401", "403", "409", "426", "431")


class AgentPool:
    def __init__(self, options: SwarmOptions, number: int, began: float) -> None:
        """`number` is that of this worker, from 0: it has every agent whose number modulo the number of workers is
        this. `began` is when the swarm started, by the system's monotonic clock.
        """
        self.options = options
        self.loop = asyncio.get_running_loop()
        self.codec = agent_codec(SUBPROTOCOL_MSGPACK)
        self.counters = Counters()
        self.heartbeat = FIRST_HEARTBEAT
        self.window = WINDOW
        self.unwelcomed = UnwelcomedLinks()
        self.stopping = False
        self._number = number
        self._began = began
        self._boot = secrets.token_hex(8)
        self._events = 0
        self._facts: dict[Profile, dict[str, str]] = {}
        self.dialer = PoolDialer(options)
        self._dial_queue = DialQueue(self._dial, concurrent(options.processes, options.in_progress))
        self._recent = 0.0
        """When agents were last welcomed, with the resolution of one tick."""
        self._dropped: dict[int, float] = {}
        """By index: when a storm dropped the agent."""
        gc.collect()
        self._base = private_memory()
        profiles = assign({Profile(name): share for name, share in options.mix.items()}, options.agents)
        indexes = range(number, options.agents, options.processes)
        self._agents = [SimulatedAgent(self, i, profiles[i]) for i in indexes]
        self._attempts = Attempts(len(self._agents))
        self._visits = Visits(self._agents, lambda: self.heartbeat, self.counters.lag.add)

    # -- called by the worker ------------------------------------------------------------------------

    async def run(self) -> None:
        """Until cancelled."""
        self.dialer.start()
        self._visits.start()
        self._dial_queue.schedule(self._first_attempts(time.monotonic()))
        try:
            await self._dial_queue.run()
        finally:
            self.stopping = True

    def _first_attempts(self, now: float) -> Iterator[tuple[float, int]]:
        gap = self.options.processes / self.options.rate
        due = now + random.uniform(0, gap)
        for index, agent in enumerate(self._agents):
            if agent.profile is Profile.CHATTY:
                self.loop.call_at(due + random.uniform(0, self.options.event_every), agent.emit)
            yield due, index
            due += random.uniform(0.5, 1.5) * gap

    async def leave(self) -> None:
        """Close all links. `run` must have been cancelled before."""
        self._visits.stop()
        for agent in self._agents:
            agent.leave(CloseCode.GOING_AWAY, "the swarm ends")
        await self.dialer.stop()

    def storm(self) -> None:
        """Drop the links of all agents with the profile `storm`."""
        now = time.monotonic()
        for index, agent in enumerate(self._agents):
            if agent.profile is Profile.STORM and agent.connection is not None and agent.welcomed:
                agent.drop()
                self.counters.storm_drops += 1
                self._dropped[index] = now
                self._reset_retries_if_stable(agent, now)
                if index not in self._attempts.moving:  # otherwise an attempt is due already
                    self.reconnect(agent, now)

    def count(self) -> Counters:
        """The counters, including those that are computed and not counted."""
        self.counters.cpu = time.process_time()
        return self.counters

    def conclude(self) -> None:
        """Add what is needed only at the end and takes milliseconds to compute: missing agents, and the memory."""
        now = time.monotonic()
        self.counters.missing = sum(self._is_missing(index, agent, now) for index, agent in enumerate(self._agents))
        self.counters.memory = private_memory()
        self.counters.memory_grown = max(0, self.counters.memory - self._base)

    def _is_missing(self, index: int, agent: SimulatedAgent, now: float) -> bool:
        if agent.profile is Profile.HALF_OPEN or (agent.connection is not None and agent.welcomed):
            return False
        return now - self._dropped.get(index, -math.inf) > STORM_RETURN_TIMEOUT

    # -- connecting ----------------------------------------------------------------------------------

    async def _dial(self, index: int, due: float) -> bool:
        agent = self._agents[index]
        self._attempts.begin(index, due)
        self.counters.attempts += 1
        refusal = await self.dialer.dial(agent, agent.number, from_event_loop=agent.profile is Profile.SLOW)
        if refusal is not None:
            self.refused(agent, refusal.reason, refusal.message, time.monotonic(), refusal.wait_ms)
        return refusal is None

    def reconnect(self, agent: SimulatedAgent, now: float, wait: float | None = None) -> None:
        """Let it connect again, after `wait` ms or by the protocol's policy."""
        if self.stopping:
            return
        index = self._index(agent)
        self._dial_queue.add(now + self._attempts.delay(index, wait) / 1000, index)

    def _answered(self, agent: SimulatedAgent) -> float | None:
        """The present attempt is over. Returns when it was due."""
        index = self._index(agent)
        self._dial_queue.answered(index)
        return self._attempts.over(index)

    def _index(self, agent: SimulatedAgent) -> int:
        return agent.number // self.options.processes

    # -- called by the agents ------------------------------------------------------------------------

    def opened(self, agent: SimulatedAgent) -> float:
        now = time.monotonic()
        due = self._attempts.due(self._index(agent))
        if due is not None:
            self.counters.dial.add(now - due)
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
        conn = self._attempts.conn(self._index(agent))
        return Hello(agent=agent.name, boot=self._boot, conn=conn, sdk=sdk, facts=facts, have=have)

    def welcomed(self, agent: SimulatedAgent, welcome: Welcome) -> float:
        now = time.monotonic()
        self.counters.welcomes += 1
        due = self._answered(agent)
        if due is not None:
            self.counters.connect.add(now - due)
        if agent.since == 0.0:
            self.counters.agents_welcomed += 1
            self.counters.ramp.add(max(0.0, time.monotonic() - self._began))
        index = self._index(agent)
        self._attempts.moving.discard(index)
        dropped = self._dropped.pop(index, None)
        if dropped is not None:
            self.counters.storm_return.add(now - dropped)
        self.heartbeat = max(welcome.hb, 100) / 1000
        self.window = welcome.limits.window
        self._attempts.policy = RetryPolicy(welcome.retry.first, welcome.retry.base, welcome.retry.cap)
        if now - self._recent > TICK:
            self._recent = now
        return self._recent  # one float object for all that are welcomed in a tick, because each agent keeps it

    def echoed(self, agent: SimulatedAgent, ts: int) -> None:
        self.counters.heartbeat_answers += 1
        if agent.profile is Profile.SLOW:
            return  # this agent does not read all the time, so the answer has waited
        self.counters.rtt.add(max(0.0, time.monotonic() - ts / 1_000_000))

    def on_bye(self, agent: SimulatedAgent, retry: int | None) -> None:
        if retry is not None:
            self._attempts.name_delay(self._index(agent), retry)

    def drained(self, agent: SimulatedAgent, connection: Connection, drain: Drain) -> None:
        """The gateway asks the agent to move: it opens its next link at the slot."""
        if drain.retry is not None:
            self._attempts.policy = RetryPolicy(drain.retry.first, drain.retry.base, drain.retry.cap)
        self.loop.call_later(drain.slot / 1000, self._move_at_slot, agent, connection)

    def _move_at_slot(self, agent: SimulatedAgent, connection: Connection) -> None:
        if connection is not agent.connection or self._is_moving(agent) or self.stopping:
            return
        now = time.monotonic()
        self._attempts.moving.add(self._index(agent))
        self._reset_retries_if_stable(agent, now)
        self.reconnect(agent, now, 0.0 if now - agent.since >= SETTLED else random.uniform(0, 1000))

    def ended(self, agent: SimulatedAgent, code: int, reason: str, was_welcomed: bool) -> None:
        """The gateway or the network has ended the agent's link, or its attempt if it was not welcomed."""
        if self.stopping:
            return
        now = time.monotonic()
        if not was_welcomed:
            self.refused(agent, f"close {code}", f"closed with {describe(code)} {reason}".strip(), now)
            return
        count(self.counters.closed, str(code))
        if agent.profile is Profile.HALF_OPEN:
            self.counters.half_open_ended += 1
        elif (known := find_close_code(code)) is not None and (
            known.kind is CloseKind.MOVED or (self._is_moving(agent) and known.kind is CloseKind.REPLACED)
        ):
            self.counters.moved += 1
        elif not (agent.profile is Profile.SLOW and code == CloseCode.SLOW_READER):
            self.counters.lost += 1
        self._reset_retries_if_stable(agent, now)
        if not may_reconnect(code):
            self.counters.rejected += 1
        elif not self._is_moving(agent):  # otherwise its next link waits for welcome, or an attempt is due already
            self.reconnect(agent, now)

    def refused(self, agent: SimulatedAgent, reason: str, message: str, now: float, wait: float | None = None) -> None:
        """Count an attempt that ended before welcome, by its `reason`. `wait` is the time in ms until the next one."""
        self._answered(agent)
        count(self.counters.refused, reason)
        self.counters.last_refusal = message
        if wait is None and reason in MISCONFIGURED:
            wait = self._attempts.policy.cap * random.uniform(0.5, 1.0)
        if reason.startswith("close ") and not may_reconnect(int(reason.removeprefix("close "))):
            self.counters.rejected += 1
        else:
            self.reconnect(agent, now, wait)

    def violated(self, agent: SimulatedAgent, was_welcomed: bool) -> None:
        """The gateway violated the protocol. The agent reconnects, because another node may run another version.
        `was_welcomed`: it was on the link in use.
        """
        self._answered(agent)
        self.counters.violations += 1
        self.counters.lost += was_welcomed
        if not (was_welcomed and self._is_moving(agent)):
            self.reconnect(agent, time.monotonic())

    def event_id(self) -> str:
        self._events += 1
        return f"{self._boot}-{self._number}-{self._events}"

    def listen(self, connection: Connection) -> None:
        """Report it as silent after 2.5 heartbeat intervals in which nothing came, and a quarter longer at most."""
        if isinstance(connection, ClientConnection):
            connection.visit()

    def shrink(self, connection: Connection, size: int) -> None:
        """Let the system buffer less of what a slow reader has not read."""
        limit_receive_buffer(connection, size)

    def _is_moving(self, agent: SimulatedAgent) -> bool:
        return self._index(agent) in self._attempts.moving

    def _reset_retries_if_stable(self, agent: SimulatedAgent, now: float) -> None:
        """Start the delays again with the first one if the link lived long enough."""
        if (now - agent.since) * 1000 >= STABLE_MS:
            self._attempts.settle(self._index(agent))
