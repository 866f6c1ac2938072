"""Ensures that one process at a time has a node's name.

`Heartbeat` asks it before the first heartbeat, and when the node's row belongs to another process. Two processes with
one name would overwrite the row in turns, and each would cost the other its agents. So the second one does not start;
it names the first one and says what to do. A node that is started again after it was killed finds its old row, which
looks alive for 15 s. It starts at once if that process has certainly ended (it ran on this machine, or in this pod).
Otherwise it waits that long, and logs so.
"""

from __future__ import annotations

import asyncio
import logging
import random
from datetime import UTC, datetime

from fairlead.errors import ConfigError
from fairlead.fleet.node_rows import NodeRows
from fairlead.fleet.node_table import ALIVE_MS, NodeRow
from fairlead.routing.membership.process_identity import ProcessIdentity

logger = logging.getLogger(__name__)

POLL_INTERVAL = 0.5
"""Seconds, times a random factor of 0.5 to 1.5, so that nodes that are started together do not ask together."""


class NodeName:
    def __init__(self, rows: NodeRows, node: str, pod: str = "") -> None:
        """`pod` is the UID of the pod that this process runs in, "" outside of Kubernetes."""
        self._rows = rows
        self._node = node
        self._own = ProcessIdentity.own(pod)
        self.process = self._own.packed()
        """What this process reports about itself with each heartbeat."""

    async def holder(self, own_epoch: str = "") -> tuple[NodeRow | None, str]:
        """The live row of another process with this name, None if the name is free; and the epoch of the row, which
        this process may replace if the name is free."""
        row, now = await self._rows.look_up(self._node)
        if row is None:
            return None, ""
        free = row.epoch == own_epoch or not row.alive(now) or ProcessIdentity.parse(row.process).has_ended(self._own)
        return (None if free else row), row.epoch

    async def wait_until_free(self) -> str:
        """Wait until the name is free. Returns the epoch that this node may replace, "" for none. Raises ConfigError if
        another live process has the name."""
        first: NodeRow | None = None
        while True:
            found, epoch = await self.holder()
            if found is None:
                return epoch
            if first is None:
                first = found
                logger.warning(
                    "%s: waiting until it sends a heartbeat, or has been silent for %g s",
                    self.taken_by(found), ALIVE_MS / 1000,
                )  # fmt: skip
            elif (found.epoch, found.at) != (first.epoch, first.at):
                raise ConfigError(
                    f"{self.taken_by(found)}, and it is alive: give this node a name of its own (--node or "
                    "FAIRLEAD_NODE), or stop the other one first"
                )
            await asyncio.sleep(POLL_INTERVAL * random.uniform(0.5, 1.5))

    def taken_by(self, row: NodeRow) -> str:
        """The process that has the name, in words."""
        since = datetime.fromtimestamp(row.began / 1000, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        return (
            f"the node name {self._node!r} is in use already: {ProcessIdentity.parse(row.process)}, "
            f"in the fleet since {since}"
        )
