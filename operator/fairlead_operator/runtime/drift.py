"""Keeps the children of one LinkGateway as they should be: applies them, repairs drift, removes what is not asked for.

One for each LinkGateway, run by its reconciler. An object of the same name that belongs to somebody else is never
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
from fairlead_operator.api.gateway_spec import LinkGatewaySpec
from fairlead_operator.kube.cluster import Cluster
from fairlead_operator.kube.errors import (
    AccessDenied,
    ApiServerRefused,
    ApiServerUnavailable,
    Conflict,
    InvalidObject,
    KindNotFound,
    NotFound,
    NotLeader,
)
from fairlead_operator.kube.objects import Object
from fairlead_operator.resources.children import OPTIONAL, children
from fairlead_operator.resources.deployment import SECRETS
from fairlead_operator.resources.owner import Owner

logger = logging.getLogger(__name__)

AGAIN = 30.0
"""Seconds after which everything is applied anew though nothing was asked for: how long a changed field lives. What was
deleted is made again at the next look."""


@dataclass(frozen=True, slots=True)
class ApplyFailure:
    """Why something could not be kept: a reason for programs and a message for people."""

    reason: str
    message: str


def failure_of(error: FairleadError) -> ApplyFailure:
    reasons = {
        AccessDenied: "RightMissing",
        KindNotFound: "KindMissing",
        NotFound: "ObjectMissing",
        ApiServerUnavailable: "ApiServerAway",
        Conflict: "Changed",
        InvalidObject: "Invalid",
    }
    return ApplyFailure(reasons.get(type(error), "Refused"), error.message)


class DriftRepair:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._applied = ""
        self._applied_at = float("-inf")
        self._failures: list[ApplyFailure] = []
        self.repaired: list[str] = []
        """What the last run put back that another had changed or deleted."""

    async def run(self, owner: Owner, spec: LinkGatewaySpec, now: float, secrets: str = "") -> list[ApplyFailure]:
        """What could not be done, most important first; one child's problem keeps no other from being applied.

        `secrets` as in `children`. When it is "" because they cannot be read, the pods keep what they were made with.
        """
        wanted = children(owner, spec, secrets or await self._secrets_of(owner))
        asked = json.dumps(wanted, sort_keys=True)
        self.repaired = []
        same = asked == self._applied and not self._failures
        failures, repaired = [], []
        for body in wanted:
            try:
                if same and now - self._applied_at < AGAIN and await self._is_there(owner, body):
                    continue
                repaired += await self._apply(owner, body)
            except NotLeader:
                raise
            except FairleadError as e:
                failures.append(failure_of(e))
        if same and now - self._applied_at < AGAIN:
            self.repaired, self._failures = repaired, failures
            return failures
        for kind in OPTIONAL:
            if all(body["kind"] != kind for body in wanted):
                failures += await self._remove(owner, kind)
        if same:
            self.repaired = repaired  # else it is us who has changed them
        self._applied, self._applied_at, self._failures = asked, now, failures
        return failures

    async def _is_there(self, owner: Owner, body: Object) -> bool:
        """At each look, so that what somebody deletes is missed for no longer than that."""
        return await self._cluster.find(body["kind"], owner.namespace, body["metadata"]["name"]) is not None

    async def _secrets_of(self, owner: Owner) -> str:
        """The checksum that stands in the Deployment."""
        found = await self._cluster.find("Deployment", owner.namespace, owner.name)
        if found is None or not _owned(found, owner):
            return ""
        annotations = found["spec"]["template"]["metadata"].get("annotations") or {}
        return str(annotations.get(SECRETS, ""))

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

    async def _remove(self, owner: Owner, kind: str) -> list[ApplyFailure]:
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
        except NotLeader:
            raise
        except NotFound:
            return []
        except FairleadError as e:
            return [failure_of(e)]
        return []


def check_owned(found: Object, owner: Owner) -> None:
    """Raises ApiServerRefused when `found` is not `owner`'s."""
    if not _owned(found, owner):
        what = f"{found['kind']} {found['metadata']['name']}"
        raise ApiServerRefused(f"{what} exists and belongs to somebody else: rename one of the two")


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
