"""The LinkOperations of one LinkGateway in a pass: which wait, in which order, and which have expired. Pure.

The controller and the runner read it from the resources themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from fairlead_operator.api.link_operation import ENDED, Phase
from fairlead_operator.kube.objects import Object

MOST_PER_PASS = 20
"""The maximum number of operations of one LinkGateway that a pass considers: any others wait behind these."""


def in_order(operations: Sequence[Object]) -> list[Object]:
    """The operations that have not ended: first the running one, then the others, the oldest first."""

    def order(body: Object) -> tuple[bool, str, str]:
        meta = body["metadata"]
        return phase_of(body) != Phase.RUNNING, meta.get("creationTimestamp", ""), meta["uid"]

    return sorted((body for body in operations if phase_of(body) not in ENDED), key=order)[:MOST_PER_PASS]


def phase_of(body: Object) -> str:
    return str((body.get("status") or {}).get("phase") or "")


def gateway_of(body: Object) -> str:
    """Name of the LinkGateway that the operation is about."""
    return str(body["spec"]["gateway"]["name"])


def is_expired(body: Object, now: datetime) -> bool:
    """Whether it ended longer ago than it asked to be kept."""
    keep = body["spec"].get("ttlSecondsAfterFinished")
    finished_at = (body.get("status") or {}).get("finishedAt")
    if keep is None or finished_at is None or phase_of(body) not in ENDED:
        return False
    return (now - datetime.fromisoformat(str(finished_at))).total_seconds() >= float(keep)
