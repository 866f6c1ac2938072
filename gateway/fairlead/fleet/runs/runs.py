"""Runs in Redis: their terms, agents, states, ends and groups, and who owns each.

`routing.runs` calls it; it is the only writer of the keys in `keys`. Only the owner of a run takes steps, and the
script refuses those of an owner that was replaced. The indices of open and of recent runs have slots of their own, so
they may name a run that has ended or is gone, or miss one that has just begun: whoever reads them asks the run. Raises
BusUnavailable if Redis does not answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import msgspec

from fairlead.errors import BusUnavailable
from fairlead.fleet.runs import keys
from fairlead.fleet.runs.run_record import (
    LETTERS,
    RunEnd,
    RunGroup,
    RunRow,
    RunState,
    RunStep,
    RunTargetState,
    RunTerms,
)
from fairlead.store.answer import Answer
from fairlead.store.backlog import Priority
from fairlead.store.reply import Arg, Reply, integer, items, octets, table, text
from fairlead.store.script import Script, load
from fairlead.store.store import Store

OWNED_MS = 5_000
"""How long a step keeps its run with its owner. With a step every 1.5 s and a look for lost runs every second, another
node goes on within 7 s of the death of an owner."""
AGENTS_A_BLOB = 1_000
PAGE = 256
"""Ends that one reply has at most."""
END_BYTES = 64
RECENT = 10_000
"""Runs in the index of recent runs of a tenant. Older ones are found by their id alone."""


def _script(name: str) -> Script:
    return load("fairlead.fleet.runs", f"scripts/{name}")


CREATE_RUN, TAKE_RUN, STEP_RUN = _script("create_run"), _script("take_run"), _script("step_run")
ASK_RUN, FOLLOW_RUN, RELEASE_RUN = _script("ask_run"), _script("follow_run"), _script("release_run")

_encode = msgspec.msgpack.Encoder().encode
_decode_terms = msgspec.msgpack.Decoder(RunTerms).decode
_decode_counts = msgspec.msgpack.Decoder(dict[RunTargetState, int]).decode
_decode_agents = msgspec.msgpack.Decoder(list[str]).decode
_decode_end = msgspec.msgpack.Decoder(RunEnd).decode
_decode_group = msgspec.msgpack.Decoder(RunGroup).decode


@dataclass(frozen=True, slots=True)
class StepAnswer:
    """`why` is ok, fenced (another owner has the run), gone, or gap (Redis has lost some of the steps before)."""

    why: str
    until: int = 0
    wish: str = ""
    followers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TakenRun:
    """The run belongs to this node as `gen` until `until` (ms). Nobody has owned it since `idle_since`."""

    gen: int
    until: int
    idle_since: int


@dataclass(frozen=True, slots=True)
class RunPage:
    """The state of a run, and its ends from an offset on. `total` is the number of all ends so far."""

    state: RunState
    ended: int
    counts: dict[RunTargetState, int]
    total: int
    ends: list[RunEnd]


class Runs:
    def __init__(self, store: Store) -> None:
        self._store = store

    async def create(
        self, run: str, owner: str, terms: RunTerms, payload: bytes, agents: Sequence[str], life: int, valid: int
    ) -> TakenRun | None:
        """Write a new run, owned by `owner`; None if there was one with this id. `life` is in ms, and after the time
        `valid` nothing is written."""
        counts = {RunTargetState.WAITING: len(agents)}
        blobs = [_encode(agents[at : at + AGENTS_A_BLOB]) for at in range(0, len(agents), AGENTS_A_BLOB)]
        self._store.write("ZADD", keys.OPEN_RUNS, valid + OWNED_MS, run)
        recent = keys.recent_runs_key(terms.tenant)
        self._store.write("ZADD", recent, 0, run)
        self._store.write("ZREMRANGEBYRANK", recent, 0, -RECENT - 1)
        reply = await self._store.run(
            CREATE_RUN, keys.run_keys(run)[:3],
            (owner, OWNED_MS, valid, _encode(terms), payload, _encode(counts), len(agents), life, *blobs),
        )  # fmt: skip
        answer = items(reply)
        if text(answer[0]) == "late":
            raise BusUnavailable("Redis answered too late; the run was not accepted and will not begin")
        return TakenRun(integer(answer[1]), int(text(answer[2])), 0) if text(answer[0]) == "ok" else None

    async def take(self, run: str, owner: str) -> TakenRun | int | None:
        """Become the owner of a run that has none. Otherwise the time (ms) until which it has one, or None if there is
        nothing left to do for it."""
        answer = items(await self._store.run(TAKE_RUN, keys.run_keys(run)[:1], (owner, OWNED_MS)))
        why = text(answer[0])
        if why == "owned":
            return int(text(answer[1]))
        return TakenRun(integer(answer[1]), int(text(answer[2])), int(text(answer[3]))) if why == "ok" else None

    def step(self, run: str, gen: int, seq: int, kept: int, step: RunStep, agents: Sequence[str]) -> Answer[StepAnswer]:
        """Store the step number `seq` of the owner `gen`, and stay the owner for OWNED_MS. `kept` is how long an ended
        run is kept (ms), and `agents` are all of its agents, with those that join with this step."""
        joined = _joined(agents, step.joined)
        args: list[Arg] = [
            gen, seq, OWNED_MS, step.state.value, _encode(step.counts), step.reason, "1" if step.ended else "",
            kept, "1" if step.drops_waiting else "", step.done_wish, len(agents), len(joined) // 2, *joined,
            len(step.started), *step.started, len(step.queued), *step.queued, len(step.ends),
        ]  # fmt: skip
        for end in step.ends:
            args += (end.index, bytes((LETTERS[end.state],)), _encode(end))
        for group in step.groups:
            args += (f"{group.state} {group.code} {group.digest}", _encode(group))
        reply = self._store.run(STEP_RUN, keys.run_keys(run), args, priority=Priority.RESULTS)
        return Answer(reply, _parse_step)

    async def release(self, run: str, gen: int) -> None:
        """Stop being the owner, so that another node may take the run at once."""
        await self._store.run(RELEASE_RUN, keys.run_keys(run)[:1], (gen,), priority=Priority.RESULTS)

    async def ask(self, run: str, wish: str) -> tuple[str, str, str]:
        """Ask the owner of a run to pause, resume or cancel it. Returns (ok, ended or gone; the state now; the
        owner)."""
        answer = [text(part) for part in items(await self._store.run(ASK_RUN, keys.run_keys(run)[:1], (wish,)))]
        why, state, owner = [*answer, "", ""][:3]
        return why, state, owner

    def read(self, run: str) -> Answer[RunRow | None]:
        """None if there is no such run."""
        fields = ("state", "terms", "targets", "counts", "owner", "gen", "until", "seq", "wish", "ended", "reason")
        reply = self._store.submit("HMGET", keys.run_key(run), *fields, expected=1_024)
        return Answer(reply, partial(_parse_row, run))

    async def payload(self, run: str) -> bytes | None:
        reply = await self._store.submit("HGET", keys.run_key(run), "payload", expected=1 << 16)
        return None if reply is None else octets(reply)

    async def agents(self, run: str) -> list[str]:
        """All agents of a run, in the order of their indices."""
        agents: list[str] = []
        while True:
            at = len(agents) // AGENTS_A_BLOB
            reply = await self._store.submit("LRANGE", keys.run_agents_key(run), at, at + 7, expected=1 << 18)
            blobs = items(reply)
            for blob in blobs:
                agents += _decode_agents(octets(blob))
            if len(blobs) < 8:
                return agents

    async def some_agents(self, run: str, blob: int) -> list[str]:
        """The agents with the indices from `blob` × AGENTS_A_BLOB on."""
        reply = await self._store.submit("LINDEX", keys.run_agents_key(run), blob, expected=1 << 15)
        return [] if reply is None else _decode_agents(octets(reply))

    async def states(self, run: str) -> bytearray:
        """The state of each target, as a letter."""
        reply = await self._store.submit("GET", keys.run_states_key(run), expected=1 << 17)
        return bytearray() if reply is None else bytearray(octets(reply))

    async def groups(self, run: str) -> list[RunGroup]:
        """The groups of all targets that have ended, the largest one first."""
        reply = table(await self._store.submit("HGETALL", keys.run_groups_key(run), expected=1 << 15))
        return sorted(map(_decode_group, reply.values()), key=lambda group: -group.count)

    def follow(self, run: str, offset: int, follower: str = "") -> Answer[RunPage | None]:
        """The state of a run with its ends from `offset` on; None if there is no such run. `follower` is the lease name
        of a node that is told when there are more."""
        reply = self._store.run(
            FOLLOW_RUN, (keys.run_key(run), keys.run_ends_key(run)), (offset, PAGE, follower), expected=PAGE * END_BYTES
        )
        return Answer(reply, _parse_page)

    def open(self, run: str, until: int) -> asyncio.Future[Reply]:
        """Note until when a run has an owner."""
        return self._store.write("ZADD", keys.OPEN_RUNS, until, run)

    def close(self, run: str) -> asyncio.Future[Reply]:
        """Remove a run that has ended, or is gone, from the index of open runs."""
        return self._store.submit("ZREM", keys.OPEN_RUNS, run)

    async def recent(self, tenant: str, before: str, most: int) -> list[str]:
        """Up to `most` runs of a tenant in the index that were posted before the run `before`, or the last ones if it
        is "", the newest first."""
        start = f"({before}" if before else "+"
        reply = await self._store.submit(
            "ZRANGE", keys.recent_runs_key(tenant), start, "-", "BYLEX", "REV", "LIMIT", 0, most
        )
        return [text(run) for run in items(reply)]

    def forget_recent(self, tenant: str, runs: Sequence[str]) -> None:
        """Remove runs that are gone from the index of recent runs."""
        self._store.write("ZREM", keys.recent_runs_key(tenant), *runs)

    async def without_owner(self, now: int, most: int) -> list[str]:
        """Up to `most` open runs whose owner has not prolonged its time until `now` (ms)."""
        reply = await self._store.submit("ZRANGEBYSCORE", keys.OPEN_RUNS, "-inf", now, "LIMIT", 0, most)
        return [text(run) for run in items(reply)]


def _joined(agents: Sequence[str], count: int) -> list[Arg]:
    """The blobs that hold the last `count` agents, each after its number; the first one also holds agents that were
    there before."""
    if not count:
        return []
    found: list[Arg] = []
    for number in range((len(agents) - count) // AGENTS_A_BLOB, (len(agents) - 1) // AGENTS_A_BLOB + 1):
        found += (number, _encode(agents[number * AGENTS_A_BLOB : (number + 1) * AGENTS_A_BLOB]))
    return found


def _parse_step(reply: Reply) -> StepAnswer:
    answer = items(reply)
    why = text(answer[0])
    if why != "ok":
        return StepAnswer(why)
    return StepAnswer(why, int(text(answer[1])), text(answer[2]), tuple(text(answer[3]).split()))


def _parse_row(run: str, reply: Reply) -> RunRow | None:
    values = items(reply)
    if values[0] is None:
        return None
    state, terms, targets, counts, owner, gen, until, seq, wish, ended, reason = map(octets, values)
    return RunRow(
        run, RunState(state.decode()), _decode_terms(terms), int(targets), _decode_counts(counts), owner.decode(),
        int(gen), int(until), int(seq), wish.decode(), int(ended), reason.decode(),
    )  # fmt: skip


def _parse_page(reply: Reply) -> RunPage | None:
    answer = items(reply)
    if text(answer[0]) != "ok":
        return None
    ends = [_decode_end(octets(end)) for end in items(answer[5])]
    return RunPage(
        RunState(text(answer[1])), int(text(answer[2])), _decode_counts(octets(answer[3])), integer(answer[4]), ends
    )
