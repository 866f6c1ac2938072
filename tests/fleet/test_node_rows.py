"""Heartbeats of nodes that restart, freeze and leave, on a real server: a row belongs to one process, the newest."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from fairlead.fleet import schema
from fairlead.fleet.node_rows import NODE_TTL_MS, NodeRows
from fairlead.fleet.node_table import ALIVE_MS, NodeTable
from fairlead.store.reply import integer, text
from fairlead.store.servers.opening import open_store

from support.fleet.script_server import ScriptServer
from support.valkey.cluster import Cluster

EXAMPLES = os.environ.get("FAIRLEAD_MODEL_EXAMPLES")


@pytest.fixture(scope="module", params=["server", "cluster"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScriptServer]:
    made = ScriptServer(tmp_path_factory.mktemp("valkey"), cluster=request.param == "cluster")
    yield made
    made.close()


@dataclass
class Row:
    """What the last accepted heartbeat of a node reported."""

    epoch: str
    at: int
    began: int
    state: str
    links: int


nodes = st.sampled_from((1, 1, 2))
epochs = st.sampled_from("aaab")


class Beats(RuleBasedStateMachine):
    def __init__(self, server: ScriptServer) -> None:
        super().__init__()
        self.server = server
        self.load = NodeRows(server.store)
        self.name = next(server.names)
        self.counts = count()
        self.rows: dict[str, Row] = {}
        self.known = NodeTable({})
        """What another node that reads the rows knows."""

    def node(self, node: int) -> str:
        return f"{self.name}-{node}"

    @rule(node=nodes, epoch=epochs, begin=st.booleans(), replaces=st.sampled_from(("a", "b", "", "")))
    def beat(self, node: int, epoch: str, begin: bool, replaces: str) -> None:
        """On time, or by a process that was frozen while its successor began."""
        name, links = self.node(node), next(self.counts)
        row = self.rows.get(name)
        fields: dict[str, str | int | float] = {"state": "ready", "links": links}
        good, now = self.server.run(self.load.renew(name, epoch, fields, begin=begin, replaces=replaces))
        own = row is not None and row.epoch == epoch
        assert good == (own or (begin and (row is None or row.epoch == replaces)))
        if good:
            began = now if begin or row is None else row.began
            assert row is None or now >= row.at or row.state == "stopped"
            self.rows[name] = Row(epoch, now, began, "ready", links)

    @rule(node=nodes, epoch=epochs)
    def leave(self, node: int, epoch: str) -> None:
        """Only one's own row is left."""
        name, now = self.node(node), self.server.run(self.server.time())
        row = self.rows.get(name)
        self.server.run(self.load.mark_stopped(name, epoch, now, 0))
        if row is not None and row.epoch == epoch:
            row.at, row.state, row.links = now - ALIVE_MS - 1, "stopped", 0

    @rule(node=nodes)
    def lose(self, node: int) -> None:
        """The row expires, or Redis has lost it: the process that wrote it must learn of that."""
        name = self.node(node)
        self.server.submit("DEL", schema.node_key(name))
        self.rows.pop(name, None)

    @invariant()
    def the_table_is_what_was_told(self) -> None:
        now = self.server.run(self.server.time())
        table = self.server.run(self.load.read_all(now, 0))
        self.known = self.server.run(self.load.refresh(self.known, now, 0))
        followed = {row.node: row for row in self.known.rows()}
        for name in map(self.node, (1, 2)):
            found = [row for row in table.rows() if row.node == name]
            row = self.rows.get(name)
            stored = [(r.epoch, r.at, r.began, r.state, r.links) for r in found]
            assert stored == ([] if row is None else [(row.epoch, row.at, row.began, row.state, row.links)])
            # Who follows knows each life, and when it has last beaten; of a row that is lost it hears by the next life.
            assert row is None or (followed[name].epoch, followed[name].at) == (row.epoch, row.at)
            for epoch in "ab":
                lives = row is not None and row.epoch == epoch and now - row.at <= ALIVE_MS
                assert table.holds(f"{name}#{epoch}", now) == lives
            if row is not None:
                life = integer(self.server.submit("PTTL", schema.node_key(name)))
                assert 0 < life <= NODE_TTL_MS

    def teardown(self) -> None:
        """The table is read by every history: it must not grow with them."""
        for name in map(self.node, (1, 2)):
            self.server.submit("DEL", schema.node_key(name))
            self.server.submit("ZREM", schema.NODES, f"{name}#a", f"{name}#b")


@pytest.mark.timeout(36000 if EXAMPLES else 60)
def test_the_table_of_nodes_agrees_with_the_heartbeats(server: ScriptServer) -> None:
    class BeatsOfThis(Beats):
        def __init__(self) -> None:
            super().__init__(server)

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


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("links", "many"),
        ("cpu", "nan"),
        ("lag_ms", "inf"),
        ("spare_accept_rate", "-1e30"),
        ("at", "9" * 4000),
        ("state", b"\xff"),
        ("overheads", "1,x"),
    ],
)
def test_row_that_no_node_writes_harms_only_its_own_node(server: ScriptServer, field: str, value: str | bytes) -> None:
    load, (good, bad) = NodeRows(server.store), (f"{next(server.names)}-{kind}" for kind in ("good", "bad"))
    counts: dict[str, str | int | float] = {"state": "serving", "links": 5}
    for node in (good, bad):
        assert server.run(load.renew(node, "a", dict(counts), begin=True))[0]
    server.submit("HSET", schema.node_key(bad), field, value)
    server.submit("ZADD", schema.NODES, "inf", f"{bad}-heartbeat#a", 1, b"\xff#a")
    try:
        now = server.run(server.time())
        for table in (server.run(load.read_all(now, 0)), server.run(load.refresh(NodeTable({}), now, 0))):
            names = {row.node for row in table.rows()}
            assert good in names
            assert bad not in names
        assert server.run(load.look_up(bad))[0] is None
    finally:
        server.submit("ZREM", schema.NODES, f"{good}#a", f"{bad}#a", f"{bad}-heartbeat#a", b"\xff#a")
        for node in (good, bad):
            server.submit("DEL", schema.node_key(node))


def calls(server: ScriptServer) -> dict[str, int]:
    """How often the server has executed each command so far, those within scripts too."""
    counted = {}
    for line in text(server.submit("INFO", "commandstats")).splitlines():
        if line.startswith("cmdstat_"):
            name, _, rest = line.removeprefix("cmdstat_").partition(":calls=")
            counted[name] = int(rest.partition(",")[0])
    counted.pop("info", None)
    return counted


def test_the_cost_of_a_heartbeat_does_not_grow_with_the_nodes(tmp_path: Path) -> None:
    """Of 2, 20 and 200 nodes, all of which live: the same calls, and in step with what every row says."""
    server = ScriptServer(tmp_path, cluster=False)
    try:
        load = NodeRows(server.store)
        counts: dict[str, str | int | float] = {"state": "serving", "links": 5_000}
        table, costs, made = NodeTable({}), [], 0
        for nodes in (2, 20, 200):
            for number in range(nodes):
                server.run(load.renew(f"node-{number}", "a", dict(counts), begin=number >= made))
            made = nodes
            table = server.run(load.refresh(table, server.run(server.time()), 0))  # hears of the new ones
            before = calls(server)
            good, now = server.run(load.renew("node-0", "a", dict(counts), begin=False))
            table = server.run(load.refresh(table, now, 0))
            after = calls(server)
            assert good
            assert len([row for row in table.rows() if row.alive(now)]) == nodes
            costs.append({name: n - before.get(name, 0) for name, n in after.items() if n != before.get(name, 0)})
        assert costs[0] == costs[1] == costs[2]
        assert costs[0] == {
            "client|getname": 4,
            "evalsha": 1,
            "time": 1,
            "hget": 1,
            "hset": 1,
            "pexpire": 1,
            "zadd": 1,
            "zrange": 1,
        }
    finally:
        server.close()


def test_row_of_another_type_harms_only_its_own_node(server: ScriptServer, caplog: pytest.LogCaptureFixture) -> None:
    load, (good, bad) = NodeRows(server.store), (f"{next(server.names)}-{kind}" for kind in ("good", "bad"))
    for node in (good, bad):
        assert server.run(load.renew(node, "a", {"state": "serving"}, begin=True))[0]
    server.submit("SET", schema.node_key(bad), "a note")
    try:
        now = server.run(server.time())
        for table in (server.run(load.read_all(now, 0)), server.run(load.refresh(NodeTable({}), now, 0))):
            assert {good} == {row.node for row in table.rows()} & {good, bad}
        assert server.run(load.look_up(bad))[0] is None
        assert schema.node_key(bad) in caplog.text
    finally:
        server.submit("ZREM", schema.NODES, f"{good}#a", f"{bad}#a")
        for node in (good, bad):
            server.submit("DEL", schema.node_key(node))


async def test_a_node_begins_while_the_primary_of_any_copy_is_away(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, replicas=False)
    try:
        await cluster.start()
        for copy, gone in enumerate([await cluster.owner(schema.nodes_key(copy)) for copy in range(3)]):
            gone.signal(signal.SIGSTOP)
            store = open_store(cluster.url)
            store.start()
            try:
                assert await store.wait_available(20), store.last_error
                rows, name = NodeRows(store), f"new-{copy}"
                row, now = await rows.look_up(name)
                assert row is None
                assert (await rows.renew(name, "a", {"state": "ready"}, begin=True))[0]
                assert name in {row.node for row in (await rows.read_all(now, 0)).rows()}
            finally:
                await store.aclose()
                gone.signal(signal.SIGCONT)
    finally:
        cluster.stop()
