"""Keeps the children of one LinkGateway as they should be: applies them, repairs drift, removes what is not asked for.

One for each LinkGateway, run by its steward. An object of the same name that belongs to somebody else is never
touched. What others have added to ours stays (a restart's annotation, the scale), since only our fields are applied;
what they have changed is put back, and told.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

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
        self.repaired: list[str] = []
        """What the last run put back that another had changed or deleted."""

    async def run(self, owner: Owner, spec: LinkGatewaySpec, now: float) -> list[Trouble]:
        """What could not be done, most important first; one child's trouble keeps no other from being applied."""
        wanted = children(owner, spec)
        asked = json.dumps(wanted, sort_keys=True)
        self.repaired = []
        if asked == self._applied and now - self._applied_at < AGAIN and not self._troubles:
            return []
        troubles, repaired = [], []
        for body in wanted:
            try:
                repaired += await self._apply(owner, body)
            except NotLeading:
                raise
            except FairleadError as e:
                troubles.append(trouble_of(e))
        for kind in OPTIONAL:
            if all(body["kind"] != kind for body in wanted):
                troubles += await self._remove(owner, kind)
        if asked == self._applied and not self._troubles:
            self.repaired = repaired  # else it is us who has changed them
        self._applied, self._applied_at, self._troubles = asked, now, troubles
        return troubles

    async def _apply(self, owner: Owner, body: Object) -> list[str]:
        """What it changed, in words."""
        kind, name = body["kind"], body["metadata"]["name"]
        found = await self._cluster.find(kind, owner.namespace, name)
        if found is not None:
            check_owned(found, owner)
        applied = await self._cluster.apply(body)
        if found is None:
            return [f"{kind} {name} was gone, and is made again"]
        changes = list(_differences(_content(found), _content(applied)))
        return [f"{kind} {name} was changed: {', '.join(changes)} put back"] if changes else []

    async def _remove(self, owner: Owner, kind: str) -> list[Trouble]:
        try:
            found = await self._cluster.find(kind, owner.namespace, owner.name)
        except FairleadError as e:
            # What we may not see we have not made.
            logger.debug("%s/%s: %s: %s", owner.namespace, owner.name, kind, e.message)
            return []
        if found is None or not _owned(found, owner):
            return []
        try:
            await self._cluster.delete(kind, owner.namespace, owner.name, found["metadata"]["uid"])
        except NotLeading:
            raise
        except Absent:
            return []
        except FairleadError as e:
            return [trouble_of(e)]
        return []


def check_owned(found: Object, owner: Owner) -> None:
    """Raises ClusterRefused when `found` is not `owner`'s."""
    if not _owned(found, owner):
        what = f"{found['kind']} {found['metadata']['name']}"
        raise ClusterRefused(f"{what} exists and belongs to somebody else: rename one of the two")


def _owned(found: Object, owner: Owner) -> bool:
    return any(ref.get("uid") == owner.uid for ref in found["metadata"].get("ownerReferences", []))


def _content(found: Object) -> Object:
    """What is ours of it, or could be: without what servers and controllers write, the scale among it."""
    meta, spec = found["metadata"], {key: value for key, value in found.get("spec", {}).items() if key != "replicas"}
    return {"labels": meta.get("labels"), "annotations": meta.get("annotations"), "spec": spec}


def _differences(before: Any, after: Any, path: str = "") -> Iterator[str]:
    """Paths of what differs, of what is there in both as deep as they go."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in sorted(before.keys() | after.keys()):
            yield from _differences(before.get(key), after.get(key), f"{path}.{key}" if path else key)
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for number, (one, other) in enumerate(zip(before, after, strict=True)):
            yield from _differences(one, other, f"{path}[{number}]")
    elif before != after:
        yield path
