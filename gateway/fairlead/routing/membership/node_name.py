"""Takes care that one process at a time bears a node's name.

Asked by `Heartbeat` before the first beat, and when its row belongs to another life. Two processes with one name would
take turns at the row for ever, and each would cost the other its agents. So the second does not begin: it names the
first, and what to do. A node that is started again after it was killed finds the row of its last life, which may look
alive for 15 s: it begins at once when that process is known to have ended (it ran on this machine, or in this pod), and
else waits that long, and says so.
"""

from __future__ import annotations

import asyncio
import logging
import random
from datetime import UTC, datetime

from fairlead.errors import ConfigError
from fairlead.fleet.node_rows import NodeRows
from fairlead.fleet.schema import ALIVE_MS, NodeRow
from fairlead.routing.membership.process_identity import ProcessIdentity

logger = logging.getLogger(__name__)

LOOK_AGAIN = 0.5
"""Seconds, drawn from half to one and a half of it: nodes that are started together do not ask together."""


class NodeName:
    def __init__(self, load: NodeRows, node: str, pod: str = "") -> None:
        """`pod` is the UID of the pod that this process runs in, "" outside of Kubernetes."""
        self._load = load
        self._node = node
        self._own = ProcessIdentity.own(pod)
        self.process = self._own.packed()
        """What this process tells of itself with each beat."""

    async def holder(self, own_epoch: str = "") -> tuple[NodeRow | None, str]:
        """The living row of another process under this name, None when the name is free; and the epoch that a new
        life may replace then."""
        row, now = await self._load.look_up(self._node)
        if row is None:
            return None, ""
        free = row.epoch == own_epoch or not row.alive(now) or ProcessIdentity.parse(row.process).gone(self._own)
        return (None if free else row), row.epoch

    async def wait_until_free(self) -> str:
        """The epoch that this node may replace, "" for none. Raises ConfigError when another process bears the name."""
        first: NodeRow | None = None
        while True:
            found, epoch = await self.holder()
            if found is None:
                return epoch
            if first is None:
                first = found
                logger.warning(
                    "%s; waiting until it beats again, or has been silent for %g s",
                    self.taken_by(found), ALIVE_MS / 1000,
                )  # fmt: skip
            elif (found.epoch, found.at) != (first.epoch, first.at):
                raise ConfigError(
                    f"{self.taken_by(found)}, and it is alive: give this one a name of its own (--node or "
                    "FAIRLEAD_NODE), or stop that one first"
                )
            await asyncio.sleep(LOOK_AGAIN * random.uniform(0.5, 1.5))

    def taken_by(self, row: NodeRow) -> str:
        """Who has the name, in words."""
        since = datetime.fromtimestamp(row.began / 1000, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        return (
            f"there is a node {self._node!r} already: {ProcessIdentity.parse(row.process)}, in the fleet since {since}"
        )
