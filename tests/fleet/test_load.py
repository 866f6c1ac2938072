"""Beats of nodes that restart, freeze and leave, on a real server: a row is of one life, and of its newest."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from fairlead.fleet import schema
from fairlead.fleet.load import Load
from fairlead.store.reply import integer

sys.path.insert(0, str(Path(__file__).parent))

from fleet_world import World

EXAMPLES = os.environ.get("FAIRLEAD_MODEL_EXAMPLES")


@pytest.fixture(scope="module", params=["server", "cluster"])
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    made = World(tmp_path_factory.mktemp("valkey"), cluster=request.param == "cluster")
    yield made
    made.close()


@dataclass
class Row:
    """What the last good beat of a node said."""

    epoch: str
    at: int
    began: int
    state: str
    connections: int


nodes = st.sampled_from((1, 1, 2))
epochs = st.sampled_from("aaab")


class Beats(RuleBasedStateMachine):
    def __init__(self, world: World) -> None:
        super().__init__()
        self.world = world
        self.load = Load(world.store)
        self.name = next(world.names)
        self.counts = count()
        self.rows: dict[str, Row] = {}

    def node(self, node: int) -> str:
        return f"{self.name}-{node}"

    @rule(node=nodes, epoch=epochs, begin=st.booleans(), replaces=st.sampled_from(("a", "b", "", "")))
    def beat(self, node: int, epoch: str, begin: bool, replaces: str) -> None:
        """On time, or by a process that was frozen while its successor began."""
        name, connections = self.node(node), next(self.counts)
        row = self.rows.get(name)
        said: dict[str, str | int | float] = {"state": "ready", "connections": connections}
        good, now = self.world.run(self.load.beat(name, epoch, said, begin=begin, replaces=replaces))
        own = row is not None and row.epoch == epoch
        assert good == (own or (begin and (row is None or row.epoch == replaces)))
        if good:
            began = now if begin or row is None else row.began
            assert row is None or now >= row.at or row.state == "stopped"
            self.rows[name] = Row(epoch, now, began, "ready", connections)

    @rule(node=nodes, epoch=epochs)
    def leave(self, node: int, epoch: str) -> None:
        """Only one's own row is left."""
        name, now = self.node(node), self.world.run(self.world.time())
        row = self.rows.get(name)
        self.world.run(self.load.leave(name, epoch, now))
        if row is not None and row.epoch == epoch:
            row.at, row.state, row.connections = now - schema.ALIVE_MS - 1, "stopped", 0

    @rule(node=nodes)
    def lose(self, node: int) -> None:
        """The row expires, or Redis has lost it: the life that wrote it must hear of that."""
        name = self.node(node)
        self.world.submit("DEL", schema.node_key(name))
        self.rows.pop(name, None)

    @invariant()
    def the_table_is_what_was_told(self) -> None:
        now = self.world.run(self.world.time())
        table = self.world.run(self.load.read(now, 0))
        for name in map(self.node, (1, 2)):
            found = [row for row in table.rows() if row.node == name]
            row = self.rows.get(name)
            told = [(r.epoch, r.at, r.began, r.state, r.connections) for r in found]
            assert told == ([] if row is None else [(row.epoch, row.at, row.began, row.state, row.connections)])
            for epoch in "ab":
                lives = row is not None and row.epoch == epoch and now - row.at <= schema.ALIVE_MS
                assert table.holds(f"{name}#{epoch}", now) == lives
            if row is not None:
                life = integer(self.world.submit("PTTL", schema.node_key(name)))
                assert 0 < life <= schema.NODE_TTL_MS

    def teardown(self) -> None:
        """The table is read by every history: it must not grow with them."""
        for name in map(self.node, (1, 2)):
            self.world.submit("DEL", schema.node_key(name))
            self.world.submit("ZREM", schema.NODES, name)


@pytest.mark.timeout(36000 if EXAMPLES else 60)
def test_beats_agree_with_what_was_told(world: World) -> None:
    class BeatsOfThis(Beats):
        def __init__(self) -> None:
            super().__init__(world)

    run_state_machine_as_test(
        BeatsOfThis,
        settings=settings(
            max_examples=int(EXAMPLES or 20),
            stateful_step_count=20,
            deadline=None,
            derandomize=EXAMPLES is None,
            print_blob=True,
        ),
    )
