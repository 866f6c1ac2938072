"""Decides which of the operator's replicas acts: the leader renews a Lease, and another takes it when it is silent.

Run by `process`; every write first calls `check`. The replicas never compare their clocks: a follower counts from when
it saw the Lease change, the leader from before it sent its renewal. The leader relies on a renewal for a shorter time
than a follower waits, and the difference exceeds the longest call. So all calls of the old leader have ended before a
new one begins.
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
"""Seconds of silence after which another replica takes over: within 16 s, because it checks every two."""
RENEW_DEADLINE = 8.0
"""Seconds for which the leader relies on a renewal: even with one more call (4 s) this ends before LEASE_DURATION
does."""
RETRY_PERIOD = 2.0
"""Seconds between two reads of the Lease."""


class LeaderElector:
    def __init__(
        self,
        cluster: Cluster,
        namespace: str,
        name: str,
        identity: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`cluster` must have no fence, because this object is the fence of all others. `name` is the name of the
        Lease.
        """
        self._cluster = cluster
        self._namespace = namespace
        self._name = name
        self._clock = clock
        self.identity = identity
        self.holder = ""
        self.problem = "the Lease has not been read yet"
        """Why the last call to the API server failed; "" if it succeeded."""
        self._leads_until = 0.0
        self._observed: tuple[str, str] | None = None
        """Holder and time of the last renewal, as this replica last read them."""
        self._observed_at = 0.0
        self._led = False

    @property
    def leads(self) -> bool:
        """Whether this replica may write now."""
        return self._clock() < self._leads_until

    def check(self) -> None:
        """The fence: raises NotLeader when this replica must not write."""
        if not self.leads:
            raise NotLeader(f"this replica does not hold the Lease {self._name}")

    async def run_forever(self, on_change: Callable[[], None]) -> None:
        """Follows, takes and renews the Lease. When it is cancelled it releases the Lease at once.

        `on_change` is called whenever this replica has become the leader or has stopped being it.
        """
        try:
            while True:
                await self.try_acquire_or_renew()
                if self.leads != self._led:
                    self._led = self.leads
                    logger.info("this replica %s", "is the leader" if self._led else "is no longer the leader")
                    on_change()
                await asyncio.sleep(RETRY_PERIOD * random.uniform(0.9, 1.0))
        finally:
            if self.leads:
                await asyncio.shield(self._release())

    async def try_acquire_or_renew(self) -> None:
        """Renews the Lease, takes it, or reads who holds it."""
        asked_at = self._clock()
        try:
            found = await self._cluster.find("Lease", self._namespace, self._name)
            if found is None:
                await self._cluster.create(self._body(0, {}))
                self._leads_until = asked_at + RENEW_DEADLINE
            else:
                await self._follow(found, asked_at)
            self.problem = ""
        except Conflict:
            self.problem = ""  # another replica was faster: the next read shows it
        except FairleadError as e:
            if not self.problem:
                logger.warning("the Lease %s cannot be read or written: %s", self._name, e.message)
            self.problem = e.message

    async def _follow(self, found: Object, asked_at: float) -> None:
        spec = found.get("spec") or {}
        self.holder = spec.get("holderIdentity") or ""
        observed = (self.holder, str(spec.get("renewTime")))
        if observed != self._observed:
            self._observed, self._observed_at = observed, self._clock()
        is_own = self.holder == self.identity
        if not is_own:
            self._leads_until = 0.0  # the Lease was released or deleted, and another replica took it first
        silence = self._clock() - self._observed_at
        expired = silence > float(spec.get("leaseDurationSeconds") or LEASE_DURATION)
        if not (is_own or expired or not self.holder):
            return
        transitions = int(spec.get("leaseTransitions") or 0) + (0 if is_own else 1)
        body = self._body(transitions, {"resourceVersion": found["metadata"]["resourceVersion"]})
        if is_own:
            body["spec"]["acquireTime"] = spec.get("acquireTime")
        await self._cluster.patch("Lease", self._namespace, self._name, body)
        self.holder = self.identity
        self._leads_until = asked_at + RENEW_DEADLINE

    async def _release(self) -> None:
        self._leads_until = 0.0
        try:
            found = await self._cluster.find("Lease", self._namespace, self._name)
            if found is not None and (found.get("spec") or {}).get("holderIdentity") == self.identity:
                meta = {"resourceVersion": found["metadata"]["resourceVersion"]}
                body = {"metadata": meta, "spec": {"holderIdentity": ""}}
                await self._cluster.patch("Lease", self._namespace, self._name, body)
        except FairleadError as e:
            logger.info("the Lease could not be released and will expire: %s", e.message)

    def _body(self, transitions: int, meta: Object) -> Object:
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
                "leaseTransitions": transitions,
            },
        }
