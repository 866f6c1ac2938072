"""Carries out LinkOperations: one at a time for each LinkGateway, the running one first, then by age.

The reconciler calls `run` in every pass; the controller calls `refuse` for operations whose LinkGateway does not exist.
The runner writes the status that `next_step` returns before it acts, so that the next leader knows what has begun. It
keeps no state. A problem of an operation is reported in its own status and does not affect its LinkGateway.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from msgspec import structs

from fairlead.errors import ConfigError, FairleadError
from fairlead.fleet.directives.disconnect import Disconnect
from fairlead_operator.api.conditions import Conditions, status_patch
from fairlead_operator.api.gateway_spec import LinkGatewaySpec, Mode
from fairlead_operator.api.link_operation import (
    ENDED,
    KIND,
    RESTART_ANNOTATION,
    Operation,
    Phase,
    Type,
    read_operation,
    read_operation_status,
)
from fairlead_operator.autoscaler.observation import FleetObservation, restart_of
from fairlead_operator.autoscaler.rebalance import RebalancePlan
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
from fairlead_operator.operations.disconnect_progress import DisconnectProgress
from fairlead_operator.operations.operation_queue import MOST_PER_PASS, in_order, is_expired, phase_of
from fairlead_operator.operations.step import Step, StepAction, StepContext, fail, next_step
from fairlead_operator.resources.owner import POD_LABEL, Owner

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RunningOperation:
    """The running operation of a LinkGateway; its fields are empty if there is none."""

    name: str = ""
    uid: str = ""
    type: str = ""

    disconnect: Disconnect | None = None
    """What a Disconnect asks of the nodes."""

    @property
    def rebalance(self) -> str:
        """The uid of a Rebalance, "" for another type."""
        return self.uid if self.type == Type.REBALANCE else ""


def _disconnect_of(body: Object) -> Disconnect | None:
    """What a LinkOperation asks of the nodes; None for another type, and for one that cannot be read."""
    try:
        operation = read_operation(body)
    except ConfigError:
        return None
    wanted = operation.spec.disconnect
    if wanted is None:
        return None
    return Disconnect(
        operation.uid,
        wanted.selector or "",
        tuple(wanted.agents or ()),
        float(wanted.rate_per_second),
        None if wanted.retry_after_seconds is None else wanted.retry_after_seconds * 1000,
        operation.spec.reason,
    )


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
        fleet: FleetObservation,
        rebalance: RebalancePlan | None = None,
        disconnect: DisconnectProgress | None = None,
    ) -> RunningOperation:
        """One step of each operation in order; returns the one that is running. `rebalance` is what the last pass
        planned, `disconnect` how far the nodes are."""
        context = StepContext(
            gateway=gateway.name,
            fleet=fleet,
            template_restart=restart_of(deployment["spec"]["template"]),
            paused=spec.scaling.mode is Mode.PAUSED,
            rebalance=rebalance,
            disconnect=disconnect,
        )
        ahead, running = "", RunningOperation()
        for body in in_order(operations):
            phase = await self._phase_after(self._step(body, gateway, context, ahead), body)
            if phase == Phase.RUNNING:
                meta = body["metadata"]
                kind = str(body["spec"].get("type"))
                running = RunningOperation(meta["name"], meta["uid"], kind, _disconnect_of(body))
            if phase not in ENDED:
                ahead = ahead or body["metadata"]["name"]
        return running

    async def refuse(self, operations: Sequence[Object], reason: str, message: str) -> None:
        """Marks all operations that have not ended as failed."""
        for body in in_order(operations):
            step = fail(read_operation_status(body), reason, message, _now())
            await self._phase_after(self._write_status(body, step), body)

    async def delete_expired(self, operations: Sequence[Object]) -> None:
        """Deletes those that ended longer ago than they asked to be kept."""
        now = _now()
        for body in [body for body in operations if is_expired(body, now)][:MOST_PER_PASS]:
            meta = body["metadata"]
            try:
                await self._cluster.delete(KIND, meta["namespace"], meta["name"], meta["uid"])
            except (NotFound, Conflict):
                pass  # it was deleted, and another one may have its name
            except AccessDenied as e:
                logger.warning(
                    "%s/%s: expired, but could not be deleted: %s", meta["namespace"], meta["name"], e.message
                )

    async def _phase_after(self, step: Awaitable[Object], body: Object) -> str:
        try:
            return phase_of(await step)
        except NotLeader:
            raise
        except NotFound:
            return Phase.FAILED  # it was deleted meanwhile, so no other operation waits for it
        except Conflict:
            pass  # somebody else has written it: the next pass reads it again
        except FairleadError as e:
            meta = body["metadata"]
            logger.warning("%s/%s: retrying in the next pass: %s", meta["namespace"], meta["name"], e.message)
        return phase_of(body)

    async def _step(self, body: Object, gateway: Owner, context: StepContext, ahead: str) -> Object:
        now = _now()
        try:
            operation = read_operation(body)
            body = await self._own(body, gateway)
            context = await self._check_foreign_pod(operation, context, gateway.namespace)
        except ConfigError as e:
            return await self._write_status(body, fail(read_operation_status(body), "SpecInvalid", e.message, now))
        except AccessDenied as e:
            return await self._write_status(body, fail(read_operation_status(body), "AccessDenied", e.message, now))
        step = next_step(operation, context, ahead, now)
        if step.action is StepAction.NOTHING:
            return await self._write_status(body, step)
        if operation.status.phase is not Phase.RUNNING:
            body = await self._write_status(body, step)  # so that a new leader knows what has begun
        return await self._write_status(body, await self._act(step, operation, gateway, now))

    async def _own(self, body: Object, gateway: Owner) -> Object:
        """Adds the LinkGateway to the operation's owners, so that the operation is deleted with it."""
        meta = body["metadata"]
        owners = list(meta.get("ownerReferences") or [])
        if any(one.get("uid") == gateway.uid for one in owners):
            return body
        patch = {"resourceVersion": meta["resourceVersion"], "ownerReferences": [*owners, gateway.reference]}
        return await self._cluster.patch(KIND, meta["namespace"], meta["name"], {"metadata": patch})

    async def _check_foreign_pod(self, operation: Operation, context: StepContext, namespace: str) -> StepContext:
        """Looks up the pod of a Drain that has not begun, when it is not among the fleet's."""
        pod = operation.spec.pod
        if pod is None or operation.status.phase is Phase.RUNNING or any(one.name == pod for one in context.fleet.pods):
            return context
        found = await self._cluster.items("Pod", namespace, fields=f"metadata.name={pod}")
        owners = [(one["metadata"].get("labels") or {}).get(POD_LABEL) for one in found]
        return replace(context, pod_is_foreign=any(owner != context.gateway for owner in owners))

    async def _act(self, step: Step, operation: Operation, gateway: Owner, now: datetime) -> Step:
        status = step.status
        try:
            if step.action is StepAction.EVICT and operation.spec.pod is not None:
                await self._cluster.evict(gateway.namespace, operation.spec.pod, status.pod_uid)
            else:
                body = {"spec": {"template": {"metadata": {"annotations": {RESTART_ANNOTATION: operation.uid}}}}}
                await self._cluster.patch("Deployment", gateway.namespace, gateway.name, body)
        except (EvictionBlocked, ApiServerUnavailable) as e:
            # This includes ApiServerUnavailable, because the API server answers 500 if two disruption budgets cover one
            # pod.
            message = f"{operation.spec.pod or 'the Deployment'} cannot be replaced yet: {e.message}"
            return Step(structs.replace(status, message=message), "Blocked")
        except AccessDenied as e:
            return fail(status, "AccessDenied", e.message, now)
        except (NotFound, Conflict):
            pass  # it is gone, or another pod has its name: the next pass finds out
        return step

    async def _write_status(self, body: Object, step: Step) -> Object:
        """Writes the status if it says anything new, and an Event when the reason changes. Returns the new resource."""
        meta, before, status = body["metadata"], read_operation_status(body), step.status
        generation, now = int(meta.get("generation", 0)), timestamp()
        failed = status.phase is Phase.FAILED
        conditions = Conditions(before.conditions, generation, now)
        conditions.set("Complete", status.phase is Phase.SUCCEEDED, step.reason, status.message)
        conditions.set("Failed", failed, step.reason, status.message if failed else "")
        after = structs.replace(status, observed_generation=generation, conditions=conditions.all())
        if after == before:
            return body
        patch = {"metadata": {"resourceVersion": meta["resourceVersion"]}, **status_patch(after)}
        written = await self._cluster.patch(KIND, meta["namespace"], meta["name"], patch, "status")
        if status.phase in ENDED:
            self._metrics.operations.labels(str(body["spec"].get("type")), str(status.phase)).inc()
        if [one.reason for one in before.conditions] != [one.reason for one in after.conditions]:
            logger.info("%s/%s: %s: %s", meta["namespace"], meta["name"], step.reason, status.message)
            about = ObjectReference(KIND, meta["name"], meta["namespace"], meta["uid"])
            severity = "Warning" if failed or step.reason == "Blocked" else "Normal"
            await self._cluster.create(event(about, severity, step.reason, status.message, now))
        return written


def _now() -> datetime:
    return datetime.now(UTC)
