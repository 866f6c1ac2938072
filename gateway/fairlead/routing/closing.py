"""What is due when a command is over: it leaves its agent's open ones and the keeper's list, and followers wake.

Called by whoever ended it: the recorder, delivery, dispatch, the keeper. Nothing here is waited for: if Redis is
away the keeper finds the same again at its time.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from fairlead.bus.doorbell import Cancel, Wake
from fairlead.bus.inbox import Inbox
from fairlead.fleet.directory import Directory
from fairlead.fleet.due import Due
from fairlead.fleet.schema import State
from fairlead.routing.chronicle import Chronicle
from fairlead.telemetry.metrics import Metrics
from fairlead.telemetry.timing import Origin
from fairlead.telemetry.trace import Context
from fairlead.wire.messages import DEADLINE

TROUBLE = frozenset({"failed", "timeout", "offline", "expired"})


class Closing:
    def __init__(self, directory: Directory, due: Due, inbox: Inbox, metrics: Metrics, chronicle: Chronicle) -> None:
        self._directory = directory
        self._due = due
        self._inbox = inbox
        self._chronicle = chronicle
        self._ended = {state.value: metrics.commands.labels(state.value) for state in State if state.over}

    def over(
        self, command: str, agent: str, state: str, followers: Iterable[str], code: str = "",
        origin: Origin | None = None, sid: str = "", stop: bool = False,
    ) -> Context | None:  # fmt: skip
        """A target came into its terminal state just now; `code` is that of its error. With the command's `origin`
        it is told as a span, if its trace is kept: then where that belongs is returned. `stop`: it ran
        into its deadline and the agent may still run it; the agent's node is told that it should not."""
        self._ended[state].inc()
        kept = self._chronicle.over(command, agent, state, code, origin, sid)
        trouble = f"command {command} ended as {state}{code and ': ' + code}" if state in TROUBLE else ""
        settled = self._directory.settle(agent, command, trouble)
        if stop:
            settled.then(partial(self._stop, command, agent))
        self._due.done(command, agent)
        self.wake(command, followers)
        return kept

    def _stop(self, command: str, agent: str, lease: str) -> None:
        if lease:
            self._inbox.ring(lease, (Cancel(agent, command, DEADLINE),))

    def forget(self, command: str, agent: str) -> None:
        """The target needs nobody's attention any more."""
        self._directory.settle(agent, command)
        self._due.done(command, agent)

    def wake(self, command: str, followers: Iterable[str]) -> None:
        for lease in followers:
            self._inbox.ring(lease, (Wake(command),))
