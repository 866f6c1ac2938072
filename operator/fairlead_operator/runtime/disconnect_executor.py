"""Carries out a LinkOperation of type Disconnect: tells the nodes whose links they should close, and reads how far they
are.

Each reconciler has one and calls it in every pass, before and after the operations take their steps. What it writes to
Redis expires by itself, so half a minute after the operator has ended no more links are closed.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from fairlead.errors import BusUnavailable
from fairlead_operator.api.link_operation import Type
from fairlead_operator.autoscaler.observation import FleetObservation, NodeMetrics
from fairlead_operator.inputs.fleet_redis import FleetRedis
from fairlead_operator.kube.objects import Object
from fairlead_operator.operations.disconnect_progress import DisconnectProgress, disconnect_progress
from fairlead_operator.operations.runner import RunningOperation

logger = logging.getLogger(__name__)


class DisconnectExecutor:
    def __init__(self, redis: FleetRedis) -> None:
        self._redis = redis
        self._operation = ""
        """The uid of the operation whose directive was written last and is not withdrawn."""

    async def read(self, nodes: NodeMetrics | None, fleet: FleetObservation) -> DisconnectProgress | None:
        """How far the nodes are; None if this operator has not told any to disconnect, or if Redis does not answer."""
        if not self._operation or nodes is None:
            return None
        try:
            reported = await self._redis.disconnect_progress(self._operation)
        except BusUnavailable as e:
            logger.debug("the progress of a Disconnect cannot be read: %s", e.message)
            return None
        return disconnect_progress(self._operation, reported, nodes, fleet)

    async def execute(self, running: RunningOperation, operations: Sequence[Object]) -> None:
        """Tells the nodes what the running operation asks for, or that none is running any more."""
        try:
            if running.disconnect is not None:
                await self._redis.write_disconnect(running.disconnect)
                self._operation = running.disconnect.operation
            elif self._operation or any(body["spec"].get("type") == Type.DISCONNECT for body in operations):
                await self._redis.withdraw_disconnect()
                self._operation = ""
        except BusUnavailable as e:
            # The next pass writes it; what was written before expires.
            logger.debug("the nodes cannot be informed of a Disconnect: %s", e.message)
