"""Many commands of one shard in one call: accepts them, and stores what agents have sent of them.

The runs accept their targets with it, and the recorder stores what agents send of the lane `bulk`. Each command is
written as `Commands` would: the scripts share their functions. A call costs Redis and this process something besides
its commands, so that 32 of them in one take three quarters of what they take Redis one by one. Their keys are of one
shard, and all of them are named, so that a Cluster executes a call whole or not at all. A command with a key that has a
value of another type is `failed` and leaves the others alone: whoever called does the same once more with this command
by itself, which may be repeated. Methods send when they are called. Raises BusUnavailable if Redis does not answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final

import msgspec

from fairlead.fleet import command_replies, lua, schema
from fairlead.fleet.batches.whole_answer import whole_answer
from fairlead.fleet.command_record import Acceptance, AppendResult, CommandMetadata, NewRecord
from fairlead.fleet.commands import BULK, shared_terms, terms_of
from fairlead.fleet.failover.recent_steps import AcceptedStep, RecentSteps
from fairlead.shards import command_shard
from fairlead.store.answer import Answer
from fairlead.store.backlog import Priority
from fairlead.store.reply import Arg, Reply, items, text
from fairlead.store.store import Store

AT_ONCE: Final = 32
"""Commands in one call, which takes Redis less than a millisecond: all others wait for that long."""
PAYLOAD_BYTES: Final = 256 << 10
"""Bytes of payloads that one call writes at most, unless that of one command is larger: each record has a copy."""
ACCEPTED_BYTES, APPENDED_BYTES = 96, 64
"""What the reply has of each command."""

_encode = msgspec.msgpack.Encoder().encode


class SentSteps(msgspec.Struct, frozen=True):
    """What an agent has sent of a command, as steps of `Commands.append`, on its link of generation `gen`."""

    command: str
    agent: str
    gen: int
    steps: Sequence[Arg]


class CommandBatches:
    def __init__(self, store: Store, output_limit: int, recent: RecentSteps) -> None:
        """`recent` has what was stored lately."""
        self._store = store
        self._output_limit = output_limit
        self._recent = recent

    def accept(
        self, records: Sequence[NewRecord], due_at: int, valid_until: int, follower: str, *, offer: bool
    ) -> Iterator[tuple[Sequence[NewRecord], Answer[list[Acceptance]]]]:
        """Do what `Commands.accept` does for each of `records`, which differ in their ids and agents, traceparents and
        signatures alone, and have no Idempotency-Key. Yields those of each call, with its answer.

        The row of a command that was offered has its lease, its generation, and when its agent came and was seen.
        """
        for shard, part in _by_shard(records):
            yield part, self._accept(shard, part, due_at, valid_until, follower, offer)

    def _accept(
        self, shard: int, records: Sequence[NewRecord], due_at: int, valid_until: int, follower: str, offer: bool
    ) -> Answer[list[Acceptance]]:
        first = records[0]
        keys = [schema.deadlines_key(shard)]
        args: list[Arg] = [*shared_terms(first, due_at, valid_until, follower, offer)]
        abouts = []
        for one in records:
            command, agent = one.id, one.agent
            about = _encode(
                CommandMetadata(
                    agent, one.method, one.lane, one.created, one.hold_until, one.traceparent, one.began, one.subject,
                    one.signature, one.content,
                )
            )  # fmt: skip
            abouts.append(about)
            keys += schema.keys_to_accept(shard, command, agent)
            args += (command, agent, about)
        reply = self._store.run(
            lua.ACCEPT_COMMANDS, keys, args, priority=Priority.BULK if first.lane == BULK else Priority.COMMANDS,
            expected=ACCEPTED_BYTES * len(records), count=len(records),
        )  # fmt: skip
        return Answer(reply, partial(self._accepted, records, abouts))

    def _accepted(self, records: Sequence[NewRecord], abouts: Sequence[bytes], reply: Reply) -> list[Acceptance]:
        word, *answers = items(reply)
        if text(word) == "late":
            raise lua.late("command")
        found = [command_replies.parse_accept(one.agent, answer) for one, answer in zip(records, answers, strict=True)]
        first = records[0]
        terms = terms_of(first)
        steps = [
            AcceptedStep(one.id, one.agent, one.created, one.retention, terms, about, one.results_limit)
            for one, about, acceptance in zip(records, abouts, found, strict=True)
            if acceptance.why == "ok"
        ]
        if steps:
            self._recent.accepted_together(steps)
        return found

    def append(self, shard: int, sent: Sequence[SentSteps]) -> asyncio.Future[Reply]:
        """Do what `Commands.append` does for each of `sent`, at most AT_ONCE, whose commands are all of this shard.
        `parse` reads the reply, so that whoever waits for it needs no task."""
        keys = [schema.deadlines_key(shard), *schema.kept_keys(shard)]
        args: list[Arg] = [self._output_limit]
        for one in sent:
            keys += schema.keys_to_append(shard, one.command, one.agent)
            whole = whole_answer(one.agent, one.steps, self._output_limit)
            if whole is not None:
                args += (one.agent, one.gen, "w", whole.count, whole.sum, whole.few, whole.blob)
            else:
                args += (one.agent, one.gen, len(one.steps), *one.steps)
        return self._store.run(
            lua.APPEND_BATCH, keys, args, priority=Priority.BULK, expected=APPENDED_BYTES * len(sent), count=len(sent)
        )

    @staticmethod
    def parse(reply: Reply) -> list[AppendResult]:
        return [command_replies.parse_append(answer) for answer in items(reply)]


def _by_shard(records: Sequence[NewRecord]) -> Iterator[tuple[int, list[NewRecord]]]:
    """The records of each shard, AT_ONCE at most and no more than PAYLOAD_BYTES allow."""
    shards: dict[int, list[NewRecord]] = {}
    for record in records:
        shards.setdefault(command_shard(record.id), []).append(record)
    for shard, those in shards.items():
        most = max(1, min(AT_ONCE, PAYLOAD_BYTES // max(1, len(those[0].payload))))
        for at in range(0, len(those), most):
            yield shard, those[at : at + most]
