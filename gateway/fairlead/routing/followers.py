"""Who in this process waits for results of a command: woken by doorbells, never a blocked connection each."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


class Followers:
    def __init__(self) -> None:
        self._waiting: dict[str, set[asyncio.Event]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def join(self, command: str) -> asyncio.Event:
        """An event that is set whenever `command` has news, until it is given to `leave`."""
        news = asyncio.Event()
        self._waiting.setdefault(command, set()).add(news)
        return news

    def leave(self, command: str, news: asyncio.Event) -> None:
        waiting = self._waiting[command]
        waiting.discard(news)
        if not waiting:
            del self._waiting[command]

    @contextmanager
    def follow(self, command: str, news: asyncio.Event | None = None) -> Iterator[asyncio.Event]:
        """Follow until the block is left, with the event of an earlier `join`, if there was one."""
        news = news or self.join(command)
        try:
            yield news
        finally:
            self.leave(command, news)

    def wake(self, command: str) -> None:
        for news in self._waiting.get(command, ()):
            news.set()
