"""Stores what agents send of commands of the lane `bulk`: that of many agents of one shard in one call.

A run on ten thousand agents ends with as many short answers, and a task, a call and a reply for each would cost more
than what is in them. So while a call of a shard is under way, what else comes for this shard waits, and goes with the
next one: nothing waits for a timer, and the busier the node is, the more goes together. The recorder passes it
sessions. It gives back what is large, is not of one command alone, or was not stored: the recorder then stores the same
once more by itself, which changes nothing that was stored.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final

from fairlead.errors import FairleadError
from fairlead.fleet.batches.command_batches import AT_ONCE
from fairlead.hub.session import Session
from fairlead.routing.background_tasks import BackgroundTasks
from fairlead.routing.delivery.recording.bulk_answer import BulkAnswer, bulk_answer
from fairlead.routing.delivery.recording.message_batch import MessageBatch
from fairlead.routing.delivery.recording.receipts import Receipts
from fairlead.routing.fleet_store import FleetStore
from fairlead.shards import command_shard
from fairlead.wire.messages import Ack, Chunk, End, FromAgent

logger = logging.getLogger(__name__)

SMALL: Final = 8 << 10
"""Bytes that are pending of a session: more is stored by itself, so that a call is never more than some 256 KiB."""
_OF_COMMANDS = frozenset({Ack, Chunk, End})


class BulkRecorder:
    def __init__(
        self,
        fleet: FleetStore,
        stored: Receipts,
        tasks: BackgroundTasks,
        alone: Callable[[Session, MessageBatch], None],
        failed: Callable[[Session], None],
    ) -> None:
        """`alone` stores the messages of one session, and what it sends after them. `failed` closes the link of one
        after an exception."""
        self._batches = fleet.batches
        self._gate = fleet.gate
        self._stored = stored
        self._tasks = tasks
        self._alone = alone
        self._failed = failed
        self._waiting: dict[int, list[Session]] = {}
        """The sessions that wait, by shard: of each shard for which a task is under way."""

    def take(self, session: Session) -> bool:
        """Store the pending messages of the session, if they may wait for others: returns False if they may not."""
        first = session.pending[0] if session.pending else None
        if type(first) not in _OF_COMMANDS or not session.gives_way(first.id):  # type: ignore[union-attr]
            return False
        shard = command_shard(first.id)  # type: ignore[union-attr]
        if (waiting := self._waiting.get(shard)) is not None:
            waiting.append(session)
        else:
            self._waiting[shard] = [session]
            self._tasks.spawn(self._run(shard))
        return True

    async def _run(self, shard: int) -> None:
        waiting = self._waiting[shard]
        try:
            while waiting:
                taken = waiting[:AT_ONCE]
                del waiting[:AT_ONCE]
                await self._store(shard, taken)
        finally:
            del self._waiting[shard]

    async def _store(self, shard: int, sessions: Sequence[Session]) -> None:
        """Store what these sessions have, or give it back."""
        answers: list[BulkAnswer] = []
        for session in sessions:
            try:
                messages = session.take_pending()
                answer = self._answer(shard, session, messages)
                if answer is None:
                    self._alone(session, MessageBatch(messages))
                else:
                    answers.append(answer)
            except Exception:
                self._failed(session)
        if answers:
            await self._append(shard, answers)

    async def _append(self, shard: int, answers: Sequence[BulkAnswer]) -> None:
        try:
            reply = await self._batches.append(shard, [answer.sent for answer in answers])
            stored = self._batches.parse(reply)
        except Exception as e:  # Redis is away, or something is wrong with one of them
            if not isinstance(e, FairleadError):
                logger.exception("storing the answers of %d agents at once failed", len(answers))
            logger.debug("the answers of %d agents are stored one by one: %s", len(answers), e)
            for answer in answers:
                self._alone(answer.session, MessageBatch(answer.messages))
            return
        self._stored.remember_together([a for a, one in zip(answers, stored, strict=True) if one.why == "ok"])
        for answer, one in zip(answers, stored, strict=True):
            session = answer.session
            if one.why != "ok":
                self._alone(session, MessageBatch(answer.messages))
                continue
            try:
                self._stored.settle(answer, one)
            except Exception:
                self._failed(session)
                continue
            if session.pending:  # it has sent more meanwhile
                self._waiting[shard].append(session)
            else:
                session.take_pending()  # so the next message calls `record`

    def _answer(self, shard: int, session: Session, messages: Sequence[FromAgent | None]) -> BulkAnswer | None:
        """What the agent has sent of its only command; None if it has to be stored by itself."""
        answer = None if self._gate.closed else bulk_answer(session, messages)
        if answer is None or answer.pending > SMALL:
            return None
        command = answer.sent.command
        other = command_shard(command) != shard or self._stored.lacks_origin(session, command)
        return None if other else answer
