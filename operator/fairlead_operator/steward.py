"""Looks after one LinkGateway: children, look, decision, scale, status; one pass at a time, every ten seconds.

Made by the watch for each LinkGateway while this replica leads, and forgotten when it does not: what a steward
remembers is then no longer true. A pass never raises for what is wrong with the resource, its Redis or this
operator's rights; it says so in a condition and does what can be done without.
"""

from __future__ import annotations

import base64
import binascii
import logging
from collections.abc import Sequence
from dataclasses import dataclass

from fairlead.errors import BusUnavailable, ConfigError, FairleadError
from fairlead_operator.children import Owner
from fairlead_operator.cluster import Cluster
from fairlead_operator.decide import Action, Decision, decide
from fairlead_operator.errors import Absent, Changed, ClusterAway, Denied, NotLeading
from fairlead_operator.load import FleetLoad, Row, State, costs
from fairlead_operator.look import fleet_load, is_rolling
from fairlead_operator.metrics import Metrics
from fairlead_operator.objects import Object
from fairlead_operator.rows import Rows
from fairlead_operator.scale import remove_one, scale, who_went, write_costs
from fairlead_operator.spec import LinkGatewaySpec, Mode, read
from fairlead_operator.state import LinkGatewayStatus
from fairlead_operator.status import (
    Conditions,
    changed,
    event,
    patch_of,
    read_status,
    report,
    scaling_condition,
    stamp,
)
from fairlead_operator.upkeep import Upkeep, trouble_of

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Removal:
    """A pod that should be the next to go, and who was there when that was decided."""

    victim: str
    pods: frozenset[str]


class Steward:
    def __init__(self, cluster: Cluster, owner: Owner, metrics: Metrics) -> None:
        self._cluster = cluster
        self._owner = owner
        self._metrics = metrics.of(owner.namespace, owner.name)
        self._upkeep = Upkeep(cluster)
        self._rows: Rows | None = None
        self._state = State()
        self._ready_since: dict[str, float] = {}
        self._removal: Removal | None = None
        self._events: list[Object] = []

    async def aclose(self) -> None:
        if self._rows is not None:
            await self._rows.aclose()

    async def tend(self, body: Object, others: Sequence[Object], now: float) -> None:
        """One pass over `body`, read a moment ago. Raises NotLeading and ClusterAway only."""
        before = read_status(body)
        wall = stamp()
        conditions = Conditions(before, int(body["metadata"].get("generation", 0)), wall)
        self._events = []
        try:
            status = await self._pass(body, others, before, conditions, now, wall)
        except (NotLeading, ClusterAway):
            raise
        except FairleadError as e:
            if not conditions.failed("Reconciled"):  # else that is the cause, and this what follows
                conditions.set("Reconciled", False, trouble_of(e).reason, e.message)
            conditions.set("Ready", False, "NotReconciled", e.message)
            status = LinkGatewayStatus(phase="Degraded")
        await self._tell(before, status, conditions, int(body["metadata"].get("generation", 0)), wall)

    async def _pass(
        self,
        body: Object,
        others: Sequence[Object],
        before: LinkGatewayStatus,
        conditions: Conditions,
        now: float,
        wall: str,
    ) -> LinkGatewayStatus:
        try:
            spec = read(body["spec"])
            _refuse_a_second(body, others)
        except ConfigError as e:
            reason = "RedisTaken" if "belongs to" in e.message else "SpecInvalid"
            conditions.set("Accepted", False, reason, e.message)
            conditions.set("Ready", False, "NotAccepted", e.message)
            return LinkGatewayStatus(phase="Invalid")
        conditions.set("Accepted", True, "Valid")
        await self._keep(spec, conditions, now)
        rows = await self._read_rows(spec, conditions)
        owner = self._owner
        deployment = await self._cluster.get("Deployment", owner.namespace, owner.name)
        selector = ",".join(f"{key}={value}" for key, value in owner.selector.items())
        pods = await self._cluster.items("Pod", owner.namespace, selector)
        load = fleet_load(deployment, pods, rows, self._ready_since, now)
        self._check_removal(load, wall)
        decision = decide(load, self._state, spec, now)
        self._state = decision.state
        self._metrics.saw(decision, load)
        scaling_condition(conditions, decision, spec)
        acted = await self._act(decision, load, deployment, pods, spec, conditions, wall)
        self._judge(conditions, decision, load, deployment, spec, rows)
        inputs = decision.inputs
        return LinkGatewayStatus(
            phase=_phase(conditions, decision, load, deployment),
            selector=selector,
            replicas=load.replicas,
            ready_replicas=inputs.ready,
            desired_replicas=decision.replicas,
            links=inputs.live,
            utilisation_percent=round(100 * inputs.live / (inputs.ready * inputs.capacity)) if inputs.ready else 0,
            skew=_skew(load),
            last_scale_time=wall if acted else before.last_scale_time,
            decision=report(decision, spec, wall),
        )

    # -- what must be there ----------------------------------------------------------------------------

    async def _keep(self, spec: LinkGatewaySpec, conditions: Conditions, now: float) -> None:
        troubles = await self._upkeep.run(self._owner, spec, now)
        if troubles:
            conditions.set("Reconciled", False, troubles[0].reason, "; ".join(one.message for one in troubles))
        else:
            conditions.set("Reconciled", True, "Applied")
        if spec.ingress is None or not spec.ingress.enabled or spec.ingress.class_name is None:
            return
        name = spec.ingress.class_name
        try:
            found = await self._cluster.find("IngressClass", "", name)
        except Denied as e:
            conditions.set("IngressClassFound", None, "RightMissing", e.message)
            return
        if found is None:
            conditions.set("IngressClassFound", False, "Missing", f"there is no IngressClass {name}: no agent gets in")
        else:
            conditions.set("IngressClassFound", True, "Found")

    async def _read_rows(self, spec: LinkGatewaySpec, conditions: Conditions) -> dict[str, Row] | None:
        """The nodes' rows, None when there are none to be had; sets the conditions that say why."""
        try:
            url = await self._secrets(spec)
            conditions.set("SecretsFound", True, "Found")
        except ConfigError as e:
            conditions.set("SecretsFound", False, "Missing", e.message)
            conditions.set("RedisReachable", False, "SecretMissing", e.message)
            return None
        except Denied as e:
            conditions.set("SecretsFound", None, "RightMissing", e.message)
            conditions.set("RedisReachable", False, "RightMissing", e.message)
            return None
        try:
            if self._rows is None or self._rows.url != url:
                if self._rows is not None:
                    await self._rows.aclose()
                self._rows = None
                self._rows = Rows(url)
            rows = await self._rows.read()
        except BusUnavailable as e:
            conditions.set("RedisReachable", False, "Unreachable", e.message)
        except ConfigError:
            # Not the reader's words: they may quote what stands before the host.
            text = "the address of Redis is none: redis://host:6379, rediss://… or unix://…"
            conditions.set("RedisReachable", False, "Unusable", text)
        except FairleadError as e:
            conditions.set("RedisReachable", False, "Unusable", e.message)
        else:
            conditions.set("RedisReachable", True, "Answers")
            return rows
        return None

    async def _secrets(self, spec: LinkGatewaySpec) -> str:
        """The address of Redis; ConfigError names the Secret or the key that is missing."""
        tokens = spec.tokens.secret_ref
        await self._keys(tokens.name, tokens.agent_key, tokens.platform_key)
        if spec.redis.secret_ref is None:
            return spec.redis.url or ""
        ref = spec.redis.secret_ref
        return (await self._keys(ref.name, ref.key))[0]

    async def _keys(self, name: str, *keys: str) -> list[str]:
        found = await self._cluster.find("Secret", self._owner.namespace, name)
        if found is None:
            raise ConfigError(f"there is no Secret {name} in {self._owner.namespace}")
        data = found.get("data") or {}
        missing = [key for key in keys if not data.get(key)]
        if missing:
            raise ConfigError(f"the Secret {name} has no key {' and no key '.join(missing)}")
        try:
            return [base64.b64decode(data[key]).decode().strip() for key in keys]
        except (binascii.Error, UnicodeDecodeError) as e:
            raise ConfigError(f"the Secret {name} holds something that is not text") from e

    # -- acting ----------------------------------------------------------------------------------------

    async def _act(
        self,
        decision: Decision,
        load: FleetLoad,
        deployment: Object,
        pods: Sequence[Object],
        spec: LinkGatewaySpec,
        conditions: Conditions,
        wall: str,
    ) -> bool:
        """Whether the scale was written."""
        owner, mode = self._owner, spec.scaling.mode
        if mode not in (Mode.AUTO, Mode.EXTERNAL):
            return False
        try:
            if decision.action is Action.UP:
                await scale(self._cluster, owner.namespace, owner.name, load.replicas, decision.replicas)
            elif decision.action is Action.DOWN:
                self._removal = Removal(decision.victim, frozenset(pod.name for pod in load.pods if not pod.leaving))
                dear = costs(load, decision.victim)
                await remove_one(self._cluster, owner.namespace, owner.name, pods, dear, load.replicas)
            else:
                if mode is Mode.EXTERNAL and load.readable:
                    await write_costs(self._cluster, owner.namespace, pods, costs(load), near=True)
                return False
        except (Changed, Absent) as e:
            logger.info("%s/%s: %s", owner.namespace, owner.name, e.message)
            self._removal = None
            return False
        except Denied as e:
            self._removal = None
            conditions.set("ScalingActive", False, "RightMissing", e.message)
            return False
        words = f"{load.replicas} → {decision.replicas}: {decision.reason}"
        if decision.victim:
            words += f"; {decision.victim} goes, the cheapest"
        logger.info("%s/%s: %s", owner.namespace, owner.name, words)
        reason = "ScaledUp" if decision.action is Action.UP else "ScaledDown"
        self._events.append(event(owner, "Normal", reason, words, wall))
        self._metrics.acted(decision)
        return True

    def _check_removal(self, load: FleetLoad, wall: str) -> None:
        """Once somebody went: was it the pod that was meant?"""
        if self._removal is None:
            return
        went = who_went(self._removal.pods, load)
        if not went:
            return
        if self._removal.victim not in went:
            words = f"{self._removal.victim} was to go, {', '.join(sorted(went))} went"
            logger.warning("%s/%s: %s", self._owner.namespace, self._owner.name, words)
            self._events.append(event(self._owner, "Warning", "WrongPodRemoved", words, wall))
            self._metrics.wrong_removals.inc()
        self._removal = None

    # -- telling ---------------------------------------------------------------------------------------

    def _judge(
        self,
        conditions: Conditions,
        decision: Decision,
        load: FleetLoad,
        deployment: Object,
        spec: LinkGatewaySpec,
        rows: dict[str, Row] | None,
    ) -> None:
        inputs = decision.inputs
        if rows is not None and inputs.capacity < spec.capacity:
            few = f"pods take {inputs.capacity} links of the {spec.capacity} asked for: their open files are limited"
            conditions.set("CapacityAsAsked", False, "FileLimit", few)
        elif inputs.fresh:
            conditions.set("CapacityAsAsked", True, "AsAsked")
        rolling = is_rolling(deployment)
        if rolling:
            conditions.set("Progressing", True, "Rollout", "pods of two templates are there")
        elif load.replicas != inputs.ready or inputs.leaving:
            there = f"{inputs.ready} of {load.replicas} pods are ready, {inputs.leaving} are leaving"
            conditions.set("Progressing", True, "Scaling", there)
        else:
            conditions.set("Progressing", False, "Settled")
        least = min(spec.replicas.min, load.replicas)
        if inputs.ready >= max(1, least):
            conditions.set("Ready", True, "Serving", f"{inputs.ready} pods are ready")
        else:
            conditions.set("Ready", False, "PodsNotReady", f"{inputs.ready} of {max(1, least)} pods are ready")

    async def _tell(
        self,
        before: LinkGatewayStatus,
        status: LinkGatewayStatus,
        conditions: Conditions,
        generation: int,
        wall: str,
    ) -> None:
        owner = self._owner
        told = LinkGatewayStatus(
            **{name: getattr(status, name) for name in status.__struct_fields__}
            | {"observed_generation": generation, "conditions": conditions.all()}
        )
        for one in conditions.fallen():
            logger.warning("%s/%s: %s: %s %s", owner.namespace, owner.name, one.type, one.reason, one.message)
            self._events.append(event(owner, "Warning", one.reason, f"{one.type}: {one.message}", wall))
        self._metrics.conditions(told.conditions)
        try:
            if changed(before, told):
                patch = dict(patch_of(told))
                await self._cluster.patch("LinkGateway", owner.namespace, owner.name, patch, "status")
            for told_event in self._events:
                await self._cluster.create(told_event)
        except (Absent, Changed):
            pass  # deleted meanwhile
        except Denied as e:
            logger.warning("%s/%s: %s", owner.namespace, owner.name, e.message)


def _refuse_a_second(body: Object, others: Sequence[Object]) -> None:
    """Two fleets in one Redis would count and serve each other's agents: the older LinkGateway has it."""

    def age(one: Object) -> tuple[str, str]:
        return one["metadata"].get("creationTimestamp", ""), one["metadata"]["uid"]

    redis = body["spec"].get("redis")
    for other in sorted(others, key=age):
        if age(other) < age(body) and other.get("spec", {}).get("redis") == redis:
            name = other["metadata"]["name"]
            raise ConfigError(f"this Redis belongs to the LinkGateway {name} of this namespace: give each its own")


def _phase(conditions: Conditions, decision: Decision, load: FleetLoad, deployment: Object) -> str:
    if not conditions.holds("Reconciled"):
        return "Degraded"
    if is_rolling(deployment):
        return "RollingOut"
    if decision.action is Action.HOLD:
        return "Holding"
    if decision.inputs.leaving:
        return "Draining"
    if decision.replicas > decision.inputs.ready:
        return "Scaling"
    return "Ready" if conditions.holds("Ready") else "Pending"


def _skew(load: FleetLoad) -> str:
    counts = [pod.row.connections for pod in load.pods if pod.row is not None and pod.fresh and not pod.leaving]
    mean = sum(counts) / len(counts) if counts else 0
    return f"{max(counts) / mean:.2f}" if mean else ""
