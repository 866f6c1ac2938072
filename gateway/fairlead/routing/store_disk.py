"""Whether Redis can write to its disk, as each server says itself (INFO persistence).

`StoreMemory` hands it what it reads anyway. A server whose append-only file cannot be written refuses all writes; one
that only fails to rewrite that file goes on, and fills its disk. It changes nothing: it says what `/readyz`, a metric
and the log tell.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

logger = logging.getLogger(__name__)

FAILURES: Final = {
    "aof_last_write_status": "cannot write its append-only file: free or repair the disk of the server",
    "rdb_last_bgsave_status": "cannot write a snapshot: free or repair the disk of the server",
    "aof_last_bgrewrite_status": "cannot rewrite its append-only file, which grows until the disk is full: free or "
    "repair the disk of the server, then BGREWRITEAOF",
}
"""Fields whose value is not `ok` after a failure, and what that means, the worst one first."""


class StoreDisk:
    def __init__(self) -> None:
        self.problem = ""
        """What is wrong; "" while nothing is."""

    def note(self, found: Mapping[str, Mapping[str, str]]) -> None:
        """Take what the servers say, by their addresses."""
        problem = ""
        for field, meaning in FAILURES.items():
            failing = [address for address, info in found.items() if info.get(field, "ok") != "ok"]
            if failing:
                problem = f"Redis at {', '.join(failing)} {meaning}"
                break
        before, self.problem = self.problem, problem
        if problem and problem != before:
            logger.error("%s", problem)
        elif before and not problem:
            logger.info("Redis can write to its disk again")
