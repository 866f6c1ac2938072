"""Collects the conditions of one resource, as Kubernetes' API conventions have them. Pure.

Created and filled anew in every pass, by the reconciler and by the operation runner. A condition keeps the time of its
last transition as long as its status stays the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from fairlead_operator.api.field_types import ApiStruct
from fairlead_operator.api.gateway_status import Condition

GOOD_IF_FALSE = ("Progressing", "RemovalHeld", "ScalingLimited")
MOST_CHARACTERS = 1000
"""The longest message of a condition: the API server accepts 32,768 characters, but nobody would read them."""


class Conditions:
    """The conditions of one pass. `before` are those of the last pass, `now` is the wall clock's time."""

    def __init__(self, before: Sequence[Condition], generation: int, now: str) -> None:
        self._before = {condition.type: condition for condition in before}
        self._generation = generation
        self._now = now
        self._set: dict[str, Condition] = {}

    def set(self, kind: str, holds: bool | None, reason: str, message: str = "") -> None:
        """`holds` is None when it is unknown."""
        status = {True: "True", False: "False", None: "Unknown"}[holds]
        before = self._before.get(kind)
        same = before is not None and before.status == status
        self._set[kind] = Condition(
            type=kind,
            status=status,
            reason=reason,
            message=message[:MOST_CHARACTERS],
            last_transition_time=before.last_transition_time if same and before is not None else self._now,
            observed_generation=self._generation,
        )

    def all(self) -> list[Condition]:
        """The conditions that this pass has set. One that it has not set is dropped from the status."""
        return list(self._set.values())

    def newly_false(self) -> list[Condition]:
        """The conditions that have become False, or are False for another reason. A new LinkGateway whose Ready is
        False is not among them.
        """
        found = []
        for condition in self._set.values():
            before = self._before.get(condition.type)
            if before is None:
                is_new = condition.type != "Ready"
            else:
                is_new = (before.status, before.reason) != ("False", condition.reason)
            if condition.status == "False" and condition.type not in GOOD_IF_FALSE and is_new:
                found.append(condition)
        return found

    def is_true(self, kind: str) -> bool:
        return kind in self._set and self._set[kind].status == "True"

    def is_false(self, kind: str) -> bool:
        return kind in self._set and self._set[kind].status == "False"


def status_patch(status: ApiStruct) -> Mapping[str, Any]:
    """A merge patch of the status subresource: fields that are None become null, which removes them."""
    return {"status": msgspec.to_builtins(status)}
