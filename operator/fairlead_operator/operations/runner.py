"""Carries out LinkOperations: one at a time for each LinkGateway, the running one first, then by age.

The reconciler calls it in every pass; the controller calls it for operations whose LinkGateway does not exist. The
runner writes the status that `next_step` returns before it acts, so that the next leader knows what was begun. It
remembers nothing. A problem of an operation is reported by that operation and is no problem of its LinkGateway.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from msgspec import structs

from fairlead.errors import ConfigError, FairleadError
from fairlead_operator.api.conditions import Conditions, patch_of
from fairlead_operator.api.gateway_spec import GROUP, LinkGatewaySpec, Mode
from fairlead_operator.api.link_operation import ENDED, KIND, Operation, Phase, read_operation, status_of
from fairlead_operator.autoscaler.history import FleetObservation
from fairlead_operator.kube.cluster import Cluster
from fairlead_operator.kube.errors import (
    AccessDenied,
    ApiServerUnavailable,
    Conflict,
    EvictionBlocked,
    NotFound,
    NotLeader,
)
from fairlead_operator.kube.events import event, timestamp
from fairlead_operator.kube.objects import Object, ObjectReference
from fairlead_operator.metrics import Metrics
from fairlead_operator.operations.step import OperationPod, Step, StepAction, StepContext, fail, next_step
from fairlead_operator.resources.owner import POD_LABEL, Owner

logger = logging.getLogger(__name__)

RESTART_ANNOTATION = f"{GROUP}/restart"
"""Annotation of the pod template, and by it of its pods: the uid of the Restart that made them."""
AT_ONCE = 20
"""Operations of one LinkGateway that are looked at in one pass: the others wait behind these anyway."""


def in_turn(operations: Sequence[Object]) -> list[Object]:
    """Those that have not ended: what runs, then the oldest."""

    def turn(body: Object) -> tuple[bool, str, str]:
        meta = body["metadata"]
        return phase_of(body) != Phase.RUNNING, meta.get("creationTimestamp", ""), meta["uid"]

    return sorted((body for body in operations if phase_of(body) not in ENDED), key=turn)[:AT_ONCE]


def phase_of(body: Object) -> str:
    return str((body.get("status") or {}).get("phase") or "")


def gateway_of(body: Object) -> str:
    return str(body["spec"]["gateway"]["name"])


class OperationRunner:
    def __init__(self, cluster: Cluster, metrics: Metrics) -> None:
        self._cluster = cluster
        self._metrics = metrics

    async def run(
        self,
        gateway: Owner,
        spec: LinkGatewaySpec,
        operations: Sequence[Object],
        deployment: Object,
        pods: Sequence[Object],
        load: FleetObservation,
    ) -> str:
        """A step of each, in their turn; the name of the one that is under way, "" for none."""
        sight = StepContext(
            gateway=gateway.name,
            replicas=load.replicas,
            pods=_seen(pods, load),
            mark=_mark(deployment["spec"]["template"]),
            paused=spec.scaling.mode is Mode.PAUSED,
        )
        ahead = running = ""
        for body in in_turn(operations):
            phase = await self._phase_after(self._step(body, gateway, sight, ahead), body)
            if phase == Phase.RUNNING:
                running = body["metadata"]["name"]
            if phase not in ENDED:
                ahead = ahead or body["metadata"]["name"]
        return running

    async def refuse(self, operations: Sequence[Object], reason: str, message: str) -> None:
        """They fail, and say why."""
        for body in in_turn(operations):
            await self._phase_after(self._tell(body, fail(status_of(body), reason, message, _now())), body)

    async def _phase_after(self, step: Awaitable[Object], body: Object) -> str:
        try:
            return phase_of(await step)
        except NotLeader:
            raise
        except NotFound:
            return Phase.FAILED  # deleted meanwhile: it stands in nobody's way
        except Conflict:
            pass  # written by another meanwhile: read anew at the next look
        except FairleadError as e:
            meta = body["metadata"]
            logger.warning(
                "%s/%s: the operation waits for the next look: %s", meta["namespace"], meta["name"], e.message
            )
        return phase_of(body)

    async def _step(self, body: Object, gateway: Owner, sight: StepContext, ahead: str) -> Object:
        now = _now()
        try:
            operation = read_operation(body)
            body = await self._own(body, gateway)
            sight = await self._look_for(operation, sight, gateway.namespace)
        except ConfigError as e:
            return await self._tell(body, fail(status_of(body), "SpecInvalid", e.message, now))
        except AccessDenied as e:
            return await self._tell(body, fail(status_of(body), "RightMissing", e.message, now))
        step = next_step(operation, sight, ahead, now)
        if step.act is StepAction.NOTHING:
            return await self._tell(body, step)
        if operation.status.phase is not Phase.RUNNING:
            body = await self._tell(body, step)  # what is begun is known before it is done
        return await self._tell(body, await self._act(step, operation, gateway, now))

    async def _own(self, body: Object, gateway: Owner) -> Object:
        """It goes with its LinkGateway."""
        meta = body["metadata"]
        owners = list(meta.get("ownerReferences") or [])
        if any(one.get("uid") == gateway.uid for one in owners):
            return body
        said = {"resourceVersion": meta["resourceVersion"], "ownerReferences": [*owners, gateway.reference]}
        return await self._cluster.patch(KIND, meta["namespace"], meta["name"], {"metadata": said})

    async def _look_for(self, operation: Operation, sight: StepContext, namespace: str) -> StepContext:
        """Whose pod it is that is not of the fleet, when it has not begun."""
        pod = operation.spec.pod
        if pod is None or operation.status.phase is Phase.RUNNING or any(one.name == pod for one in sight.pods):
            return sight
        found = await self._cluster.items("Pod", namespace, fields=f"metadata.name={pod}")
        fleets = [(one["metadata"].get("labels") or {}).get(POD_LABEL) for one in found]
        return replace(sight, stranger=any(fleet != sight.gateway for fleet in fleets))

    async def _act(self, step: Step, operation: Operation, gateway: Owner, now: datetime) -> Step:
        status = step.status
        try:
            if step.act is StepAction.EVICT and operation.spec.pod is not None:
                await self._cluster.evict(gateway.namespace, operation.spec.pod, status.pod_uid)
            else:
                body = {"spec": {"template": {"metadata": {"annotations": {RESTART_ANNOTATION: operation.uid}}}}}
                await self._cluster.patch("Deployment", gateway.namespace, gateway.name, body)
        except (EvictionBlocked, ApiServerUnavailable) as e:
            # ApiServerUnavailable too: two budgets over one pod are answered by 500.
            words = f"{operation.spec.pod or 'the Deployment'} cannot go yet: {e.message}"
            return Step(structs.replace(status, message=words), "Blocked")
        except AccessDenied as e:
            return fail(status, "RightMissing", e.message, now)
        except (NotFound, Conflict):
            pass  # gone, or another one bears its name: the next look tells
        return step

    async def _tell(self, body: Object, step: Step) -> Object:
        """Write the status if it says anything new, and tell of a turn. The resource as it stands then."""
        meta, before, status = body["metadata"], status_of(body), step.status
        now = timestamp()
        conditions = Conditions(before.conditions, int(meta.get("generation", 0)), now)
        failed = status.phase is Phase.FAILED
        conditions.set("Complete", status.phase is Phase.SUCCEEDED, step.reason, status.message)
        conditions.set("Failed", failed, step.reason, status.message if failed else "")
        told = structs.replace(status, observed_generation=int(meta.get("generation", 0)), conditions=conditions.all())
        if told == before:
            return body
        patch = {"metadata": {"resourceVersion": meta["resourceVersion"]}, **patch_of(told)}
        written = await self._cluster.patch(KIND, meta["namespace"], meta["name"], patch, "status")
        if status.phase in ENDED:
            self._metrics.operations.labels(str(body["spec"].get("type")), str(status.phase)).inc()
        if [one.reason for one in before.conditions] != [one.reason for one in told.conditions]:
            logger.info("%s/%s: %s: %s", meta["namespace"], meta["name"], step.reason, status.message)
            about = ObjectReference(KIND, meta["name"], meta["namespace"], meta["uid"])
            kind = "Warning" if failed or step.reason == "Blocked" else "Normal"
            await self._cluster.create(event(about, kind, step.reason, status.message, now))
        return written


def _seen(pods: Sequence[Object], load: FleetObservation) -> tuple[OperationPod, ...]:
    """Those of `load`, with what only their objects tell."""
    objects = {pod["metadata"]["name"]: pod for pod in pods}
    seen = []
    for pod in load.pods:
        links = (pod.row.connections if pod.row is not None else 0) if load.readable else None
        one = objects[pod.name]
        seen.append(OperationPod(pod.name, one["metadata"]["uid"], pod.ready, pod.leaving, _mark(one), links))
    return tuple(seen)


def _mark(templated: Object) -> str:
    """Of a pod, or of a template."""
    return str(((templated.get("metadata") or {}).get("annotations") or {}).get(RESTART_ANNOTATION, ""))


def _now() -> datetime:
    return datetime.now(UTC)
