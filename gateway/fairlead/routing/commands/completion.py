"""Does what follows the end of a command: counts it and notifies its followers.

Called by everything that ends a command: the recorder, the delivery, dispatch, the sweeper and the removal of agents.
The step that ends a command also removes it from its agent's open commands and from the deadline queue; only for those
whose deadline has passed, `settle_timed_out` does so. Nothing else here waits. If this node ends before that, a sweeper
finds the command when it is due again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

from fairlead.bus.doorbell import CancelRequested, Doorbell, ResultsAdded, ResultsStored, TargetEnded
from fairlead.bus.inbox import Inbox
from fairlead.errors import FairleadError
from fairlead.fleet.deadline_queue import DeadlineQueue
from fairlead.fleet.directory import Directory
from fairlead.fleet.schema import TargetState
from fairlead.routing.commands.output_digest import SentOutput
from fairlead.routing.observability.telemetry_recorder import TelemetryRecorder
from fairlead.routing.tenant_limits import TenantLimits
from fairlead.store.answer import Answer
from fairlead.telemetry.command_timing import CommandOrigin
from fairlead.telemetry.metrics import Metrics
from fairlead.telemetry.tracing import TraceContext
from fairlead.wire.messages import DEADLINE

TIMEOUT = TargetState.TIMEOUT.value
ENDS_ONLY = "!"
"""Before the lease of a follower that is told of the end of a command and of no result before it."""


class Completion:
    def __init__(
        self,
        directory: Directory,
        deadlines: DeadlineQueue,
        inbox: Inbox,
        metrics: Metrics,
        telemetry: TelemetryRecorder,
        tenants: TenantLimits,
    ) -> None:
        self._directory = directory
        self._deadlines = deadlines
        self._inbox = inbox
        self._telemetry = telemetry
        self._tenants = tenants
        self._ended = {state.value: metrics.commands[state.value] for state in TargetState if state.over}

    def completed(
        self, command: str, agent: str, state: str, followers: Iterable[str], code: str = "",
        origin: CommandOrigin | None = None, sid: str = "", sent: SentOutput | None = None, added: bytes = b"",
    ) -> TraceContext | None:  # fmt: skip
        """Do what follows after a command has reached its final state. `code` is that of its error, `origin` what its
        record says about its beginning, for its span, `sent` what is told of all its output, if that is known, and
        `added` the results that were stored with its end, if they may be told. Returns its trace context if its trace
        is kept."""
        self._ended[state].inc()
        self._tenants.command_ended(command, agent)
        kept = self._telemetry.command_completed(command, agent, state, code, origin, sid)
        news = ResultsStored(command, added) if added else ResultsAdded(command)
        for lease in followers:
            if not lease.startswith(ENDS_ONLY):
                self._inbox.ring(lease, (news,))
            elif sent is None:
                self._inbox.ring(lease[len(ENDS_ONLY) :], (ResultsAdded(command),))
            else:
                self._inbox.ring(lease[len(ENDS_ONLY) :], (TargetEnded(command, state, code, *sent),))
        return kept

    def timed_out(
        self, command: str, agent: str, followers: Iterable[str], code: str, origin: CommandOrigin | None
    ) -> None:
        """Do what callers wait for after a command has reached the state `timeout`. `settle_timed_out` does the
        rest."""
        self._ended[TIMEOUT].inc()
        self._tenants.command_ended(command, agent)
        self._telemetry.command_completed(command, agent, TIMEOUT, code, origin, "")
        self.notify(command, followers)

    def settle_timed_out(self, targets: Sequence[tuple[str, str]], code: str) -> Answer[None]:
        """Do the rest for these (command, agent), which may be repeated: remove each from its agent's open commands and
        from the deadline queue, and tell its agent's node to stop it.

        A target that could not be settled stays in the deadline queue. Raises BusUnavailable if Redis is away.
        """
        settled = [(agent, command, f"command {command} ended as {TIMEOUT}: {code}") for command, agent in targets]
        return self._directory.remove_open_each(settled).map(partial(self._settled, targets))

    def _settled(self, targets: Sequence[tuple[str, str]], leases: Sequence[str | FairleadError]) -> None:
        cancels: dict[str, list[Doorbell]] = {}
        failure: FairleadError | None = None
        for (command, agent), lease in zip(targets, leases, strict=True):
            if isinstance(lease, FairleadError):
                failure = lease
                continue
            if lease:
                cancels.setdefault(lease, []).append(CancelRequested(agent, command, DEADLINE))
            self._deadlines.remove(command, agent)
        for lease, doorbells in cancels.items():
            self._inbox.ring(lease, doorbells)
        if failure is not None:
            raise failure

    def forget(self, command: str, agent: str) -> None:
        """Remove a command that has no record, or was over before, from its agent's open commands and the deadline
        queue. If that fails, the sweeper or the agent's next link finds it again."""
        self._directory.remove_open(agent, command)
        self._deadlines.remove(command, agent)

    def notify(self, command: str, followers: Iterable[str]) -> None:
        """Tell the nodes with these leases that the command has ended."""
        for lease in followers:
            self._inbox.ring(lease.removeprefix(ENDS_ONLY), (ResultsAdded(command),))

    def notify_results(self, command: str, followers: Iterable[str], added: bytes) -> None:
        """Tell those of the nodes with these leases that follow its results that the command has more, or, if `added`
        is not empty, which."""
        news = ResultsStored(command, added) if added else ResultsAdded(command)
        for lease in followers:
            if not lease.startswith(ENDS_ONLY):
                self._inbox.ring(lease, (news,))
