"""Who in this process waits for results of a command: woken by doorbells, never a blocked connection each."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


class Followers:
    def __init__(self) -> None:
        self._waiting: dict[str, set[asyncio.Event]] = {}
        self._announced: dict[str, asyncio.Event] = {}

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    @contextmanager
    def follow(self, command: str) -> Iterator[asyncio.Event]:
        """An event that is set whenever `command` has news, until the block is left."""
        news = self._announced.pop(command, None) or asyncio.Event()
        self._waiting.setdefault(command, set()).add(news)
        try:
            yield news
        finally:
            self._leave(command, news)

    def _leave(self, command: str, news: asyncio.Event) -> None:
        waiting = self._waiting[command]
        waiting.discard(news)
        if not waiting:
            del self._waiting[command]

    def announce(self, command: str) -> None:
        """A follower of `command` will come: what rings until then is kept for it."""
        news = self._announced[command] = asyncio.Event()
        self._waiting.setdefault(command, set()).add(news)

    def renounce(self, command: str) -> None:
        """The follower that was announced does not come."""
        news = self._announced.pop(command, None)
        if news is not None:
            self._leave(command, news)

    def wake(self, command: str) -> None:
        for news in self._waiting.get(command, ()):
            news.set()
