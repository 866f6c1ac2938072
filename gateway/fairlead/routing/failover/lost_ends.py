"""Says how a command has ended whose acceptance Redis has lost as well as its end.

One node knows what is needed for a record, because it accepted the command, and another one knows how the command
ended. Whichever comes second joins both: the record that the first one has written as lost is opened again, or what the
other one has set aside in Redis is stored. So it does not matter who comes first, and how much later the second one
comes. Only `RepeatedSteps` calls it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, TypeVar

from fairlead.fleet.failover.recent_steps import EndedStep, EndStep
from fairlead.fleet.failover.repairs import Repairs
from fairlead.fleet.schema import TargetState
from fairlead.store.answer import map_bounded

AT_ONCE: Final = 64
LARGE_AT_ONCE: Final = 4
"""The same for steps of others, which may have large results."""
UNSENT: Final = frozenset({TargetState.CANCELLED, TargetState.EXPIRED, TargetState.OFFLINE})

S = TypeVar("S", bound=EndStep)


class LostEnds:
    def __init__(self, repairs: Repairs) -> None:
        self._repairs = repairs

    @staticmethod
    def may_be(why: str, state: str) -> bool:
        """Whether a command of which this is found may be lost: nothing is, or it has failed."""
        return why == "gone" or (why == "over" and state == TargetState.FAILED.value)

    @staticmethod
    def had_results(step: EndedStep) -> bool:
        """Whether a command that a node has ended may have had results before: only its agent's node has them."""
        return step.state not in UNSENT or step.ending.code == "cancel_unconfirmed"

    async def reopen(self, ends: Sequence[list[S]]) -> list[list[S]]:
        """Open the records of these commands again, each of which is given by the steps that this node knows. Returns
        those that are open. For one that has no record, the steps are set aside."""
        opened, left = [], ends
        while left:
            gone = []
            async for steps, why in map_bounded(lambda steps: self._repairs.reopen(steps[0]), left, AT_ONCE):
                if why == "gone":
                    gone.append(steps)
                elif why != "over":
                    opened.append(steps)
            left = await self._set_aside(gone)
        return opened

    async def _set_aside(self, ends: Sequence[list[S]]) -> list[list[S]]:
        """Returns those that have a record now."""
        each = [(step, step is steps[0]) for steps in ends for step in steps]
        found = set()
        async for (step, _), aside in map_bounded(
            lambda one: self._repairs.set_aside(one[0], first=one[1]), each, AT_ONCE
        ):
            if not aside:
                found.add(step.command)
        return [steps for steps in ends if steps[0].command in found]

    async def of_others(self, commands: Iterable[str]) -> list[EndStep]:
        """What other nodes have set aside of these commands."""
        found: list[EndStep] = []
        async for _, steps in map_bounded(self._repairs.read_aside, commands, LARGE_AT_ONCE):
            found += steps
        return found

    async def forget(self, commands: Iterable[str]) -> None:
        """Remove what was set aside and is stored now."""
        async for _ in map_bounded(self._repairs.forget_aside, commands, AT_ONCE):
            pass
