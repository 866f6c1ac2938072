"""Which of the operator's replicas acts: a Lease in the cluster, renewed by its holder and taken when it falls silent.

Run by `main`; asked by the fence of every write. Two replicas never compare their clocks: a follower counts from when
it saw the Lease change, the holder from before it sent its renewal, and what the holder trusts is shorter than what a
follower waits by more than the longest call. So whatever the old holder has sent is over before a new one begins.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable
from datetime import UTC, datetime

from fairlead.errors import FairleadError
from fairlead_operator.kube.cluster import Cluster
from fairlead_operator.kube.errors import Conflict, NotLeader
from fairlead_operator.kube.objects import Object

logger = logging.getLogger(__name__)

LEASE_DURATION = 13
"""Seconds of silence after which another replica takes over: with its look every two, within 16 s."""
RENEW_DEADLINE = 8.0
"""Seconds that a renewal is good for: this and one call (4 s) are over before LEASE_DURATION is."""
RETRY_PERIOD = 2.0


class LeaderElector:
    def __init__(
        self,
        cluster: Cluster,
        namespace: str,
        name: str,
        identity: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`cluster` is one without a fence: the Lease is what fences the others."""
        self._cluster = cluster
        self._namespace = namespace
        self._name = name
        self._clock = clock
        self.identity = identity
        self.holder = ""
        self.problem = "not asked yet"
        """Why the API server could not be asked the last time, "" when it could."""
        self._until = 0.0
        self._seen: tuple[str, str] | None = None
        self._seen_at = 0.0
        self._led = False

    @property
    def held(self) -> bool:
        """Whether this replica may write, now."""
        return self._clock() < self._until

    def check(self) -> None:
        if not self.held:
            raise NotLeader(f"this replica does not hold the lease {self._name}")

    async def hold_forever(self, turned: Callable[[], None]) -> None:
        """Follow, take, renew; ends by being cancelled, and then gives the Lease up at once.

        `turned` is called whenever this replica has begun or ceased to lead."""
        try:
            while True:
                await self.try_acquire_or_renew()
                if self.held != self._led:
                    self._led = self.held
                    logger.info("this replica %s", "leads" if self._led else "does not lead any more")
                    turned()
                await asyncio.sleep(RETRY_PERIOD * random.uniform(0.9, 1.0))
        finally:
            if self.held:
                await asyncio.shield(self._release())

    async def try_acquire_or_renew(self) -> None:
        """Ask once: renew it, take it, or see who has it."""
        asked_at = self._clock()
        try:
            found = await self._cluster.find("Lease", self._namespace, self._name)
            if found is None:
                await self._cluster.create(self._body(0, {}))
                self._until = asked_at + RENEW_DEADLINE
            else:
                await self._follow(found, asked_at)
            self.problem = ""
        except Conflict:
            self.problem = ""  # another was faster: look again
        except FairleadError as e:
            if not self.problem:
                logger.warning("the lease %s cannot be looked at: %s", self._name, e.message)
            self.problem = e.message

    async def _follow(self, found: Object, asked_at: float) -> None:
        spec = found.get("spec") or {}
        self.holder = spec.get("holderIdentity") or ""
        seen = (self.holder, str(spec.get("renewTime")))
        if seen != self._seen:
            self._seen, self._seen_at = seen, self._clock()
        mine = self.holder == self.identity
        if not mine:
            self._until = 0.0  # it was emptied or deleted, and another was faster
        silent = self._clock() - self._seen_at > float(spec.get("leaseDurationSeconds") or LEASE_DURATION)
        if not (mine or silent or not self.holder):
            return
        turns = int(spec.get("leaseTransitions") or 0) + (0 if mine else 1)
        body = self._body(turns, {"resourceVersion": found["metadata"]["resourceVersion"]})
        if mine:
            body["spec"]["acquireTime"] = spec.get("acquireTime")
        await self._cluster.patch("Lease", self._namespace, self._name, body)
        self.holder = self.identity
        self._until = asked_at + RENEW_DEADLINE

    async def _release(self) -> None:
        self._until = 0.0
        try:
            found = await self._cluster.find("Lease", self._namespace, self._name)
            if found is not None and (found.get("spec") or {}).get("holderIdentity") == self.identity:
                meta = {"resourceVersion": found["metadata"]["resourceVersion"]}
                await self._cluster.patch(
                    "Lease", self._namespace, self._name, {"metadata": meta, "spec": {"holderIdentity": ""}}
                )
        except FairleadError as e:
            logger.info("the lease is left to run out: %s", e.message)

    def _body(self, turns: int, meta: Object) -> Object:
        now = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        return {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": self._name, "namespace": self._namespace, **meta},
            "spec": {
                "holderIdentity": self.identity,
                "leaseDurationSeconds": LEASE_DURATION,
                "acquireTime": now,
                "renewTime": now,
                "leaseTransitions": turns,
            },
        }
