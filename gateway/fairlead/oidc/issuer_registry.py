"""The issuers of a file and their keys: read at the start, and again when the file changes.

`authorization.users` has one for the issuers of users, and `routing` one for those of agents; each runs `run`. A file
that has become invalid changes nothing. An issuer whose table has not changed keeps its keys.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from pathlib import Path
from typing import Final

from fairlead.configuration.tables_reader import SIZE_LIMIT
from fairlead.configuration.watched_file import file_signature, read_regular_file
from fairlead.errors import ConfigError, FairleadError
from fairlead.oidc.issuer_keys import IssuerKeys, KeysUnavailable
from fairlead.oidc.issuers_file import TrustedIssuer
from fairlead.oidc.jwt_verifier import UnknownKey

logger = logging.getLogger(__name__)

INTERVAL: Final = 1.0
"""Seconds between two looks at the file, each of which is one system call."""


class IssuerRegistry:
    def __init__(
        self,
        path: Path | None,
        parse: Callable[[bytes, str], tuple[TrustedIssuer, ...]],
        on_change: Callable[[], None],
    ) -> None:
        """Without a `path` there are no issuers. `parse` reads the file, and `on_change` is called when other issuers
        are in use."""
        self._path = path
        self._parse = parse
        self._on_change = on_change
        self._seen: tuple[int, ...] | None = None
        self._sources: dict[str, IssuerKeys] = {}
        """By the URL of the issuer."""
        self.reload_failures = 0
        self.on_reload: Callable[[], None] = lambda: None
        """Called after a changed file was read again; set by the node."""

    @property
    def sources(self) -> list[IssuerKeys]:
        return list(self._sources.values())

    def find(self, url: str) -> IssuerKeys | None:
        return self._sources.get(url)

    def load(self) -> None:
        """Read the file. Raises ConfigError if it cannot be used."""
        if self._path is not None:
            self._seen = file_signature(self._path)
            self._use(self._read(self._path))

    async def fetch_after(self, error: FairleadError) -> bool:
        """Fetch the keys whose absence has caused `error`, unless that was done a moment ago; False if it has another
        cause."""
        if not isinstance(error, UnknownKey | KeysUnavailable):
            return False
        source = self._sources.get(error.issuer.url)
        if source is not None:
            await source.refresh(wanted=True)
        return source is not None

    async def run(self) -> None:
        """Follow the file and the keys. Never returns."""
        fetches: set[asyncio.Task[None]] = set()
        try:
            while True:
                for source in self._sources.values():
                    if source.due:
                        fetch = asyncio.create_task(source.refresh())
                        fetches.add(fetch)
                        fetch.add_done_callback(fetches.discard)
                await asyncio.sleep(INTERVAL * random.uniform(0.8, 1.0))
                await self._follow_file()
        finally:
            for source in self._sources.values():
                await source.aclose()

    async def _follow_file(self) -> None:
        if self._path is None or file_signature(self._path) == self._seen:
            return
        self._seen = file_signature(self._path)
        try:
            self._use(await asyncio.to_thread(self._read, self._path))
        except ConfigError as e:
            self.reload_failures += 1
            logger.error("the file of issuers cannot be used, so the issuers stay as they were: %s", e.message)
        else:
            logger.info("read the file of issuers %s again: %d issuers", self._path, len(self._sources))
            self.on_reload()

    def _use(self, issuers: tuple[TrustedIssuer, ...]) -> None:
        known = {source.issuer: source for source in self._sources.values()}
        self._sources = {issuer.url: known.get(issuer) or IssuerKeys(issuer) for issuer in issuers}
        self._on_change()

    def _read(self, path: Path) -> tuple[TrustedIssuer, ...]:
        return self._parse(read_regular_file(path, SIZE_LIMIT + 1), str(path))
