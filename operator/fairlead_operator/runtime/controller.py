"""Reconciles every LinkGateway every ten seconds, and at once when one changes, while this replica leads.

Run by `process`. It owns the reconcilers: it creates one when a LinkGateway appears, and closes it when the LinkGateway
is gone or the lease is lost. Passes run concurrently, each with a deadline, so that one that hangs does not delay the
others.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import partial

from fairlead.errors import FairleadError
from fairlead_operator.api.gateway_spec import KIND
from fairlead_operator.api.policy import Policies
from fairlead_operator.kube.cluster import Cluster
from fairlead_operator.kube.errors import AccessDenied
from fairlead_operator.kube.objects import Object
from fairlead_operator.metrics import Metrics
from fairlead_operator.operations.operation_queue import gateway_of, in_order, is_expired
from fairlead_operator.operations.runner import OperationRunner
from fairlead_operator.resources.owner import Owner
from fairlead_operator.runtime.informer import OPERATION, Generation, Informer, Key, generation_of
from fairlead_operator.runtime.leader_election import LeaderElector
from fairlead_operator.runtime.reconciler import Reconciler

logger = logging.getLogger(__name__)

PERIOD = 10.0
"""Seconds between two passes over an unchanged LinkGateway."""
LEAST_PERIOD = 1.0
"""Seconds between two rounds, however often somebody edits."""
PASS_TIMEOUT = 60.0
"""The deadline of one pass in seconds. The first pass makes some thirty calls, each with a timeout of its own; this one
is for all of them."""
PARALLEL_PASSES = 8


class Controller:
    def __init__(
        self,
        cluster: Cluster,
        elector: LeaderElector,
        namespaces: tuple[str, ...],
        policies: Policies,
        metrics: Metrics,
    ) -> None:
        self._cluster = cluster
        self._policies = policies
        self._elector = elector
        self._metrics = metrics
        metrics.leader.set_function(lambda: float(elector.leads))
        self._woken = asyncio.Event()
        self._reconcilers: dict[Key, tuple[str, Reconciler]] = {}
        """The reconcilers by LinkGateway, each with its uid."""
        self._slots = asyncio.Semaphore(PARALLEL_PASSES)
        self._passes: dict[Key, asyncio.Task[None]] = {}
        self._generations: dict[Key, frozenset[Generation]] = {}
        """For each running pass: the generations of its resources when it began."""
        self._changed_meanwhile: set[Key] = set()
        """LinkGateways that changed while their pass was running."""
        self.informer = Informer(namespaces, self.wake)
        self.round_began_at = time.monotonic()

    def wake(self) -> None:
        """Begins the next round now."""
        self._woken.set()

    async def run_forever(self) -> None:
        try:
            while True:
                self.round_began_at = time.monotonic()
                self._woken.clear()
                await self._round()
                await asyncio.sleep(LEAST_PERIOD)
                try:
                    await asyncio.wait_for(self._woken.wait(), PERIOD - LEAST_PERIOD)
                except TimeoutError:
                    pass
        finally:
            for task in self._passes.values():
                task.cancel()
            await asyncio.gather(*self._passes.values(), return_exceptions=True)
            await self._close_all_but(set())

    async def _round(self) -> None:
        """Begins a pass over each LinkGateway that has none running."""
        leads = self._elector.leads
        gateways = self.informer.all() if leads else {}
        operations = self.informer.all(OPERATION) if leads else {}
        self._metrics.gateways.set(len(gateways))
        await self._close_all_but(set(gateways))
        of_gateway: dict[Key, list[Object]] = {key: [] for key in gateways}
        for (namespace, _), body in operations.items():
            of_gateway.setdefault((namespace, gateway_of(body)), []).append(body)
        now = datetime.now(UTC)
        for key, found in of_gateway.items():
            waiting = [*in_order(found), *(body for body in found if is_expired(body, now))]
            generations = frozenset(map(generation_of, [*waiting, gateways[key]] if key in gateways else waiting))
            if key in self._passes:
                if generations - self._generations[key]:
                    self._changed_meanwhile.add(key)
            elif generations:
                self._generations[key] = generations
                self._passes[key] = asyncio.create_task(self._pass(key, gateways, waiting), name=f"{key}")
                self._passes[key].add_done_callback(partial(self._pass_ended, key))

    def _pass_ended(self, key: Key, _: asyncio.Task[None]) -> None:
        del self._passes[key], self._generations[key]
        if key in self._changed_meanwhile:
            self._changed_meanwhile.discard(key)
            self.wake()

    async def _pass(self, key: Key, gateways: Mapping[Key, Object], operations: Sequence[Object]) -> None:
        namespace, name = key
        async with self._slots:
            try:
                with self._metrics.passes.time():
                    async with asyncio.timeout(PASS_TIMEOUT):
                        found = await self._read_again(operations)
                        await OperationRunner(self._cluster, self._metrics).delete_expired(found)
                        await self._reconcile(key, gateways, found)
            except FairleadError as e:
                self._metrics.failures.labels(e.code).inc()
                logger.warning("%s/%s: retrying within %g s: %s", namespace, name, PERIOD, e.message)
            except TimeoutError:
                self._metrics.failures.labels("timeout").inc()
                logger.warning(
                    "%s/%s: retrying within %g s: the pass took longer than %g s",
                    namespace, name, PERIOD, PASS_TIMEOUT,
                )  # fmt: skip
            except Exception:
                # A defect of the operator must not keep the other LinkGateways from being reconciled.
                self._metrics.failures.labels("defect").inc()
                logger.exception("%s/%s: the pass failed", namespace, name)

    async def _read_again(self, operations: Sequence[Object]) -> list[Object]:
        """The operations as they are now, because the informer lags behind what was last written."""
        found = []
        for one in operations:
            key = one["metadata"]["namespace"], one["metadata"]["name"]
            try:
                body = await self._cluster.find(OPERATION, *key)
            except AccessDenied as e:
                logger.warning("%s/%s: the operation waits: %s", *key, e.message)
                continue  # its LinkGateway is reconciled nevertheless
            if body is None:
                self.informer.discard(key, OPERATION)
            else:
                found.append(body)
        return found

    async def _reconcile(self, key: Key, gateways: Mapping[Key, Object], operations: Sequence[Object]) -> None:
        namespace, name = key
        body = await self._cluster.find(KIND, namespace, name)
        if body is None:
            self.informer.discard(key)
            message = f"the LinkGateway {name} does not exist in {namespace}"
            await OperationRunner(self._cluster, self._metrics).refuse(operations, "GatewayNotFound", message)
            return
        if "deletionTimestamp" in body["metadata"] or key not in gateways:
            return  # Kubernetes deletes the child objects with it, because of their ownerReferences
        reconciler = await self._reconciler_of(key, body["metadata"]["uid"])
        others = [one for other, one in gateways.items() if other[0] == namespace and other != key]
        await reconciler.reconcile(body, others, time.monotonic(), operations)

    async def _reconciler_of(self, key: Key, uid: str) -> Reconciler:
        namespace, name = key
        existing = self._reconcilers.get(key)
        if existing is not None and existing[0] == uid:
            return existing[1]
        if existing is not None:
            await existing[1].aclose()
        owner, policy = Owner(name, namespace, uid), self._policies.of(namespace)
        reconciler = Reconciler(self._cluster, owner, policy, self._metrics)
        self._reconcilers[key] = uid, reconciler
        return reconciler

    async def _close_all_but(self, keys: set[Key]) -> None:
        """Closes the reconcilers of all other LinkGateways: they are gone, or this replica does not lead."""
        for key in self._reconcilers.keys() - keys:
            if running := self._passes.get(key):
                running.cancel()
                await asyncio.wait([running], timeout=PASS_TIMEOUT)
            _, reconciler = self._reconcilers.pop(key)
            self._metrics.forget(*key)
            await reconciler.aclose()
