"""The signatures of a signed run's commands, made from the one that its caller has given.

The driver of a run makes one when it begins, on whatever node that is: everything follows from what the run has in
Redis. It verifies nothing, because no node has a key; an agent refuses what its caller has not signed.
"""

from __future__ import annotations

from fairlead.fleet.runs.run_record import OwnedRun
from fairlead.signing.command_signature import unpack
from fairlead.signing.run_signature import RunOrder, SignedTargets
from fairlead.tenant import local_id


class RunSignatures:
    def __init__(self, run: OwnedRun) -> None:
        """Takes 7 µs for each target of the run: call it in a thread."""
        terms = run.terms
        self._head = unpack(terms.signature)
        order = RunOrder(
            run.id, terms.method, run.payload, terms.lane, terms.retry, self._head.issued, self._head.expires
        )
        self._targets = SignedTargets(order, self._head.key_id, [local_id(agent) for agent in run.agents])

    def of(self, agent: str) -> bytes:
        """What the command of this agent carries as its signature."""
        return self._targets.of_target(self._head, local_id(agent))
