"""Stores what most links send, the results of one command, without a task: a callback does what follows from the
answer.

A task costs more than the work in it. The recorder passes it sessions, and gets back whatever is not the results of one
command alone, or was not stored. That includes a whole answer whose record is not that of an open command without
results: the recorder's task then stores its steps one by one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from fairlead.fleet.command_record import AppendResult
from fairlead.hub.session import Session
from fairlead.routing.background_tasks import BackgroundTasks
from fairlead.routing.delivery.recording.message_batch import MessageBatch
from fairlead.routing.delivery.recording.receipts import Receipts
from fairlead.routing.fleet_store import FleetStore


class ResultRecorder:
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
        self._records = fleet.records
        self._gate = fleet.gate
        self._stored = stored
        self._tasks = tasks
        self._alone = alone
        self._failed = failed
        self._fresh: list[Session] = []
        """Sessions whose first pending message has just arrived."""

    def take(self, session: Session) -> None:
        """Store the pending messages of the session, with the next turn of the event loop: so all that have arrived
        together are one batch."""
        if not self._fresh:
            asyncio.get_running_loop().call_soon(self._begin_all)
        self._fresh.append(session)
        self._tasks.begin_taskless()

    def _begin_all(self) -> None:
        fresh, self._fresh = self._fresh, []
        for session in fresh:
            self._begin(session)

    def _begin(self, session: Session) -> None:
        """Store the next batch of the session, or end this piece of work if nothing is pending."""
        try:
            if messages := session.take_pending():
                batch = MessageBatch(messages)
                if self._is_simple(session, batch):
                    ((command, steps),) = batch.ops.items()
                    bulk = session.gives_way(command)
                    sent = (command, session.agent, session.gen, steps)
                    stored = self._records.append_answer(*sent, bulk=bulk) or self._records.append(*sent, bulk=bulk)
                    stored.on_reply(partial(self._answered, session, batch, command, stored.read))
                    return
                self._alone(session, batch)
        except Exception:
            self._failed(session)
        self._tasks.end_taskless()

    def _is_simple(self, session: Session, batch: MessageBatch) -> bool:
        """Whether all of the batch is results of one command, and nothing else has to be awaited for it."""
        if len(batch.ops) != 1 or batch.events or self._gate.closed:
            return False
        return not self._stored.lacks_origin(session, *batch.ops)

    def _answered(
        self, session: Session, batch: MessageBatch, command: str, read: Callable[[Any], AppendResult | None],
        reply: asyncio.Future[Any],
    ) -> None:  # fmt: skip
        """Do what follows from the answer to the append of a simple batch, and go on with the next batch."""
        try:
            stored = None if reply.cancelled() or reply.exception() is not None else read(reply.result())
            if stored is None or stored.why != "ok":
                self._alone(session, batch)
                self._tasks.end_taskless()
                return
            steps = batch.ops.pop(command)
            self._stored.stored(session, command, stored, batch.codes.get(command, ""), steps)
            self._stored.confirm(session, batch)
        except Exception:
            self._failed(session)
        self._begin(session)
