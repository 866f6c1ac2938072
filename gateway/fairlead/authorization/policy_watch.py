"""Keeps the policy of the file of roles: reads it at the start, and again whenever the file changes.

The node creates one and runs `run`. A file that has become invalid or unreadable changes nothing: the last good policy
stays in use, and the log says what is wrong. Without a file nobody has a role.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Final

from fairlead.authorization.policy import Policy
from fairlead.authorization.policy_file import SIZE_LIMIT, parse_policy
from fairlead.errors import ConfigError

logger = logging.getLogger(__name__)

INTERVAL: Final = 1.0
"""Seconds between two looks at the file, each of which is one system call."""


class PolicyWatch:
    """`policy` is what holds now. `on_change` is called after it has changed."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._seen: tuple[int, ...] | None = None
        self.policy = Policy()
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
        self._seen = self._signature()
        self.policy = _read(self._path)

    async def run(self) -> None:
        """Read the file again whenever it has changed. Never returns."""
        while True:
            await asyncio.sleep(INTERVAL * random.uniform(0.8, 1.0))
            if self._path is None or self._signature() == self._seen:
                continue
            self._seen = self._signature()
            try:
                policy = await asyncio.to_thread(_read, self._path)
            except ConfigError as e:
                self.failures += 1
                logger.error("the file of roles cannot be used, so the roles stay as they were: %s", e.message)
                continue
            self.reloads += 1
            if policy != self.policy:
                self.policy = policy
                logger.info("read the file of roles %s again: %d roles", self._path, len(policy.roles))
                self.on_change()

    def _signature(self) -> tuple[int, ...] | None:
        """What changes with the file, also when a symbolic link in its path leads elsewhere; None if there is none."""
        assert self._path is not None
        try:
            found = self._path.stat()
        except OSError:
            return None
        # The time of the last change of the inode tells two files apart of which a deployment has set the same mtime.
        return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size


def _read(path: Path) -> Policy:
    try:
        with open(path, "rb", opener=_open) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise ConfigError(f"{path} is no regular file: expected a YAML file of roles")
            raw = file.read(SIZE_LIMIT + 1)
    except OSError as e:
        raise ConfigError(f"{path} cannot be read ({e.strerror or e}): check the path and its permissions") from e
    return parse_policy(raw, str(path))


def _open(path: str, flags: int) -> int:
    """A pipe without a writer would block for ever, and with it every later look at the file."""
    return os.open(path, flags | os.O_NONBLOCK)
