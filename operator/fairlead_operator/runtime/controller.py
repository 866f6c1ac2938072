"""Reconciles every LinkGateway every ten seconds, and at once when one changes, while this replica leads.

Run by `main`. It owns the reconcilers: it makes one when a LinkGateway appears, and closes it when the LinkGateway is
gone or the lease is lost. Passes run side by side, each with a deadline, so that one that hangs delays no other.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from functools import partial

from fairlead.errors import FairleadError
from fairlead_operator.api.policy import Policies
from fairlead_operator.kube.cluster import Cluster
from fairlead_operator.kube.errors import AccessDenied
from fairlead_operator.kube.objects import Object
from fairlead_operator.metrics import Metrics
from fairlead_operator.operations.runner import OperationRunner, gateway_of, in_turn
from fairlead_operator.resources.owner import Owner
from fairlead_operator.runtime.informer import OPERATION, Generation, Informer, Key, generation_of
from fairlead_operator.runtime.leader_election import LeaderElector
from fairlead_operator.runtime.reconciler import Reconciler

logger = logging.getLogger(__name__)

PERIOD = 10.0
LEAST = 1.0
"""Seconds between two rounds, however often somebody edits."""
PASS_TIMEOUT = 60.0
"""A first pass makes some thirty calls; each has its own deadline, this is for all of them together."""
SIDE_BY_SIDE = 8


class Controller:
    def __init__(
        self, cluster: Cluster, lease: LeaderElector, namespaces: tuple[str, ...], policies: Policies, metrics: Metrics
    ) -> None:
        self._cluster = cluster
        self._policies = policies
        self._lease = lease
        self._metrics = metrics
        metrics.leader.set_function(lambda: float(lease.held))
        self._woken = asyncio.Event()
        self._reconcilers: dict[Key, tuple[str, Reconciler]] = {}
        self._slots = asyncio.Semaphore(SIDE_BY_SIDE)
        self._passes: dict[Key, asyncio.Task[None]] = {}
        self._begun: dict[Key, frozenset[Generation]] = {}
        """For each pass that is under way: what was asked for when it began."""
        self._missed: set[Key] = set()
        """Those of which something else was asked meanwhile."""
        self.view = Informer(namespaces, self.wake)
        self.turned_at = time.monotonic()
        """When the last round began."""

    def wake(self) -> None:
        """Begin a round now."""
        self._woken.set()

    async def run_forever(self) -> None:
        try:
            while True:
                self.turned_at = time.monotonic()
                self._woken.clear()
                await self._round()
                await asyncio.sleep(LEAST)
                try:
                    await asyncio.wait_for(self._woken.wait(), PERIOD - LEAST)
                except TimeoutError:
                    pass
        finally:
            for one in self._passes.values():
                one.cancel()
            await asyncio.gather(*self._passes.values(), return_exceptions=True)
            await self._forget(set())

    async def _round(self) -> None:
        held = self._lease.held
        gateways = self.view.all() if held else {}
        operations = self.view.all(OPERATION) if held else {}
        self._metrics.gateways.set(len(gateways))
        await self._forget(set(gateways))
        asked: dict[Key, list[Object]] = {key: [] for key in gateways}
        for (namespace, _), body in operations.items():
            asked.setdefault((namespace, gateway_of(body)), []).append(body)
        for key, found in asked.items():
            waiting = in_turn(found)
            said = frozenset(map(generation_of, [*waiting, gateways[key]] if key in gateways else waiting))
            if key in self._passes:
                if said - self._begun[key]:
                    self._missed.add(key)
            elif said:
                self._begun[key] = said
                self._passes[key] = asyncio.create_task(self._pass(key, gateways, waiting), name=f"{key}")
                self._passes[key].add_done_callback(partial(self._over, key))

    def _over(self, key: Key, _: asyncio.Task[None]) -> None:
        del self._passes[key], self._begun[key]
        if key in self._missed:
            self._missed.discard(key)
            self.wake()

    async def _pass(self, key: Key, gateways: Mapping[Key, Object], operations: Sequence[Object]) -> None:
        namespace, name = key
        async with self._slots:
            try:
                with self._metrics.passes.time():
                    async with asyncio.timeout(PASS_TIMEOUT):
                        await self._reconcile(key, gateways, await self._read(operations))
            except FairleadError as e:
                self._metrics.failures.labels(e.code).inc()
                logger.warning("%s/%s: looked at again within %g s: %s", namespace, name, PERIOD, e.message)
            except TimeoutError:
                self._metrics.failures.labels("timeout").inc()
                logger.warning(
                    "%s/%s: looked at again within %g s: this look took longer than %g s",
                    namespace, name, PERIOD, PASS_TIMEOUT,
                )  # fmt: skip
            except Exception:
                # A defect of ours must not keep the other LinkGateways from being looked after.
                self._metrics.failures.labels("defect").inc()
                logger.exception("%s/%s: this pass failed", namespace, name)

    async def _read(self, operations: Sequence[Object]) -> list[Object]:
        """They as they stand now: the streams are behind what was last written."""
        found = []
        for one in operations:
            key = one["metadata"]["namespace"], one["metadata"]["name"]
            try:
                body = await self._cluster.find(OPERATION, *key)
            except AccessDenied as e:
                logger.warning("%s/%s: the operation waits: %s", *key, e.message)
                continue  # the LinkGateway is looked after all the same
            if body is None:
                self.view.gone(key, OPERATION)
            else:
                found.append(body)
        return found

    async def _reconcile(self, key: Key, gateways: Mapping[Key, Object], operations: Sequence[Object]) -> None:
        namespace, name = key
        body = await self._cluster.find("LinkGateway", namespace, name)
        if body is None:
            self.view.gone(key)
            words = f"there is no LinkGateway {name} in {namespace}"
            await OperationRunner(self._cluster, self._metrics).refuse(operations, "GatewayNotFound", words)
            return
        if "deletionTimestamp" in body["metadata"] or key not in gateways:
            return  # the children go with it, by their ownerReferences
        uid = body["metadata"]["uid"]
        kept = self._reconcilers.get(key)
        if kept is None or kept[0] != uid:
            if kept is not None:
                await kept[1].aclose()
            owner, policy = Owner(name, namespace, uid), self._policies.of(namespace)
            kept = uid, Reconciler(self._cluster, owner, policy, self._metrics)
            self._reconcilers[key] = kept
        others = [one for other, one in gateways.items() if other[0] == namespace and other != key]
        await kept[1].reconcile(body, others, time.monotonic(), operations)

    async def _forget(self, kept: set[Key]) -> None:
        """Those that are gone, or all when this replica does not lead: their passes have nothing more to do."""
        for key in self._reconcilers.keys() - kept:
            if under_way := self._passes.get(key):
                under_way.cancel()
                await asyncio.wait([under_way], timeout=PASS_TIMEOUT)
            _, reconciler = self._reconcilers.pop(key)
            self._metrics.forget(*key)
            await reconciler.aclose()
