"""Applies the child objects of one LinkGateway, repairs drift, and removes those that the spec no longer asks for.

Each reconciler has one. It never touches an object of the same name that belongs to another owner. It applies only the
operator's own fields, so what others add stays (the annotation of a restart, the scale). If others change the
operator's fields, it restores and reports them.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from fairlead.errors import FairleadError
from fairlead_operator.api.policy import PolicyViolation
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
from fairlead_operator.resources.children import OPTIONAL_KINDS
from fairlead_operator.resources.deployment import SECRETS_ANNOTATION
from fairlead_operator.resources.owner import Owner

logger = logging.getLogger(__name__)

REAPPLY_AFTER = 30.0
"""Seconds after which everything is applied again even if the spec is the same. A change by others lasts at most as
long. An object that others delete is created again in the next pass."""
REVISION_ANNOTATION = "deployment.kubernetes.io/revision"
"""Kubernetes' Deployment controller writes it, at any moment between reading a Deployment and applying it."""
REASONS = {
    AccessDenied: "AccessDenied",
    KindNotFound: "KindNotFound",
    NotFound: "NotFound",
    ApiServerUnavailable: "ApiServerUnavailable",
    Conflict: "Conflict",
    InvalidObject: "Invalid",
    PolicyViolation: "PolicyViolation",
}


@dataclass(frozen=True, slots=True)
class ApplyFailure:
    """Why an object could not be applied: a reason for programs, and a message for people."""

    reason: str
    message: str

    @classmethod
    def of(cls, error: FairleadError) -> ApplyFailure:
        return cls(REASONS.get(type(error), "Refused"), error.message)


class ChildApplier:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._applied = ""
        """The objects that were applied last, as JSON."""
        self._applied_at = float("-inf")
        self._failures: list[ApplyFailure] = []
        self.repaired: list[str] = []
        """What the last run restored after others had changed or deleted it, one sentence for each object."""

    async def apply(self, owner: Owner, wanted: Sequence[Object], now: float) -> list[ApplyFailure]:
        """Applies the child objects that are `wanted`. Returns what could not be applied, most important first; a
        failure of one child stops no other."""
        as_json = json.dumps(wanted, sort_keys=True)
        unchanged = as_json == self._applied and not self._failures
        recent = unchanged and now - self._applied_at < REAPPLY_AFTER
        failures, repaired = [], []
        for body in wanted:
            try:
                if recent and await self._exists(owner, body):
                    continue
                repaired += await self._apply(owner, body)
            except NotLeader:
                raise
            except FairleadError as e:
                failures.append(ApplyFailure.of(e))
        if not recent:
            failures += await self._remove_unwanted(owner, wanted)
            self._applied, self._applied_at = as_json, now
        self.repaired = repaired if unchanged else []  # with a new spec, the operator itself changed them
        self._failures = failures
        return failures

    async def _exists(self, owner: Owner, body: Object) -> bool:
        return await self._cluster.find(body["kind"], owner.namespace, body["metadata"]["name"]) is not None

    async def applied_checksum(self, owner: Owner) -> str:
        """The checksum of the Secrets in the existing Deployment. The pods keep it while the Secrets cannot be read."""
        found = await self._cluster.find("Deployment", owner.namespace, owner.name)
        if found is None or not _is_owned(found, owner):
            return ""
        annotations = found["spec"]["template"]["metadata"].get("annotations") or {}
        return str(annotations.get(SECRETS_ANNOTATION, ""))

    async def _apply(self, owner: Owner, body: Object) -> list[str]:
        """Returns what it changed, one sentence each."""
        kind, name = body["kind"], body["metadata"]["name"]
        found = await self._cluster.find(kind, owner.namespace, name)
        if found is not None:
            check_owned(found, owner)
        applied = await self._cluster.apply(body)
        if found is None:
            return [f"{kind} {name} had been deleted and was created again"]
        changes = list(_differences(_content(found), _content(applied)))
        return [f"{kind} {name} had been changed; restored: {', '.join(changes)}"] if changes else []

    async def _remove_unwanted(self, owner: Owner, wanted: Sequence[Object]) -> list[ApplyFailure]:
        kinds = {body["kind"] for body in wanted}
        removals = [await self._remove(owner, kind) for kind in OPTIONAL_KINDS if kind not in kinds]
        return [failure for failure in removals if failure is not None]

    async def _remove(self, owner: Owner, kind: str) -> ApplyFailure | None:
        try:
            found = await self._cluster.find(kind, owner.namespace, owner.name)
        except FairleadError as e:
            # The operator did not create an object that it may not read.
            logger.debug("%s/%s: %s: %s", owner.namespace, owner.name, kind, e.message)
            return None
        if found is None or not _is_owned(found, owner):
            return None
        try:
            await self._cluster.delete(kind, owner.namespace, owner.name, found["metadata"]["uid"])
        except NotLeader:
            raise
        except NotFound:
            return None
        except FairleadError as e:
            return ApplyFailure.of(e)
        return None


def check_owned(found: Object, owner: Owner) -> None:
    """Raises ApiServerRefused when `found` does not belong to `owner`."""
    if not _is_owned(found, owner):
        what = f"{found['kind']} {found['metadata']['name']}"
        raise ApiServerRefused(f"{what} already exists and belongs to another owner: rename one of the two")


def _is_owned(found: Object, owner: Owner) -> bool:
    return any(ref.get("uid") == owner.uid for ref in found["metadata"].get("ownerReferences", []))


def _content(found: Object) -> Object:
    """The part of an object that the operator writes or could write. It excludes what servers and controllers write,
    including the scale.
    """
    meta, spec = found["metadata"], {key: value for key, value in found.get("spec", {}).items() if key != "replicas"}
    annotations = {key: value for key, value in (meta.get("annotations") or {}).items() if key != REVISION_ANNOTATION}
    return {"labels": meta.get("labels"), "annotations": annotations, "spec": spec}


def _differences(before: Any, after: Any, path: str = "") -> Iterator[str]:
    """Paths of the values that differ, as deep as both have the same shape."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in sorted(before.keys() | after.keys()):
            yield from _differences(before.get(key), after.get(key), f"{path}.{key}" if path else key)
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for number, (one, other) in enumerate(zip(before, after, strict=True)):
            yield from _differences(one, other, f"{path}[{number}]")
    elif before != after:
        yield path
