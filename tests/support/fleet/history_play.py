"""What every rule of a history uses: the server, the reference, and the sessions and commands that there have been.

`Play` has no rule; those of posting, outcomes, links and streams are in files of their own and inherit it. Any call may
be made twice, as by a node that lost the answer: the second must change nothing (`repeatedly`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine

from fairlead.fleet.batches.command_batches import CommandBatches
from fairlead.fleet.commands import Commands
from fairlead.fleet.deadline_queue import DeadlineQueue
from fairlead.fleet.directory import Directory
from fairlead.fleet.schema import TargetState
from fairlead.shards import agent_shard, of_agent
from fairlead.wire.ids import uuid7

from support.fleet.reference import Reference
from support.fleet.script_server import FAR_MS, INPUT_LIMIT, OPEN_LIMIT, OUTPUT_LIMIT, ScriptServer


@dataclass
class Session:
    """One link of one start of an agent, at one node. `gen` is what its last claim was answered."""

    agent: str
    boot: str
    memory: str
    conn: int
    sid: str
    lease: str
    gen: int = 0


again = st.booleans()
living = st.sampled_from((0, 0, 1, 2, 5))
anyone = st.sampled_from((0, 1, 4, 5, 6))
"""Commands and sessions are counted from the newest; from `ALL` on among those that are over as well."""
ALL = 4
agents = st.sampled_from("aaab")
seldom = st.sampled_from((False, False, False, True))
sizes = st.sampled_from((0, 1, 7, 30, 60))
outputs = st.lists(sizes, min_size=1, max_size=3) | st.just([1] * 40)
"""read_results.lua reads 32 entries in a step."""
inputs = st.lists(sizes, min_size=1, max_size=3)
shifts = st.sampled_from((0, 0, 0, 0, 1, -1, -2))
"""Chunk numbers relative to the next one: gaps and what was sent before."""
ends = st.sampled_from((TargetState.OK, TargetState.FAILED, TargetState.TIMEOUT, TargetState.CANCELLED))
leases = st.sampled_from(("n1#a", "n1#b", "n2#a"))
retries = st.sampled_from(("safe", "never"))
retains = st.sampled_from(("all", "window"))


class Play(RuleBasedStateMachine):
    """What the rules share: the sessions and commands of this history."""

    def __init__(self, server: ScriptServer) -> None:
        super().__init__()
        self.server = server
        self.name = next(server.names)
        self.now = server.run(server.time())
        self.directory = Directory(server.store)
        self.records = Commands(server.store, OUTPUT_LIMIT)
        self.batches = CommandBatches(server.store, OUTPUT_LIMIT, self.records.recent)
        self._one_of_many = False
        self.due = DeadlineQueue(server.store)
        self.model = Reference(OPEN_LIMIT, OUTPUT_LIMIT, INPUT_LIMIT)
        self.serial = count(1)
        self.sessions: list[Session] = []
        self.commands: list[str] = []
        self.taken: dict[tuple[str, str], int] = {}

    def one_of_many(self) -> bool:
        """Whether the next call is that for many commands: every second one is, and the other does the same for one."""
        self._one_of_many = not self._one_of_many
        return self._one_of_many

    def valid(self, late: bool) -> int:
        return self.now - 1 if late else self.now + FAR_MS

    def new_id(self, agent: str) -> str:
        return of_agent(uuid7(self.now, (int(self.name) << 44 | next(self.serial) << 12).to_bytes(10)), agent)

    def agent(self, short: str) -> str:
        """Both agents are of one shard, as a command and whoever asks for it always are."""
        shard = agent_shard(f"{self.name}-a")
        return next(name for n in count() if agent_shard(name := f"{self.name}-{short}{n or ''}") == shard)

    def session(self, nth: int) -> Session:
        return self.sessions[-1 - nth % len(self.sessions)]

    def owner(self, command: str) -> Session | None:
        """Who claimed the command's agent last."""
        sid = self.model.agent(self.agent_of(command)).sid
        return next((session for session in self.sessions if session.sid == sid), None)

    def agent_of(self, command: str) -> str:
        found = self.model.commands.get(command)
        return found.record.agent if found is not None else self.agent("a")

    def repeatedly(self, again: bool, call: Callable[[], None]) -> None:
        """Make a call, and once more as a node does that lost the answer."""
        call()
        if again:
            before = self.model.seen()
            call()
            assert self.model.seen() == before
