"""A connected client of the Valkey that tests/conftest.py starts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from fairlead.store.embedded_valkey.server import EmbeddedValkey
from fairlead.store.pipeliner import Pipeliner


@pytest.fixture
async def pipeliner(valkey: EmbeddedValkey, connect: Callable[[str], Awaitable[Pipeliner]]) -> Pipeliner:
    return await connect(valkey.url)
