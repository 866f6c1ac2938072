"""Plays a scenario under one policy, second by second. Every agent is in one of three states: it wants no link, it
waits for its next attempt, or it has a link to one pod.

In each second, in this order: pods whose start is over become ready; agents come and go; links are lost; pods that
leave move their agents; agents that are due make their attempt; the Deployment creates and removes pods; and, at its
period, the policy decides. Everything random comes from one generator, so a seed repeats a run exactly.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from fairlead_operator.api.gateway_spec import LinkGatewaySpec
from fairlead_operator.simulator.arrays import Counts, draw_without_return
from fairlead_operator.simulator.fleet import pauses
from fairlead_operator.simulator.fleet.deployment import DOWN, ModelDeployment, PodStarts
from fairlead_operator.simulator.fleet.directives import NodeDirectives
from fairlead_operator.simulator.fleet.load_balancers import BALANCERS
from fairlead_operator.simulator.fleet.moves import FleetMoves
from fairlead_operator.simulator.fleet.pod_table import HEARTBEAT_SECONDS, RECENT_MOVES, RECENT_SECONDS, PodTable
from fairlead_operator.simulator.fleet.reconnect_queue import DueAgents, ReconnectQueue
from fairlead_operator.simulator.measures import Measures, PolicyCost
from fairlead_operator.simulator.policies.scaling_policy import FleetView, ScaleOrder, ScalingPolicy
from fairlead_operator.simulator.scenarios.scenario import Scenario

DAY = 86_400
FULL_MOST = 10
"""The maximum Retry-After of a full node, in seconds."""


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """What a trace does not say."""

    balancer: str = "random"
    """Name of the load balancer, unless the scenario has one of its own."""
    starts: PodStarts = field(default_factory=PodStarts)
    lost_per_day: float = 1.0
    """Links that an agent loses per day by chance: a router restarts, a laptop sleeps, the host is updated."""
    seed: int = 1


class Simulation:
    def __init__(self, scenario: Scenario, spec: LinkGatewaySpec, policy: ScalingPolicy, options: ModelOptions) -> None:
        self._scenario = scenario
        self._spec = spec
        self._policy = policy
        self._rng = rng = np.random.default_rng(options.seed)
        self._loss = -math.expm1(-options.lost_per_day / DAY)
        self._balancer = BALANCERS[scenario.balancer or options.balancer](rng)
        self._moves = FleetMoves(spec, rng)
        self._order = ScaleOrder(0)
        self.now = 0
        self.pods = PodTable(spec.accept_rate)
        self._directives = NodeDirectives(self.pods)
        self.queue = ReconnectQueue(rng)
        self.offline = scenario.agents - int(scenario.demand[0])
        """Agents that want no link."""
        self.deployment = ModelDeployment(
            self.pods, rng, spec.rolling_update, options.starts, scenario.stuck, scenario.zone_down
        )
        self.measures = Measures(spec.capacity)
        self.cost = PolicyCost()
        self._begin()

    @property
    def linked(self) -> int:
        return int(self.pods.links.sum())

    @property
    def waiting(self) -> int:
        """Agents that want a link and have none."""
        return self.queue.waiting

    def run(self, progress: Callable[[int], None] = lambda second: None, every: int = 600) -> Simulation:
        """Plays the rest. `progress` is called with the second, at regular intervals."""
        while self.now < self._scenario.seconds:
            self.step()
            if self.now % every == 0:
                progress(self.now)
        return self

    def step(self) -> None:
        """One second."""
        now = self.now
        self._directives.apply(now)
        self.pods.renew_readiness(now)
        self.pods.refill()
        arriving = self._change_demand(now)
        self._lose_links(now)
        moving = self._move(now)
        refused = self._connect(now, arriving, moving)
        closed = int(moving.sum()) + self._apply(now)
        if now % HEARTBEAT_SECONDS == 0:
            self._report(now)
        if now % self._policy.period == 0:
            self._decide(now)
        self.now = now + 1
        demand = int(self._scenario.demand[now + 1])
        self.measures.tick(self.now, demand, self.pods.links, self.waiting, closed, refused)

    def _begin(self) -> None:
        """All agents that want a link have one, evenly on as many pods as the target asks for."""
        spec, demand = self._spec, int(self._scenario.demand[0])
        enough = math.ceil(demand * 100 / (spec.target_utilisation * spec.capacity))
        self.deployment.begin(min(max(enough, spec.replicas.min), spec.replicas.max))
        each, rest = divmod(demand, len(self.pods))
        self.pods.links[:] = each
        self.pods.links[:rest] += 1
        excess = np.maximum(self.pods.links - spec.capacity, 0)
        self.pods.links -= excess
        self._wait(0, excess)
        self.pods.report(0)
        self._moves.report(self.pods)

    def _change_demand(self, now: int) -> int:
        """Agents that want a link from now on; those that no longer want one are gone when this returns."""
        change = int(self._scenario.demand[now + 1] - self._scenario.demand[now])
        self.offline -= change
        if change >= 0:
            return change
        leaving = draw_without_return(self._rng, np.array([self.waiting, self.linked]), -change)
        if leaving[0]:
            if self._balancer.pins:
                self._awaited_among(int(leaving[0]))
            self.queue.withdraw(int(leaving[0]))
        gone = draw_without_return(self._rng, self.pods.links, int(leaving[1]))
        self.pods.links -= gone
        if not self._scenario.cut.holds(now):
            self.pods.left += gone
        return 0

    def _lose_links(self, now: int) -> None:
        """Links that end by themselves, and those of pods that die."""
        pods = self.pods
        lost = draw_without_return(self._rng, pods.links, int(self._rng.binomial(self.linked, self._loss)))
        if self._scenario.zone_down.holds(now) and now == self._scenario.zone_down.begin:
            dead = pods.zone == DOWN
            lost[dead] = pods.links[dead]
            pods.links -= lost
            self._wait(now, lost)
            pods.drop(dead)
        else:
            pods.links -= lost
            self._wait(now, lost)
        self.measures.lost += int(lost.sum())

    def _wait(self, now: int, lost: Counts) -> None:
        """Ends `lost` links of each pod, whose agents then wait for their first retry."""
        if not lost.any():
            return
        pods = self.pods
        firsts = np.bincount(pauses.first_seconds(pods.links + lost, self._spec.accept_rate), weights=lost)
        for first in firsts.nonzero()[0].tolist():
            self.queue.lost(now, int(firsts[first]), first)
        if self._balancer.pins:
            pods.awaited += lost

    def _move(self, now: int) -> Counts:
        """Drops pods that have left. Returns the agents of each pod that move now."""
        pods = self.pods
        leaving = pods.leaving
        if leaving.any():
            stopping = self._spec.drain.shutdown_delay_seconds if self._policy.drains else 0
            pods.drop(leaving & (pods.links == 0) & (~pods.started | (now - pods.left_at >= stopping)))
        if not self._policy.drains:
            return np.zeros(len(pods), np.int64)
        moving = self._moves.draw(pods, self._directives.kept(now), now, self._directives.move_limit)
        pods.links -= moving
        pods.moved += np.where(pods.leaving, 0, moving)
        return moving

    def _report(self, now: int) -> None:
        """Heartbeats: nodes report to the operator and the budget of moves, and read their directives."""
        pods = self.pods
        pods.report(now)
        self._moves.report(pods)
        if self._policy.drains:
            self._directives.read(self._order.directives, now)
        if now % RECENT_SECONDS == 0:
            pods.recent[:, now // RECENT_SECONDS % RECENT_MOVES] = 0

    def _apply(self, now: int) -> int:
        """What the Deployment does in this second. Returns the links that pods closed at once."""
        if now == self._scenario.rollout_at:
            self.deployment.roll_out()
        ended = self.deployment.reconcile(now, self._order.victims, by_links=self._policy.drains, step=self._order.step)
        if self._policy.drains or not len(ended):
            return 0
        closed = np.zeros(len(self.pods), np.int64)
        closed[ended] = self.pods.links[ended]
        self.pods.links -= closed
        self._wait(now, closed)
        return int(closed.sum())

    def _decide(self, now: int) -> None:
        scenario, deployment = self._scenario, self.deployment
        readable = not scenario.unreadable.holds(now)
        view = FleetView(self.pods, deployment.replicas, readable, deployment.rolling_out, deployment.revision, now)
        began = time.process_time()
        order = self._policy.order(view)
        self.cost.add(time.process_time() - began, len(self.pods))
        deployment.replicas, self._order = order.replicas, order

    def _connect(self, now: int, arriving: int, moving: Counts) -> int:
        """The attempts of this second: of agents that are due, of those that want a link now, and of those that move.
        Returns how many were refused."""
        pods, queue = self.pods, self.queue
        back = np.zeros(len(pods), np.int64)
        if self._balancer.pins:
            back = self._awaited_among(queue.due(now)) + np.where(pods.serving, moving, 0)
        due = queue.take_due(now, arriving + int(moving.sum()))
        total = due.total
        if not total:
            return 0
        at = np.flatnonzero(pods.serving)
        if not len(at):
            queue.unanswered(now, due)
            return 0
        links, tokens = pods.links[at], pods.tokens[at]
        attempts = self._balancer.spread(total - int(back.sum()), back[at], links)
        free = np.minimum(tokens.astype(np.int64), self._spec.capacity - links)
        accepted = np.minimum(attempts, np.maximum(free, 0))
        pods.links[at] = links + accepted
        pods.tokens[at] = tokens - accepted
        pods.accepted[at] += accepted
        number = int(accepted.sum())
        rebalanced = int(moving[pods.staying].sum())
        if rebalanced:
            share = draw_without_return(self._rng, np.array([rebalanced, total - rebalanced]), number)
            landed = draw_without_return(self._rng, accepted, int(share[0]))
            pods.recent[at, now // RECENT_SECONDS % RECENT_MOVES] += landed
        if number == total:
            queue.linked(due)
            return 0
        linked, others = due.drawn(self._rng, number)
        queue.linked(linked)
        refused = attempts - accepted
        pods.refused[at] += refused
        if self._balancer.pins:
            pods.awaited[at] += refused
        self._refuse(now, others, refused, pods.links[at])
        return int(refused.sum())

    def _refuse(self, now: int, agents: DueAgents, refused: Counts, links: Counts) -> None:
        """Refuses agents at each pod: a full pod names pauses of up to FULL_MOST seconds; one above its accept rate, of
        up to the time that it takes to accept all its links.
        """
        spec = self._spec
        rate_most = np.clip(links // spec.accept_rate, 1, pauses.MOST_ASKED)
        numbers = np.bincount(np.where(links >= spec.capacity, FULL_MOST, rate_most), weights=refused)
        for most in np.flatnonzero(numbers).tolist():
            some, agents = agents.drawn(self._rng, int(numbers[most]))
            self.queue.refused(now, some, most)

    def _awaited_among(self, number: int) -> Counts:
        """How many of `number` waiting agents, drawn at random, each pod awaits. It awaits them no longer."""
        pods = self.pods
        awaited = int(pods.awaited.sum())
        pinned = draw_without_return(self._rng, np.array([awaited, self.waiting - awaited]), number)
        back = draw_without_return(self._rng, pods.awaited, int(pinned[0]))
        pods.awaited -= back
        return np.where(pods.serving, back, 0)
