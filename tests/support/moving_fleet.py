"""A model of a fleet whose nodes follow the targets of a rebalance: agents, nodes and a load balancer, without I/O.

Each second every node with more links than its target moves idle agents, the oldest first, none twice within an hour,
and all nodes together at most `rate`. A load balancer sends nothing to nodes that have enough, by the nodes' own rule.
The operator's own code decides every ten seconds on what the nodes report.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice

from fairlead.fleet.directives.exclusion import SETTLE
from fairlead.fleet.directives.rebalance_target import EnoughLinks
from fairlead_operator.api.gateway_spec import LinkGatewaySpec
from fairlead_operator.autoscaler.history import History
from fairlead_operator.autoscaler.observation import FleetObservation, PodObservation
from fairlead_operator.autoscaler.rebalance import RebalancePlan, plan_rebalance

PASS = 10
HOUR = 3600.0


@dataclass
class ModelAgent:
    name: int
    busy: bool = False
    moves: list[float] = field(default_factory=list)


Choice = Callable[["MovingFleet", ModelAgent, str], str]
"""A load balancer: chooses the pod of an agent that leaves the named one."""


def at_random(fleet: MovingFleet, agent: ModelAgent, left: str) -> str:
    return fleet.rng.choice(fleet.taking)


def least_connections(fleet: MovingFleet, agent: ModelAgent, left: str) -> str:
    return min(fleet.taking, key=lambda pod: len(fleet.pods[pod]))


def affinity(fleet: MovingFleet, agent: ModelAgent, left: str) -> str:
    """As a Service with sessionAffinity: the same pod as long as it is ready."""
    return left if left in fleet.taking else at_random(fleet, agent, left)


def pinning(fleet: MovingFleet, agent: ModelAgent, left: str) -> str:
    """Whether the pod is ready or not, as if the agent knew no other address."""
    return left


def ignoring_readiness(fleet: MovingFleet, agent: ModelAgent, left: str) -> str:
    return fleet.rng.choice(list(fleet.pods))


@dataclass
class MovingFleet:
    links: tuple[int, ...]
    choose: Choice
    spec: LinkGatewaySpec
    rate: int = 200
    busy: float = 0.0
    """Share of the agents that run a command all the time."""
    rng: random.Random = field(default_factory=lambda: random.Random(7))
    history: History = field(default_factory=History)
    now: float = 0.0

    def __post_init__(self) -> None:
        self.agents = [ModelAgent(n, busy=self.rng.random() < self.busy) for n in range(sum(self.links))]
        waiting = iter(self.agents)
        self.pods = {f"p{i}": [next(waiting) for _ in range(count)] for i, count in enumerate(self.links)}
        self.moved = dict.fromkeys(self.pods, 0)
        self.taking = list(self.pods)
        self.drain_sent_at: float | None = None
        self._tokens = 0.0
        self._enough = {pod: EnoughLinks() for pod in self.pods}
        self.plans: list[RebalancePlan] = []

    @property
    def max_over_mean(self) -> float:
        return max(map(len, self.pods.values())) * len(self.pods) / len(self.agents)

    def observe(self) -> FleetObservation:
        pods = tuple(
            PodObservation(name, age=1.0, links=len(agents), capacity=self.spec.capacity, moved=self.moved[name])
            for name, agents in self.pods.items()
        )
        return FleetObservation(len(pods), pods)

    def run(self, seconds: int) -> None:
        for _ in range(seconds // PASS):
            plan = plan_rebalance(self.observe(), self.history, self.spec, self.now)
            self.plans.append(plan)
            self.history = plan.history
            for _ in range(PASS):
                self._second(plan)
                self.now += 1

    def _second(self, plan: RebalancePlan) -> None:
        targets = plan.targets
        asked = {pod: targets[pod].enough if targets else None for pod in self.pods}
        self.taking = [pod for pod in self.pods if not self._enough[pod].reached(len(self.pods[pod]), asked[pod])]
        assert self.taking, "a pod takes new links at every moment"
        if not targets:
            self.drain_sent_at = None
            return
        self.drain_sent_at = self.now if self.drain_sent_at is None else self.drain_sent_at
        if self.now - self.drain_sent_at < SETTLE:
            return
        self._tokens = min(self._tokens, 1.0) + min(float(self.rate), plan.move_limit)
        tokens = int(self._tokens)
        for pod, target in targets.items():
            surplus = min(tokens, len(self.pods[pod]) - target.keep)
            if surplus <= 0:
                continue
            # The order of a pod's agents is that of their links: one that comes is the last.
            leaving = list(islice((agent for agent in self.pods[pod] if self._may_move(agent)), surplus))
            tokens -= len(leaving)
            self._tokens -= len(leaving)
            self.moved[pod] += len(leaving)
            gone = {agent.name for agent in leaving}
            self.pods[pod] = [agent for agent in self.pods[pod] if agent.name not in gone]
            for agent in leaving:
                agent.moves.append(self.now)
                self.pods[self.choose(self, agent, pod)].append(agent)

    def _may_move(self, agent: ModelAgent) -> bool:
        return not agent.busy and (not agent.moves or self.now - agent.moves[-1] >= HOUR)
