"""Reads the machines on which a fleet's pods run: their zones, and which of them are about to be emptied.

Each reconciler has one and calls it in every pass. It gets each Node by its name, so that the cost depends on the size
of the fleet and not of the cluster, and the right to get Nodes is enough. Without that right, which a chart value
grants, the fleet is scaled as well, and the condition NodesReadable says what is missing.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence

from fairlead_operator.api.conditions import Conditions
from fairlead_operator.kube.cluster import Cluster
from fairlead_operator.kube.errors import AccessDenied
from fairlead_operator.kube.machine import Machine, missing_machine, read_machine
from fairlead_operator.kube.objects import Object

REREAD_AFTER = 30.0
"""Seconds until a machine is read again: a removal every `stepDownSeconds` (120 by default) needs nothing more recent,
and zones never change."""
READS_PER_PASS = 100
"""The maximum number of machines that one pass reads, those read longest ago first: the API server has other
clients."""
PARALLEL_READS = 10


class MachineReader:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._machines: dict[str, Machine] = {}
        self._read_at: dict[str, float] = {}

    async def read(self, pods: Sequence[Object], conditions: Conditions, now: float) -> dict[str, Machine]:
        """The machines of `pods` by name, as far as they could be read; sets NodesReadable. `now` is a clock in seconds
        that only goes forward."""
        names = {str(name) for pod in pods if (name := (pod.get("spec") or {}).get("nodeName"))}
        self._machines = {name: machine for name, machine in self._machines.items() if name in names}
        self._read_at = {name: at for name, at in self._read_at.items() if name in names}
        due = sorted(name for name in names if now - self._read_at.get(name, -math.inf) >= REREAD_AFTER)
        due = sorted(due, key=lambda name: self._read_at.get(name, -math.inf))[:READS_PER_PASS]
        try:
            await self._get(due[:1], now)  # one first: if it is forbidden, all are
            for first in range(1, len(due), PARALLEL_READS):
                await self._get(due[first : first + PARALLEL_READS], now)
        except AccessDenied as e:
            self._machines, self._read_at = {}, {}
            message = f"a removal cannot regard zones and cordoned nodes: {e.message}"
            advice = "operator.rbac.nodes of the chart grants the right to read them"
            conditions.set("NodesReadable", False, "AccessDenied", f"{message}; {advice}")
        else:
            conditions.set("NodesReadable", True, "Readable")
        return self._machines

    async def _get(self, names: Sequence[str], now: float) -> None:
        """Raises AccessDenied."""
        found = await asyncio.gather(*(self._cluster.find("Node", "", name) for name in names))
        for name, node in zip(names, found, strict=True):
            self._machines[name] = missing_machine(name) if node is None else read_machine(node)
            self._read_at[name] = now
