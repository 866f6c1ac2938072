"""The record of each command: its target's state, its results and its input, until retention ends.

`routing` calls it; it is the only writer of `fl2:cmd`, `fl2:out` and `fl2:in`. Methods send when they are called and
return an awaitable of the answer (see `Directory`). Every call may be repeated: creating a command twice creates it
once, a chunk that is already stored is dropped, and a terminal state is set once. Raises BusUnavailable if Redis does
not answer.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from functools import partial

import msgspec

from fairlead.errors import FairleadError
from fairlead.fleet import command_replies, lua, schema
from fairlead.fleet.batches.whole_answer import whole_answer
from fairlead.fleet.command_record import (
    CANCELLED,
    EXPIRED,
    OUTCOME_UNKNOWN,
    Acceptance,
    AppendResult,
    CommandMetadata,
    CommandOutcome,
    CommandRecord,
    Delivery,
    NewRecord,
    OutOfRange,
    OwnedCommand,
    ResultPage,
    Settled,
    StoredEnd,
    TakenOver,
    command_keys,
)
from fairlead.fleet.failover.recent_steps import RecentSteps
from fairlead.fleet.schema import TargetState
from fairlead.shards import command_shard
from fairlead.store.answer import Answer
from fairlead.store.backlog import EXPECTED_REPLY, ExpectedSize, Priority
from fairlead.store.reply import Arg, Reply, integer, items, octets, table, text
from fairlead.store.store import Store
from fairlead.telemetry.command_timing import CommandOrigin

INPUT_LIMIT = 4 << 20
"""The maximum number of bytes of a command's input that its agent has not consumed; above it the caller has to wait."""

RECORD_BYTES = 512
"""The expected size of a record without its payload and its end."""

ENTRY_BYTES = 64
"""What each result counts besides its payload, as in record.lua."""

UNENDED_MS = 60_000
"""How long a command is kept after its deadline if nobody ends it."""

BULK = "bulk"
"""The lane whose commands give way to all others."""

_encode = msgspec.msgpack.Encoder().encode


class Commands:
    def __init__(self, store: Store, output_limit: int) -> None:
        self._store = store
        self._output_limit = output_limit
        self._payloads, self._pages, self._inputs = ExpectedSize(), ExpectedSize(), ExpectedSize()
        """The recent reply sizes of deliveries, pages of results and reads of input."""
        self.recent = RecentSteps()
        """What was stored lately. The recorder adds the results."""

    def accept(
        self, record: NewRecord, due_at: int, valid_until: int, follower: str = "", unknown: bool = False,
        offer: bool = False,
    ) -> Answer[Acceptance]:  # fmt: skip
        """Write the record with its target queued, among the agent's open commands and to the deadline queue, where the
        sweeper checks it at `due_at` (ms). The answer is `exists` if the record was there before.

        `follower` is the lease name of a node that is notified through its inbox when there are results (see `read`).
        With `unknown` the command is accepted although the agent has no row. With `offer` it counts as sent to the
        process that the agent's row names, if it names one: the caller then tells that node everything, or ends the
        offer.
        """
        about = CommandMetadata(
            record.agent, record.method, record.lane, record.created, record.hold_until, record.traceparent,
            record.began, record.subject, record.signature, record.content,
        )  # fmt: skip
        command, agent, packed = record.id, record.agent, _encode(about)
        shard = command_shard(command)
        written, _, _, outcome, opened, row = schema.keys_to_append(shard, command, agent)
        keys: tuple[str, ...] = (row, opened, written, schema.deadlines_key(shard))
        if record.remembered:
            keys = (*keys, outcome)
        args = (
            *shared_terms(record, due_at, valid_until, follower, offer),
            command,
            agent,
            packed,
            "1" if unknown else "",
        )
        priority = Priority.BULK if record.lane == BULK else Priority.COMMANDS
        reply = self._store.run(lua.ACCEPT_COMMAND, keys, args, priority=priority)
        return Answer(reply, partial(self._accepted, record, packed))

    def _accepted(self, record: NewRecord, about: bytes, reply: Reply) -> Acceptance:
        answer = command_replies.parse_accept(record.agent, reply)
        if answer.why == "ok":
            self.recent.accepted(
                record.id, record.agent, record.created, record.retention, terms_of(record), about, record.results_limit
            )
        return answer

    def end_offer(self, command: str, agent: str, gen: int, *, written: bool) -> Answer[str | None]:
        """End the offer of a command to the link of generation `gen`. `written` says that it may have been written to
        that link; otherwise it is queued again. The answer is the lease that holds the agent, "" for none, and None if
        there was no such offer, or it was ended before."""
        keys, args = (schema.cmd_key(command), schema.agent_key(agent)), (agent, gen, "1" if written else "")
        reply = self._store.run(lua.END_OFFER, keys, args, priority=Priority.RESULTS)
        return Answer(reply, lambda reply: None if reply is None else text(reply))

    def take_over(self, command: str, agent: str, gen: int, memory: str) -> Answer[TakenOver | Settled]:
        """Become the owner of one open command from generation `gen` on, before welcome. Nothing is sent to the agent
        yet."""
        return Answer(
            self._fence(command, agent, gen, memory, "", Priority.BACKGROUND), command_replies.parse_take_over
        )

    def fence(
        self, command: str, agent: str, gen: int, memory: str, priority: Priority = Priority.COMMANDS
    ) -> Answer[Delivery | Settled]:
        """Become the owner of one open command and read what to write to the link: see fence_command.lua."""
        reply = self._fence(command, agent, gen, memory, "1", priority)
        return Answer(reply, partial(self._fenced, command, agent, gen, memory))

    def _fenced(self, command: str, agent: str, gen: int, memory: str, reply: Reply) -> Delivery | Settled:
        found = command_replies.parse_fence(reply)
        if isinstance(found, Delivery):
            self._payloads.saw(len(found.payload))
            if not found.running:
                self.recent.sent(command, agent, gen, memory, found.attempt)
        return found

    def _fence(
        self, command: str, agent: str, gen: int, memory: str, deliver: str, priority: Priority
    ) -> asyncio.Future[Reply]:
        unknown, expired = _encode(OUTCOME_UNKNOWN), _encode(EXPIRED)
        return self._store.run(
            lua.FENCE_COMMAND, command_keys(command, agent), (agent, gen, memory, unknown, expired, deliver),
            priority=priority, expected=EXPECTED_REPLY + (self._payloads.size if deliver else 0), told=True,
        )  # fmt: skip

    def append(
        self, command: str, agent: str, gen: int, steps: Sequence[Arg], *, bulk: bool = False
    ) -> Answer[AppendResult]:
        """Store what the agent sent, in order. The functions `accepted`, `data` and `ending` below make `steps`. `bulk`
        says that the command is of that lane."""
        reply = self._store.run(
            lua.APPEND_RESULTS, command_keys(command, agent), (agent, gen, self._output_limit, *steps),
            priority=Priority.BULK if bulk else Priority.RESULTS,
        )  # fmt: skip
        return Answer(reply, command_replies.parse_append)

    def append_answer(
        self, command: str, agent: str, gen: int, steps: Sequence[Arg], *, bulk: bool = False
    ) -> Answer[AppendResult | None] | None:
        """Store a whole answer in one step. Returns None if `steps` are no whole answer. The answer is None if the
        record is not that of an open command without results; nothing was changed then, and `append` is to store the
        steps."""
        answer = whole_answer(agent, steps, self._output_limit)
        if answer is None:
            return None
        shard = command_shard(command)
        written, _, _, outcome, opened, _ = schema.keys_to_append(shard, command, agent)
        reply = self._store.run(
            lua.APPEND_ANSWER, (written, opened, schema.deadlines_key(shard), outcome),
            (agent, gen, answer.count, answer.sum, answer.few, answer.blob),
            priority=Priority.BULK if bulk else Priority.RESULTS,
        )  # fmt: skip
        count = answer.count
        return Answer(reply, lambda reply: None if reply is None else command_replies.parse_answer(count, reply))

    async def finish(
        self, command: str, agent: str, state: TargetState, ending: StoredEnd, only_from: TargetState | None = None
    ) -> Settled:
        """End a target from the gateway's side; if `only_from` is given, only if the target is in that state. `why` is
        ok if this call ended it."""
        reply = self._store.run(
            lua.FINISH_COMMAND,
            command_keys(command, agent),
            (agent, state.value, _encode(ending), only_from.value if only_from else "", _line(ending.code), ""),
            priority=Priority.RESULTS,
        )
        answer = items(await reply)
        why = text(answer[0])
        if why == "ok":
            self.recent.ended(command, agent, state, ending)
        return Settled(why, command_replies.follower_names(answer[1]) if why == "ok" else ())

    async def cancel(self, command: str, agent: str) -> Settled:
        """Cancel a queued target at once (`ended`), or record the request to cancel one that was sent (`asked`)."""
        reply = self._store.run(lua.CANCEL_COMMAND, command_keys(command, agent), (agent, _encode(CANCELLED)))
        answer = items(await reply)
        why = text(answer[0])
        if why == "ended":
            self.recent.ended(command, agent, TargetState.CANCELLED, CANCELLED)
        elif why == "asked":
            self.recent.cancel_asked(command, agent)
        return Settled(why, command_replies.follower_names(answer[1]) if why == "ended" else ())

    def add_input(self, command: str, agent: str, n: int, payload: bytes, end: bool) -> Answer[tuple[str, int]]:
        """Store input chunk `n`; the end of input carries no data. Returns (word, number): see append_input.lua."""
        reply = self._store.run(
            lua.APPEND_INPUT,
            (schema.cmd_key(command), schema.in_key(command)),
            (agent, n, payload, "1" if end else "", INPUT_LIMIT, _digest(payload, end)),
        )
        return Answer(reply, command_replies.parse_input)

    def consume_input(self, command: str, n: int) -> asyncio.Future[Reply]:
        """Remove all input before chunk `n`, which the agent has consumed, to make room for more."""
        return self._store.run(
            lua.CONSUME_INPUT, (schema.cmd_key(command), schema.in_key(command)), (n,), priority=Priority.RESULTS
        )

    async def read_input(self, command: str, n: int, count: int = 16) -> list[tuple[int, bytes, bool]]:
        """Up to `count` input chunks from number `n` on, as (number, payload, whether it is the end of the input).
        Chunks that the agent has consumed are not among them."""
        reply = self._store.submit(
            "XRANGE", schema.in_key(command), f"{n + 1}-0", "+", "COUNT", count, expected=self._inputs.size
        )
        chunks = []
        for entry in items(await reply):
            id, fields = items(entry)
            number, found = int(octets(id).partition(b"-")[0]) - 1, table(fields)
            chunks.append((number, found[b"p"], found[b"e"] == b"1"))
        self._inputs.saw(sum(len(payload) for _, payload, _ in chunks))
        return chunks

    def read(
        self, command: str, offset: int, size: int, follower: str = "", behind: int = 0
    ) -> Answer[ResultPage | OutOfRange | None]:
        """About `size` bytes of results from `offset` on; None if there is no such command.

        `follower` is the lease name of a node that is notified through its inbox when there are more results. Results
        before the offset `behind` may be removed if they are retained as a window.
        """
        keys = schema.cmd_key(command), schema.out_key(command)
        reply = self._store.run(lua.READ_RESULTS, keys, (offset, size, follower, behind), expected=self._pages.size)
        return Answer(reply, partial(self._page, command))

    def _page(self, command: str, reply: Reply) -> ResultPage | OutOfRange | None:
        page = command_replies.parse_page(command, reply)
        if isinstance(page, ResultPage):
            self._pages.saw(sum(len(result.payload) for result in page.results))
        return page

    async def held(self, command: str) -> int:
        """The bytes of results in the store; 0 if there is no such command."""
        reply = self._store.submit("HGET", schema.cmd_key(command), "sum")
        entries = self._store.submit("XLEN", schema.out_key(command))
        return command_replies.parse_held_bytes(await reply) + ENTRY_BYTES * integer(await entries)

    def look_up(self, command: str) -> Answer[CommandRecord | None]:
        """The whole record except its payload; None if there is no such record or it has expired."""
        reply = self._store.run(lua.READ_RECORD, (schema.cmd_key(command),), (), expected=RECORD_BYTES)
        return Answer(reply, partial(command_replies.parse_record, command))

    def time_out(
        self, targets: Sequence[tuple[str, str, int]], how: StoredEnd
    ) -> Answer[Sequence[CommandRecord | Settled | FairleadError]]:
        """End each of `targets`, (command, agent, at), as `timeout` if it was sent to the agent and its deadline had
        passed at `at` (Redis TIME in ms). The answer for such a target is Settled with `ended`. For any other it is the
        current record, or Settled with `over` or `gone`.

        `targets` must fit into one batch. An error of one target does not affect the others.
        """
        blob = _encode(how)
        calls = [
            ((*schema.record_keys(command), *schema.kept_keys(command_shard(command))), (agent, at, blob))
            for command, agent, at in targets
        ]
        reply = self._store.run_each(lua.TIME_OUT_COMMAND, calls, expected=RECORD_BYTES)
        return Answer(reply, partial(command_replies.parse_time_outs, targets))

    def agent_of(self, command: str) -> Answer[str | None]:
        """The agent of the command; None if there is no such command."""
        reply = self._store.submit("HGET", schema.cmd_key(command), "about")
        return Answer(reply, command_replies.parse_agent)

    def owner(self, command: str) -> Answer[OwnedCommand | None]:
        """Who posted the command; None if there is no such command."""
        return Answer(self._store.submit("HGET", schema.cmd_key(command), "about"), command_replies.parse_owner)

    def content(self, command: str) -> Answer[str]:
        """The name of the content of the command; "" if it has none, or there is no such command."""
        return Answer(self._store.submit("HGET", schema.cmd_key(command), "about"), command_replies.parse_content)

    def origin(self, command: str) -> Answer[CommandOrigin | None]:
        """The origin of the command; None if there is no such command."""
        reply = self._store.submit("HGET", schema.cmd_key(command), "about")
        return Answer(reply, command_replies.parse_origin)

    def outcome(self, command: str) -> Answer[CommandOutcome | None]:
        """How a command that was posted with an Idempotency-Key ended, even if its record is gone. None if it has not
        ended, was never created, or its key has expired too."""
        return Answer(self._store.submit("GET", schema.outcome_key(command)), command_replies.parse_outcome)

    async def remember(self, key: str, body_digest: str, command: str) -> tuple[str, str]:
        """Bind an Idempotency-Key, which is `key` in Redis, to a body and a command id for 24 h. Returns the body and
        id that were bound first."""
        value = f"{body_digest} {command}"
        life = schema.REMEMBERED_MS
        reply = await self._store.submit("SET", key, value, "NX", "GET", "PX", life)
        bound = value if reply is None else text(reply)
        if reply is None:
            self.recent.key_bound(key, value)
        body, _, first = bound.partition(" ")
        return body, first

    def unbind(self, key: str, body_digest: str, command: str) -> asyncio.Future[Reply]:
        """Release an Idempotency-Key whose command was refused, if it is still bound to that command."""
        return self._store.run(lua.UNBIND_KEY, (key,), (f"{body_digest} {command}",))


def terms_of(record: NewRecord) -> tuple[int, int, str, str, int]:
    """What the scripts need of it, in the order of the field `terms`: see record.lua."""
    return record.expires, record.retention, record.retry, record.retain, record.remembered


def shared_terms(record: NewRecord, due_at: int, valid_until: int, follower: str, offer: bool) -> tuple[Arg, ...]:
    """What all commands of one call that accepts them share, as the arguments of accept.lua. A record that is never
    ended also lives as long as its Idempotency-Key; otherwise a repeated post would create it a second time."""
    expires, retention, retry, retain, remembered = terms_of(record)
    open_until = expires + UNENDED_MS
    return (
        f"{expires}|{retention}|{retry}|{retain}|{remembered}", expires, max(open_until + retention, remembered),
        open_until, due_at, valid_until, follower, record.payload, schema.OPEN_LIMIT,
        "" if record.results_limit is None else record.results_limit, "1" if offer else "",
    )  # fmt: skip


def accepted() -> tuple[Arg, ...]:
    """A step of `append`: the agent has accepted the command."""
    return ("a",)


def data(n: int, kind: str, payload: bytes) -> tuple[Arg, ...]:
    """A step of `append`: one chunk of results."""
    return ("c", n, kind, payload)


def ending(total: int, state: TargetState, how: StoredEnd) -> tuple[Arg, ...]:
    """A step of `append`: the end. No step may follow it."""
    return ("e", total, state.value, _encode(how), _line(how.code))


def _digest(payload: bytes, end: bool) -> str:
    """The digest by which an input chunk is recognized: 64 bits suffice, because nobody gains from a collision."""
    return hashlib.sha256((b"e" if end else b"c") + payload).hexdigest()[:16]


def _line(code: str) -> str:
    """An error code as it is noted in the agent's row, which has one line for each failure."""
    return " ".join(code.split())
