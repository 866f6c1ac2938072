"""What happens to calls that a server of a Cluster did not execute, because their slot is elsewhere or on its way.

`ClusterStore` passes them on. MOVED: the call goes to the server that is named, and the slot's later calls too. ASK:
this call alone goes there, after ASKING. TRYAGAIN: some keys of the call have been moved and others not, so it is
repeated until the move has ended. None of these calls was executed, so none is executed twice.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from functools import partial
from typing import Final

from redis.exceptions import AskError, MovedError, TryAgainError

from fairlead.errors import BusUnavailable, FairleadError, StoreFull
from fairlead.redis_url import shown
from fairlead.store.backlog import Call
from fairlead.store.batch import Redirected, fit
from fairlead.store.cluster.slot_table import Address
from fairlead.store.endpoint import ASKING
from fairlead.store.reply import Reply

LIMIT: Final = 60
"""Times that one call is passed on: about two seconds of TRYAGAIN, after which its caller has given it up. A slot that
has moved takes one."""
AGAIN: Final = (0.02, 0.05)
"""Seconds until a call is repeated after TRYAGAIN, at least and at most. A key is moved in less than a millisecond."""


class Redirects:
    def __init__(
        self, move: Callable[[int, Address], None], send: Callable[[list[Call], Address], None],
        again: Callable[[Call], None],
    ) -> None:  # fmt: skip
        """`move` learns that a slot has a new owner, `send` sends calls to a server before its others, and `again`
        sends a call to the owner of its slot."""
        self._move = move
        self._send = send
        self._again = again
        self._hops: dict[int, int] = {}
        """By the id of the future of a call, which lives until it is done: how often the call was passed on."""

    def take(self, calls: Redirected, source: Address) -> None:
        """Pass `calls` on, which the server at `source` did not execute, in their order."""
        moved: dict[Address, list[Call]] = {}
        for call, error in calls:
            if call.future.done() or not self._may_go_on(call, source):
                continue
            if isinstance(error, TryAgainError):
                asyncio.get_running_loop().call_later(random.uniform(*AGAIN), self._again, call)
                continue
            target = (str(error.host) or source[0], int(error.port))
            if isinstance(error, MovedError):
                self._move(int(error.slot_id), target)
                moved.setdefault(target, []).append(call)
            else:
                self._send([self._asking(call, target)], target)
        for target, group in moved.items():
            self._send(group, target)

    def _may_go_on(self, call: Call, source: Address) -> bool:
        key = id(call.future)
        hops = self._hops.get(key, 0) + 1
        if hops == 1:
            call.future.add_done_callback(lambda _: self._hops.pop(key, None))
        self._hops[key] = hops
        if hops > LIMIT:
            why = "its cluster is moving keys, and has not ended for too long; the call was not executed"
            call.fail(BusUnavailable(f"Redis at {shown(*source)} refuses commands: {why}"))
        return hops <= LIMIT

    def _asking(self, call: Call, target: Address) -> Call:
        """ASKING and the call as two commands, whose second reply is that of the call."""
        replies: asyncio.Future[list[Reply | FairleadError]] = asyncio.get_running_loop().create_future()
        replies.add_done_callback(partial(self._answer, call, target))
        asking = Call(replies, ASKING + call.packed, call.script, call.priority, call.expected, 2, [])
        asking.told = call.told
        return asking

    def _answer(self, call: Call, target: Address, replies: asyncio.Future[list[Reply | FairleadError]]) -> None:
        if call.future.done():
            return
        if replies.cancelled():
            call.future.cancel()
            return
        error = replies.exception()
        if error is None:
            reply = replies.result()[1]
            if not isinstance(reply, FairleadError):
                call.future.set_result(reply)
                return
            error = reply
        if isinstance(error.__cause__, AskError | TryAgainError):
            self.take([(call, error.__cause__)], target)
        elif call.must_fit and isinstance(error, StoreFull):  # so it was not executed
            fit(call)
            self._send([self._asking(call, target)], target)
        elif isinstance(error, FairleadError):
            call.fail(error, error.__cause__)
        else:
            call.future.set_exception(error)
