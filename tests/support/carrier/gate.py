"""A server whose connections are told to one listener each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Gate:
    """What makes the listeners of a server; `last` is the newest. `limit` is what its write buffers may hold."""

    def __init__(self, make: Callable[..., Any]) -> None:
        self.make = make
        self.echo = False
        self.limit = 256 << 10
        self.port = 0
        self.all: list[Any] = []

    def __call__(self) -> Any:
        self.all.append(self.make(echo=self.echo))
        return self.all[-1]

    @property
    def last(self) -> Any:
        return self.all[-1]
