"""Many calls with one future: `submit_each` and `run_each` on a Cluster, where the keys may be on several primaries.

`ClusterStore` uses it. On one server such calls are one call of many commands; here each is a call of its own, so that
each can follow its slot.
"""

from __future__ import annotations

import asyncio
from functools import partial

from fairlead.errors import BusUnavailable, FairleadError
from fairlead.store.reply import Reply


class MergedReplies:
    """Sets `future` to the replies in the order of the calls, with errors in the places of those that failed. Where
    every call failed because no primary answered, the future fails like that of a single call."""

    def __init__(self, future: asyncio.Future[list[Reply | FairleadError]], calls: list[asyncio.Future[Reply]]) -> None:
        self._future = future
        self._replies: list[Reply | FairleadError] = [None] * len(calls)
        self._left = len(calls)
        for place, call in enumerate(calls):
            call.add_done_callback(partial(self._take, place))

    def _take(self, place: int, call: asyncio.Future[Reply]) -> None:
        error = BusUnavailable("the call was cancelled") if call.cancelled() else call.exception()
        if error is None:
            self._replies[place] = call.result()
        elif isinstance(error, FairleadError):
            self._replies[place] = error
        elif not self._future.done():
            self._future.set_exception(error)
        self._left -= 1
        if self._left == 0 and not self._future.done():
            self._finish()

    def _finish(self) -> None:
        first = self._replies[0]
        if isinstance(first, BusUnavailable) and all(isinstance(reply, BusUnavailable) for reply in self._replies):
            self._future.set_exception(first)
            self._future.exception()  # marks it as retrieved, as `Call.fail` does
        else:
            self._future.set_result(self._replies)
