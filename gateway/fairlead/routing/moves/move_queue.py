"""The links of a node that are to be moved, in the order in which they go: idle ones first.

`drain` takes from it. An agent that runs a command goes when the command has ended, or when the caller can wait no
longer: its streams go on over the new link, but the less often that is needed, the better.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from fairlead.hub.session import Session


class MoveQueue:
    def __init__(self, sessions: Iterable[Session]) -> None:
        self._waiting = deque(sessions)

    def __len__(self) -> int:
        """The number of links that wait, including those that have closed since the queue was last gone through."""
        return len(self._waiting)

    def take(self, count: int, *, busy_too: bool = False) -> list[Session]:
        """Remove up to `count` links from the queue, idle ones first; with `busy_too`, then those inside a command."""
        waiting = self._waiting
        taken: list[Session] = []
        for _ in range(len(waiting)):
            if len(taken) >= count:
                return taken
            session = waiting.popleft()
            if not session.open:
                continue
            (waiting if session.in_command else taken).append(session)
        while busy_too and waiting and len(taken) < count:
            taken.append(waiting.popleft())
        return taken

    def put_back(self, sessions: Iterable[Session]) -> None:
        """Put links back that were taken and not moved. They are the first ones again."""
        self._waiting.extendleft(reversed(list(sessions)))
