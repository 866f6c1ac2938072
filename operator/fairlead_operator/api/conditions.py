"""The conditions of a resource's status, as Kubernetes' API conventions have them. Pure.

Filled by the reconciler and by the operation runner. A condition keeps the time of its last transition as long as its
status stays the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from fairlead_operator.api.gateway_status import Condition

GOOD_IF_FALSE = ("Progressing", "ScalingLimited")


class Conditions:
    """The conditions of one look, set one by one over those before."""

    def __init__(self, before: Sequence[Condition], generation: int, now: str) -> None:
        self._before = {one.type: one for one in before}
        self._generation = generation
        self._now = now
        self._set: dict[str, Condition] = {}

    def set(self, kind: str, holds: bool | None, reason: str, message: str = "") -> None:
        status = {True: "True", False: "False", None: "Unknown"}[holds]
        before = self._before.get(kind)
        same = before is not None and before.status == status
        self._set[kind] = Condition(
            type=kind,
            status=status,
            reason=reason,
            message=message[:1000],
            last_transition_time=before.last_transition_time if same and before is not None else self._now,
            observed_generation=self._generation,
        )

    def all(self) -> list[Condition]:
        """Those of this look; one that was not looked at is not claimed."""
        return list(self._set.values())

    def fallen(self) -> list[Condition]:
        """Those that have become False, or are so for another reason. Ready begins as False, which is no news."""
        found = []
        for one in self._set.values():
            was = self._before.get(one.type)
            news = one.type != "Ready" if was is None else (was.status, was.reason) != ("False", one.reason)
            if one.status == "False" and one.type not in GOOD_IF_FALSE and news:
                found.append(one)
        return found

    def holds(self, kind: str) -> bool:
        return kind in self._set and self._set[kind].status == "True"

    def failed(self, kind: str) -> bool:
        return kind in self._set and self._set[kind].status == "False"


def patch_of(status: Struct) -> Mapping[str, Any]:
    """As a merge: what is not there any more is null."""
    return {"status": msgspec.to_builtins(status)}
