"""Reads the facts of the host again, from time to time and on request, and hands on what has changed.

The agent owns it, and sends what has changed. It reads in a thread, since files may be slow, and one reading at a time;
a reading takes a millisecond or two, and longer only when packages were installed.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from fairlead.agent.host.facts import agent_facts
from fairlead.agent.host.installed_packages import InstalledPackages
from fairlead.errors import ConfigError

logger = logging.getLogger("fairlead.agent")

ROOT: Final = Path("/")
"""The folder in which the host's files are."""
PERIOD: Final = 300.0
"""Seconds between two readings, times a random factor of 0.5 to 1.5, so that the agents of a fleet do not report an
upgrade of all hosts in the same moment."""


class FactReader:
    """`facts` are those of the last reading; they are never changed, but replaced. `told` is called with others."""

    def __init__(self, given: Mapping[str, str], told: Callable[[Mapping[str, str]], None]) -> None:
        """`given` is what the user says. Raises ConfigError when the facts exceed the protocol's limits."""
        self._given = dict(given)
        self._told = told
        self._packages = InstalledPackages(ROOT)
        self._reading: asyncio.Task[dict[str, str | None]] | None = None
        self.facts: Mapping[str, str] = agent_facts(self._given, self._packages)

    async def run(self) -> None:
        """Never returns."""
        while True:
            await asyncio.sleep(PERIOD * random.uniform(0.5, 1.5))
            await self.read_again()

    async def read_again(self) -> dict[str, str | None]:
        """The facts that have changed since the last reading; None for those that are gone."""
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._read())
        return await asyncio.shield(self._reading)

    async def _read(self) -> dict[str, str | None]:
        try:
            found = await asyncio.to_thread(agent_facts, self._given, self._packages)
        except ConfigError as e:
            logger.warning("the facts of the host are not told anew: %s", e.message)
            return {}
        changes = changed_facts(self.facts, found)
        if changes:
            logger.info("facts have changed: %s", ", ".join(sorted(changes)))
            self.facts = found
            self._told(found)
        return changes


def changed_facts(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, str | None]:
    """The facts that differ, with their new values; None for those that are gone."""
    gone: dict[str, str | None] = {key: None for key in before if key not in after}
    return gone | {key: value for key, value in after.items() if before.get(key) != value}
