"""What is due when a command is over: it leaves its agent's open ones and the keeper's list, and followers wake.

Called by whoever ended it: the recorder, delivery, dispatch, the keeper. Nothing here is waited for: if Redis is
away the keeper finds the same again at its time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

from fairlead.bus.doorbell import CancelRequested, Doorbell, ResultsAdded
from fairlead.bus.inbox import Inbox
from fairlead.errors import FairleadError
from fairlead.fleet.deadline_queue import DeadlineQueue
from fairlead.fleet.directory import Directory
from fairlead.fleet.schema import TargetState
from fairlead.routing.observability.telemetry_recorder import TelemetryRecorder
from fairlead.store.answer import Answer
from fairlead.telemetry.command_timing import CommandOrigin
from fairlead.telemetry.metrics import Metrics
from fairlead.telemetry.tracing import TraceContext
from fairlead.wire.messages import DEADLINE

TROUBLE = frozenset({"failed", "timeout", "offline", "expired"})
TIMEOUT = TargetState.TIMEOUT.value


class Completion:
    def __init__(
        self, directory: Directory, due: DeadlineQueue, inbox: Inbox, metrics: Metrics, telemetry: TelemetryRecorder
    ) -> None:
        self._directory = directory
        self._due = due
        self._inbox = inbox
        self._telemetry = telemetry
        self._ended = {state.value: metrics.commands.labels(state.value) for state in TargetState if state.over}

    def over(
        self, command: str, agent: str, state: str, followers: Iterable[str], code: str = "",
        origin: CommandOrigin | None = None, sid: str = "",
    ) -> TraceContext | None:  # fmt: skip
        """A target came into its terminal state just now; `code` is that of its error. With the command's `origin`
        it is told as a span, if its trace is kept: then where that belongs is returned."""
        self._ended[state].inc()
        kept = self._telemetry.over(command, agent, state, code, origin, sid)
        self._directory.remove_open(agent, command, _trouble(command, state, code) if state in TROUBLE else "")
        self._due.remove(command, agent)
        self.wake(command, followers)
        return kept

    def timed_out(
        self, command: str, agent: str, followers: Iterable[str], code: str, origin: CommandOrigin | None
    ) -> None:
        """A target came into `timeout` just now: what callers wait for is done. The rest is for `settle_timed_out`."""
        self._ended[TIMEOUT].inc()
        self._telemetry.over(command, agent, TIMEOUT, code, origin, "")
        self.wake(command, followers)

    def settle_timed_out(self, targets: Sequence[tuple[str, str]], code: str) -> Answer[None]:
        """The rest of the end of these (command, agent), which may be repeated: each is no longer open for its agent;
        its node, when it has one, is told that the agent should not run it any more; and the keeper looks no more.

        A target that could not be settled stays in the keeper's list. Raises BusUnavailable when Redis is away.
        """
        settled = [(agent, command, _trouble(command, TIMEOUT, code)) for command, agent in targets]
        return self._directory.remove_open_each(settled).map(partial(self._settled, targets))

    def _settled(self, targets: Sequence[tuple[str, str]], leases: Sequence[str | FairleadError]) -> None:
        stops: dict[str, list[Doorbell]] = {}
        failure: FairleadError | None = None
        for (command, agent), lease in zip(targets, leases, strict=True):
            if isinstance(lease, FairleadError):
                failure = lease
                continue
            if lease:
                stops.setdefault(lease, []).append(CancelRequested(agent, command, DEADLINE))
            self._due.remove(command, agent)
        for lease, doorbells in stops.items():
            self._inbox.ring(lease, doorbells)
        if failure is not None:
            raise failure

    def forget(self, command: str, agent: str) -> None:
        """The target needs nobody's attention any more."""
        self._directory.remove_open(agent, command)
        self._due.remove(command, agent)

    def wake(self, command: str, followers: Iterable[str]) -> None:
        for lease in followers:
            self._inbox.ring(lease, (ResultsAdded(command),))


def _trouble(command: str, state: str, code: str) -> str:
    return f"command {command} ended as {state}{code and ': ' + code}"
