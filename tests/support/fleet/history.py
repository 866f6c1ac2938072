"""The state machine that generates histories of nodes that claim, deliver, store, and act too late.

Played by test_model.py. Every step makes one call on the server and in the reference and compares the answers; after
every step all that can be read back is compared as well. Its rules are those of `Links` and `Streams`.
"""

from __future__ import annotations

from hypothesis.stateful import invariant

from fairlead.fleet import schema
from fairlead.fleet.command_record import ResultPage
from fairlead.shards import command_shard
from fairlead.store.reply import Reply, integer, items, octets, table, text

from support.fleet.history_links import Links
from support.fleet.history_posting import assert_row
from support.fleet.history_streams import Streams
from support.fleet.script_server import FAR_MS, RETENTION_MS, ScriptServer

NO_KEY = -2
"""What PTTL says of one that is not there."""


class FleetHistory(Links, Streams):
    """The actions of nodes, in any order, on time or late."""

    def __init__(self, server: ScriptServer) -> None:
        super().__init__(server)
        for agent in "ba":
            self._connect(agent, "x", "n1#a", False)

    @invariant()
    def everything_agrees(self) -> None:
        self.server.run(self._compare())

    async def _compare(self) -> None:
        store, names, ids = self.server.store, [self.agent(short) for short in "ab"], list(self.model.commands)
        rows = [self.directory.look_up(name) for name in names]
        opened = [store.submit("HKEYS", schema.open_key(name)) for name in names]
        exist = [store.submit("EXISTS", schema.agent_key(name)) for name in names]
        found = [self.records.look_up(id_) for id_ in ids]
        following = [store.submit("HGET", schema.cmd_key(id_), "w") for id_ in ids]
        sums = [store.submit("HGET", schema.cmd_key(id_), "sum") for id_ in ids]
        pages = [self.records.read(id_, self.model.commands[id_].behind, 1 << 20) for id_ in ids]
        inputs = [store.submit("XRANGE", schema.in_key(id_), "-", "+") for id_ in ids]
        lives = [
            [store.submit("PTTL", key(id_)) for key in (schema.cmd_key, schema.out_key, schema.in_key)] for id_ in ids
        ]
        due = [
            store.submit("ZSCORE", schema.deadlines_key(command_shard(id_)), f"{id_} {self.agent_of(id_)}")
            for id_ in ids
        ]
        for name, row, commands, exists in zip(names, rows, opened, exist, strict=True):
            assert await exists == self.model.agent(name).known
            assert_row(await row, self.model.agent(name), reported=True)
            assert {text(command) for command in items(await commands)} == self.model.open_of(name)
        for n, id_ in enumerate(ids):
            model, command = self.model.commands[id_], await found[n]
            assert command is not None
            (target,) = command.targets
            assert (target.agent, target.state, target.gen, target.next, target.attempt, target.ending) == (
                model.record.agent, model.state, model.gen, model.next, model.attempt, model.ending,
            )  # fmt: skip
            assert (command.seq, command.truncated, command.has_input, bool(command.cancel_asked)) == (
                len(model.stored), model.truncated, bool(model.given), model.cancel_asked,
            )  # fmt: skip
            posted = model.record
            assert (command.agent, command.method, command.lane, command.created, command.expires) == (
                posted.agent, posted.method, posted.lane, posted.created, posted.expires,
            )  # fmt: skip
            counts = octets(await sums[n]).split(b"|")
            assert counts == [
                b"%d" % part for part in (not model.state.over, len(model.stored), model.size, model.truncated)
            ]
            assert set(text(await following[n]).split()) == set(model.followers)
            page = await pages[n]
            assert isinstance(page, ResultPage)
            assert [(r.n, r.kind, r.payload) for r in page.results] == model.stored[max(model.behind, model.void) :]
            assert (page.ended is not None) == model.state.over
            assert chunks_of(await inputs[n], model.consumed) == model.given[model.consumed :]
            record_life, *others = [integer(await life) for life in lives[n]]
            assert 0 < record_life <= FAR_MS + RETENTION_MS + 60_000
            assert all(life == NO_KEY or life > record_life - 5_000 for life in others)
            score = await due[n]
            at = self.model.due.get((id_, posted.agent))
            assert (None if score is None else float(octets(score))) == at

    def teardown(self) -> None:
        """No history is left in the deadline queue; every reader gets the same from every offset."""
        for command, agent in self.model.due:
            self._done(command, agent)
        for command, found in self.model.commands.items():
            self._read(command, 0, 0, 0)
            for offset in range(len(found.stored) + 1):
                self._read(command, offset, 1000, 0)


def chunks_of(reply: Reply, first: int) -> list[tuple[bytes, bool]]:
    """Input as it lies in the stream, from chunk `first` on."""
    chunks = []
    for entry in items(reply):
        entry_id, flat = items(entry)
        if int(octets(entry_id).partition(b"-")[0]) > first:
            fields = table(flat)
            chunks.append((fields[b"p"], fields[b"e"] == b"1"))
    return chunks
