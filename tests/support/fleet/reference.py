"""A reference model of agents, commands, results and input in plain Python, against which the Lua scripts are checked.

Called by test_model.py, which makes every call here and on a real server and compares. Written from the heads of
the scripts, fleet/schema.py and docs/delivery.md, never from the bodies of the scripts: a rule that both share by
copying would prove nothing. It knows no Redis and no clock; the server's time comes in with the calls that need it.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import TypeAlias

from fairlead.fleet.command_record import (
    CANCELLED,
    EXPIRED,
    OUTCOME_UNKNOWN,
    AppendResult,
    NewRecord,
    Settled,
    StoredEnd,
    TakenOver,
)
from fairlead.fleet.directory_replies import Claimed, LimitReached, Overtaken
from fairlead.fleet.schema import TargetState

RUNS = 5
"""A command that may be run again is sent at most so often."""
FOLLOWERS = 16
ENTRY_BYTES = 64
"""What a result counts besides its payload, while it is retained in a window."""
FAILURES = (TargetState.FAILED, TargetState.TIMEOUT, TargetState.OFFLINE, TargetState.EXPIRED)


@dataclass
class Agent:
    """One agent's row. `gen` is 0 until the first claim."""

    lease: str = ""
    gen: int = 0
    boot: str = ""
    memory: str = ""
    conn: int = 0
    sid: str = ""
    facts: dict[str, str] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    close: int = 0
    drained: bool = False
    reason: str = ""
    unrecorded: str = ""
    last_failure: str = ""
    moved: int = 0
    up: int = 0

    @property
    def known(self) -> bool:
        return self.gen > 0


@dataclass
class Command:
    """One command of one agent. `stored` are results as (n, kind, payload), `given` all input that was ever taken."""

    record: NewRecord
    past: bool
    followers: list[str]
    state: TargetState = TargetState.QUEUED
    gen: int = 0
    next: int = 0
    attempt: int = 0
    memory: str = ""
    ending: StoredEnd | None = None
    cancel_asked: bool = False
    stored: list[tuple[int, str, bytes]] = field(default_factory=list)
    size: int = 0
    truncated: bool = False
    void: int = 0
    """The results before this offset are of a run that does not count."""
    behind: int = 0
    """Up to here results may have gone, when they are retained as a window."""
    given: list[tuple[bytes, bool]] = field(default_factory=list)
    consumed: int = 0

    @property
    def window(self) -> bool:
        return self.record.retain == "window"

    @property
    def held(self) -> int:
        """What those results take that are in the store, if they are retained as a window."""
        return self.size + ENTRY_BYTES * (len(self.stored) - max(self.behind, self.void))

    @property
    def offered(self) -> bool:
        """Its agent's node may send it without asking."""
        return self.state is TargetState.SENT and not self.attempt

    @property
    def waiting(self) -> int:
        """Bytes of input that the agent has not consumed."""
        return sum(len(payload) for payload, _ in self.given[self.consumed :])

    def end(self, state: TargetState, ending: StoredEnd) -> None:
        assert not self.state.over, "a terminal state is set once"
        self.state, self.ending = state, ending


@dataclass(frozen=True)
class Accepted:
    pass


@dataclass(frozen=True)
class Chunk:
    n: int
    kind: str
    payload: bytes


@dataclass(frozen=True)
class End:
    total: int
    state: TargetState
    ending: StoredEnd


Step: TypeAlias = Accepted | Chunk | End


class Reference:
    def __init__(self, open_limit: int, output_limit: int, input_limit: int) -> None:
        self.open_limit = open_limit
        self.output_limit = output_limit
        self.input_limit = input_limit
        self.agents: dict[str, Agent] = {}
        self.open: dict[str, set[str]] = {}
        self.commands: dict[str, Command] = {}
        self.due: dict[tuple[str, str], int] = {}

    def seen(self) -> object:
        """All that a repeated call must leave as it was: not generation and time of a claim, nor how often was sent."""
        commands = deepcopy(self.commands)
        for command in commands.values():
            command.attempt = 0
        agents = deepcopy(self.agents)
        for agent in agents.values():
            agent.gen = agent.up = 0
        return commands, agents, deepcopy(self.open), deepcopy(self.due)

    # -- agents ------------------------------------------------------------------------------------

    def agent(self, agent: str) -> Agent:
        return self.agents.get(agent, Agent())

    def open_of(self, agent: str) -> set[str]:
        return self.open.setdefault(agent, set())

    def claim(
        self, agent: str, lease: str, boot: str, conn: int, sid: str, facts: dict[str, str], own_gen: int | None,
        memory: str, *, late: bool, now: int,
    ) -> Claimed | Overtaken:  # fmt: skip
        """`now` is the server's, as the answer reports it. Attempts are ordered for longer than a history lasts."""
        row = self.agent(agent)
        if late:
            return Overtaken("late", row.gen)
        if row.known and row.boot == boot and conn < row.conn:
            return Overtaken("older", row.gen)
        ahead = row.known and row.boot == boot and conn > row.conn
        if own_gen is not None and row.gen > own_gen and row.sid != sid and not ahead:
            return Overtaken("lost", row.gen)
        if own_gen is not None and (row.gen <= own_gen or row.sid == sid):
            gen = max(row.gen, own_gen)  # it never lost the agent
        else:
            gen = max(row.gen + 1, now)
        landed = 0 < row.moved >= row.up
        if row.drained and not row.lease and not landed:
            row.moved = 0
        answer = Claimed(gen, now, row.lease, row.boot, row.gen, row.moved, landed, sorted(self.open_of(agent)))
        row.up = now
        row = self.agents.setdefault(agent, row)
        if row.lease and row.sid != sid:
            row.unrecorded, row.close, row.reason = f"{row.lease} {row.sid}", 0, ""
        row.lease, row.gen, row.boot, row.conn, row.sid, row.drained = lease, gen, boot, conn, sid, False
        row.facts, row.memory = facts, memory
        return answer

    def release(self, agent: str, sid: str, close: int, drained: bool, reason: str) -> bool:
        row = self.agent(agent)
        own = row.known and row.sid == sid
        if own or row.unrecorded.endswith(f" {sid}"):
            row.close, row.reason, row.unrecorded = close, reason, ""
        if own:
            row.lease, row.drained = "", drained
        return own

    def dispatch(self, agent: str, command: str) -> Agent | LimitReached | None:
        row, open_ = self.agent(agent), self.open_of(agent)
        if not row.known:
            return None
        if command not in open_ and len(open_) >= self.open_limit:
            return LimitReached(len(open_))
        open_.add(command)
        return row

    def forget(self, agent: str, dead_lease: str, *, long_ago: bool) -> bool:
        row = self.agent(agent)
        if row.known and not (long_ago and row.lease == dead_lease):
            return False
        if row.known:
            del self.agents[agent]
            self.open_of(agent).clear()
        return True

    # -- commands ----------------------------------------------------------------------------------

    def target(self, command: str, agent: str) -> Command | None:
        found = self.commands.get(command)
        return found if found is not None and found.record.agent == agent else None

    def accept(
        self, record: NewRecord, follower: str, due_at: int, *, past: bool, offer: bool
    ) -> Agent | LimitReached | None:
        if record.id in self.commands:
            return self.agent(record.agent)
        opened = self.dispatch(record.agent, record.id)
        if isinstance(opened, Agent):
            made = self.commands[record.id] = Command(record, past, [follower] if follower else [])
            if offer and opened.lease:
                made.state, made.gen, made.memory = TargetState.SENT, opened.gen, opened.memory
            self.due[record.id, record.agent] = due_at
        return opened

    def end_offer(self, command: str, agent: str, gen: int, *, written: bool) -> str | None:
        found = self.target(command, agent)
        if found is None or found.gen != gen or not found.offered:
            return None
        if written:
            found.attempt = 1
        else:
            found.state, found.gen, found.memory = TargetState.QUEUED, 0, ""
        return self.agent(agent).lease

    def _end(self, found: Command, state: TargetState, ending: StoredEnd, code: str) -> None:
        """The end, and all that goes with it."""
        agent, id = found.record.agent, found.record.id
        found.end(state, ending)
        self.open_of(agent).discard(id)
        self.due.pop((id, agent), None)
        if state in FAILURES and agent in self.agents:
            self.agents[agent].last_failure = f"command {id} ended as {state}{code and ': ' + code}"

    def fence(self, command: str, agent: str, gen: int, memory: str, *, deliver: bool) -> Settled | TakenOver | Command:
        found = self.target(command, agent)
        if found is None:
            return Settled("gone")
        if found.state.over:
            return Settled("over")
        if found.gen > gen:
            return Settled("stale")
        if found.offered and found.memory != memory:
            return Settled("offered")
        if found.offered and found.gen != gen:
            found.attempt = 1  # it may have been sent on another link of this process
        elif found.offered and deliver:
            found.state = TargetState.QUEUED  # it was not, as who was offered it knows
        found.gen = gen
        if found.state is not TargetState.QUEUED and found.memory != memory:
            again = found.record.retry == "safe" and not found.cancel_asked and not found.given
            if not again or found.attempt >= RUNS:
                return self._settle(found, TargetState.FAILED, OUTCOME_UNKNOWN)
            found.state, found.next = TargetState.QUEUED, 0
            found.void, found.size, found.truncated = len(found.stored), 0, False
            found.stored.append((found.attempt, "retry", b""))
        if found.state is TargetState.QUEUED and found.past:
            if found.attempt:
                return self._settle(found, TargetState.FAILED, OUTCOME_UNKNOWN)
            return self._settle(found, TargetState.EXPIRED, EXPIRED)
        if deliver:
            if found.state is TargetState.QUEUED:
                found.state, found.memory = TargetState.SENT, memory
            if found.state is TargetState.SENT:
                found.attempt += 1
            return found
        if found.state is TargetState.QUEUED:
            return TakenOver(True)
        return TakenOver(False, found.state is TargetState.RUNNING, found.next, found.cancel_asked, bool(found.given))

    def _settle(self, found: Command, state: TargetState, ending: StoredEnd) -> Settled:
        self._end(found, state, ending, ending.code)
        return Settled("ended", tuple(found.followers), state)

    def append(self, command: str, agent: str, gen: int, steps: Sequence[Step]) -> AppendResult:
        found = self.target(command, agent)
        if found is None:
            return AppendResult("gone", "", (), 0)
        if gen < found.gen:
            return AppendResult("fenced", found.state, (), 0, found.next)
        if found.state.over:
            return AppendResult("over", found.state, tuple(found.followers), 0, found.next)
        found.gen = gen
        found.state, found.attempt = TargetState.RUNNING, max(found.attempt, 1)
        why, before = "ok", len(found.stored)
        for step in steps:
            match step:
                case Chunk(n, kind, payload):
                    if n > found.next:
                        why = "gap"
                        break
                    if n == found.next:
                        found.next += 1
                        self._store(found, n, kind, payload)
                case End(total, state, ending):
                    if total == found.next:
                        self._end(found, state, ending, ending.code)
                    else:
                        why = "gap"
                    break
        seq = -1 if found.window or found.truncated else len(found.stored)
        return AppendResult(
            why, found.state, tuple(found.followers), found.held if found.window else 0, found.next,
            len(found.stored) - before, seq,
        )  # fmt: skip

    def _store(self, found: Command, n: int, kind: str, payload: bytes) -> None:
        """What is stored is the beginning of what was sent: nothing behind the limit is joined to it."""
        if not found.window and (found.truncated or found.size + len(payload) > self.output_limit):
            found.truncated = True
            return
        found.size += len(payload)
        found.stored.append((n, kind, payload))

    def finish(
        self, command: str, agent: str, state: TargetState, ending: StoredEnd, only_from: TargetState | None,
        *, settled: bool = True,
    ) -> Settled:  # fmt: skip
        """Without `settled`, what goes with the end is left to a later step."""
        found = self.target(command, agent)
        if found is None:
            return Settled("gone")
        if found.state.over:
            return Settled("over")
        if only_from is not None and found.state is not only_from:
            return Settled("kept")
        if settled:
            self._end(found, state, ending, ending.code)
        else:
            found.end(state, ending)
        return Settled("ok", tuple(found.followers))

    def cancel(self, command: str, agent: str) -> Settled:
        found = self.target(command, agent)
        if found is None:
            return Settled("gone")
        if found.state.over:
            return Settled("over")
        if found.state is TargetState.QUEUED:
            self._end(found, TargetState.CANCELLED, CANCELLED, "")
            return Settled("ended", tuple(found.followers))
        found.cancel_asked = True
        return Settled("asked")

    def add_input(self, command: str, agent: str, n: int, payload: bytes, end: bool) -> tuple[str, int]:
        found = self.target(command, agent)
        if found is None:
            return "gone", 0
        if found.state.over:
            return "over", 0
        if n < len(found.given):
            held = n >= found.consumed or n == len(found.given) - 1
            return ("other" if held and found.given[n] != (payload, end) else "ok"), 0
        if n > len(found.given):
            return "gap", len(found.given)
        if found.given and found.given[-1][1]:
            return "ended", 0
        if found.waiting + len(payload) > self.input_limit:
            return "full", found.waiting
        found.given.append((payload, end))
        return "ok", 0

    def consume_input(self, command: str, n: int) -> int:
        """The bytes that this call has made room for."""
        found = self.commands.get(command)
        if found is None:
            return 0
        before = found.waiting
        found.consumed = max(found.consumed, min(n, len(found.given)))
        return before - found.waiting

    def read_behind(self, command: str, offset: int) -> None:
        """A reader says that it has all results before `offset`."""
        found = self.commands.get(command)
        if found is not None and found.window and offset > found.behind:
            found.behind = min(offset, len(found.stored))
            found.size = sum(len(payload) for _, _, payload in found.stored[max(found.behind, found.void) :])

    def follow(self, command: str, follower: str) -> None:
        """The newest are kept, so that one that went away is dropped by those that come after it."""
        found = self.commands.get(command)
        if found is not None and not found.state.over and follower not in found.followers:
            found.followers = [follower, *found.followers][:FOLLOWERS]

    # -- when to look again ------------------------------------------------------------------------

    def schedule(self, command: str, agent: str, at: int) -> None:
        self.due[command, agent] = min(at, self.due.get((command, agent), at))

    def put_off(self, command: str, agent: str, set_by_taking: int, at: int) -> int:
        if self.due.get((command, agent)) != set_by_taking:
            return 0
        self.due[command, agent] = at
        return 1
