"""The types of the fixtures in tests/conftest.py and of those that several rooms have under the same name."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

import httpx2

from fairlead.store.embedded_valkey.server import EmbeddedValkey
from fairlead.store.pipeliner import Pipeliner

Connect: TypeAlias = Callable[[str], Awaitable[Pipeliner]]
"""A connected pipeliner for the Redis at a URL."""
RedisOf: TypeAlias = Callable[[EmbeddedValkey], Awaitable[Pipeliner]]
"""A connected pipeliner, to look into a Valkey."""
HttpOf: TypeAlias = Callable[[str], httpx2.AsyncClient]
"""A client of the API at a URL, with the platform's token."""
