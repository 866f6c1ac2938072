"""Notices when the CRDs in the cluster are older than this operator: the API server then drops what they do not know.

Helm never changes an installed CRD. If nobody has upgraded it, a new field of a LinkGateway is dropped without an error
before the operator sees it: a template that is meant for a canary goes to all pods if `spec.rollout.canary` is unknown.
The operator compares its own fields with the schemas that the API server publishes, for which it needs no RBAC rule.
Each reconciler has one and calls it in every pass.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping

from fairlead.errors import FairleadError
from fairlead_operator.api import gateway_spec, link_operation
from fairlead_operator.api.conditions import Conditions
from fairlead_operator.api.gateway_spec import GROUP, VERSION, LinkGatewaySpec
from fairlead_operator.api.gateway_status import LinkGatewayStatus
from fairlead_operator.api.link_operation import LinkOperationSpec, LinkOperationStatus
from fairlead_operator.api.structural_schema import Schema, schema
from fairlead_operator.kube.cluster import Cluster

logger = logging.getLogger(__name__)

CHECK_PERIOD = 300.0
"""Seconds between two checks: a CRD changes a few times in a year."""
RECHECK_PERIOD = 30.0
"""Seconds until the next check after one that found a field missing. The published schemas may be some seconds older
than the CRDs, so only what two checks have found is reported."""
NAMED_FIELDS = 5
"""The maximum number of missing fields that the message names."""
FIELDS: Mapping[str, Schema] = {
    gateway_spec.KIND: {"properties": {"spec": schema(LinkGatewaySpec), "status": schema(LinkGatewayStatus)}},
    link_operation.KIND: {"properties": {"spec": schema(LinkOperationSpec), "status": schema(LinkOperationStatus)}},
}


class InstalledCrds:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._due = -math.inf
        self._found: tuple[str, ...] = ()
        """Fields that the last check found missing."""
        self._missing: tuple[str, ...] | None = None
        """Fields that are known to be missing; None while that is unknown."""

    async def check(self, conditions: Conditions, now: float) -> None:
        """Sets CrdsUpToDate, once it is known. `now` is a clock in seconds that only goes forward."""
        if now >= self._due:
            await self._compare()
            self._due = now + (RECHECK_PERIOD if self._found else CHECK_PERIOD)
        if self._missing is None:
            return
        if not self._missing:
            conditions.set("CrdsUpToDate", True, "UpToDate")
            return
        named = ", ".join(self._missing[:NAMED_FIELDS])
        more = f" and {len(self._missing) - NAMED_FIELDS} more" if len(self._missing) > NAMED_FIELDS else ""
        message = (
            f"the CRDs in the cluster are older than the operator and do not know {named}{more}: the API server drops "
            "these fields without an error (apply the CRDs of the operator's release, charts/fairlead/crds, and then "
            "the resources that use the fields)"
        )
        conditions.set("CrdsUpToDate", False, "FieldsMissing", message)

    async def _compare(self) -> None:
        try:
            served = await self._cluster.schemas(GROUP, VERSION)
        except FairleadError as e:
            logger.info("the installed CRDs cannot be compared with this operator: %s", e.message)
            return
        found = tuple(
            f"{kind}.{field}" for kind, own in FIELDS.items() for field in missing_fields(own, served.get(kind) or {})
        )
        if not found or found == self._found:
            self._missing = found
        self._found = found


def missing_fields(own: Schema, served: Mapping[str, object], path: str = "") -> Iterator[str]:
    """Paths of the fields that `own` has and `served` does not. For a missing object this is only its own path."""
    if served.get("x-kubernetes-preserve-unknown-fields"):
        return
    fields = served.get("properties")
    known: Mapping[str, Mapping[str, object]] = fields if isinstance(fields, Mapping) else {}
    for name, inner in own.get("properties", {}).items():
        where = f"{path}.{name}" if path else name
        if name in known:
            yield from missing_fields(inner, known[name], where)
        else:
            yield where
    for part in ("items", "additionalProperties"):
        inner, other = own.get(part), served.get(part)
        if isinstance(inner, dict) and isinstance(other, Mapping):
            yield from missing_fields(inner, other, f"{path}[]")
