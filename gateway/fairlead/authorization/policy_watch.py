"""Keeps the policy of the file of roles: reads it at the start, and again whenever the file changes.

The node creates one and runs `run`. A file that has become invalid or unreadable changes nothing: the last good policy
stays in use, and the log says what is wrong. Without a file nobody has a role.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import random
from collections.abc import Callable
from pathlib import Path
from typing import Final

from fairlead.authorization.policy import Policy
from fairlead.authorization.rules.policy_file import SIZE_LIMIT, parse_policy
from fairlead.configuration.watched_file import file_signature, read_regular_file
from fairlead.errors import ConfigError

logger = logging.getLogger(__name__)

INTERVAL: Final = 1.0
"""Seconds between two looks at the file, each of which is one system call."""


class PolicyWatch:
    """`policy` is what holds now, and `digest` the SHA-256 of the file that it was read from, "" without one.
    `on_change` is called after the policy has changed."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._seen: tuple[int, ...] | None = None
        self.policy = Policy()
        self.digest = ""
        self.on_change: Callable[[], None] = lambda: None
        self.reloads = 0
        self.failures = 0

    @property
    def configured(self) -> bool:
        return self._path is not None

    def load(self) -> None:
        """Read the file. Raises ConfigError if it cannot be used; `policy` is unchanged then."""
        if self._path is None:
            return
        self._seen = file_signature(self._path)
        self.policy, self.digest = _read(self._path)

    async def run(self) -> None:
        """Read the file again whenever it has changed. Never returns."""
        while True:
            await asyncio.sleep(INTERVAL * random.uniform(0.8, 1.0))
            if self._path is None or file_signature(self._path) == self._seen:
                continue
            self._seen = file_signature(self._path)
            try:
                policy, digest = await asyncio.to_thread(_read, self._path)
            except ConfigError as e:
                self.failures += 1
                logger.error("the file of roles cannot be used, so the roles stay as they were: %s", e.message)
                continue
            self.reloads += 1
            self.digest = digest
            if policy != self.policy:
                self.policy = policy
                logger.info("read the file of roles %s again: %d roles", self._path, len(policy.roles))
                self.on_change()


def _read(path: Path) -> tuple[Policy, str]:
    """The policy of the file, and the file's digest."""
    raw = read_regular_file(path, SIZE_LIMIT + 1)
    return parse_policy(raw, str(path)), hashlib.sha256(raw).hexdigest()
