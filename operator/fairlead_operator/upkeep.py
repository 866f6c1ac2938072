"""Keeps the children of one LinkGateway as they should be: applies them, repairs drift, removes what is not asked for.

One for each LinkGateway, run by its steward. An object of the same name that belongs to somebody else is never
touched. What others have added to ours stays (a restart's annotation, the scale), since only our fields are applied.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass

from fairlead.errors import FairleadError
from fairlead_operator.children import OPTIONAL, Owner, children
from fairlead_operator.cluster import Cluster
from fairlead_operator.errors import Absent, Changed, ClusterAway, ClusterRefused, Denied, NotLeading
from fairlead_operator.objects import Object
from fairlead_operator.spec import LinkGatewaySpec

logger = logging.getLogger(__name__)

AGAIN = 30.0
"""Seconds after which everything is applied anew though nothing was asked for: how long drift lives."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why something could not be kept: a reason for programs and a message for people."""

    reason: str
    message: str


def trouble_of(error: FairleadError) -> Trouble:
    reasons = {Denied: "RightMissing", Absent: "KindMissing", ClusterAway: "ApiServerAway", Changed: "Changed"}
    return Trouble(reasons.get(type(error), "Refused"), error.message)


class Upkeep:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._applied = ""
        self._applied_at = float("-inf")
        self._troubles: list[Trouble] = []

    async def run(self, owner: Owner, spec: LinkGatewaySpec, now: float) -> list[Trouble]:
        """What could not be done, most important first; one child's trouble keeps no other from being applied."""
        wanted = children(owner, spec)
        asked = json.dumps(wanted, sort_keys=True)
        if asked == self._applied and now - self._applied_at < AGAIN and not self._troubles:
            return []
        troubles = []
        for body in wanted:
            try:
                await self._apply(owner, body)
            except NotLeading:
                raise
            except FairleadError as e:
                troubles.append(trouble_of(e))
        for kind in OPTIONAL:
            if all(body["kind"] != kind for body in wanted):
                await self._remove(owner, kind)
        self._applied, self._applied_at, self._troubles = asked, now, troubles
        return troubles

    async def _apply(self, owner: Owner, body: Object) -> None:
        kind, name = body["kind"], body["metadata"]["name"]
        found = await self._cluster.find(kind, owner.namespace, name)
        if found is not None and not _owned(found, owner):
            raise ClusterRefused(f"{kind} {name} exists and belongs to somebody else: rename one of the two")
        await self._cluster.apply(body)

    async def _remove(self, owner: Owner, kind: str) -> None:
        try:
            found = await self._cluster.find(kind, owner.namespace, owner.name)
            if found is not None and _owned(found, owner):
                await self._cluster.delete(kind, owner.namespace, owner.name, found["metadata"]["uid"])
        except NotLeading:
            raise
        except FairleadError as e:
            # What we may not see we have not made; what could not be removed is tried again.
            logger.debug("%s/%s: %s: %s", owner.namespace, owner.name, kind, e.message)


def _owned(found: Object, owner: Owner) -> bool:
    return any(ref.get("uid") == owner.uid for ref in found["metadata"].get("ownerReferences", []))
