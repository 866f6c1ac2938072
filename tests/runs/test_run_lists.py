"""Lists of runs: a page costs no more than it may, however few of the runs its caller may see."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

import pytest

from fairlead.fleet.runs.keys import RECENT_RUNS
from fairlead.routing.runs.run_results import SCANNED
from fairlead.wire.ids import uuid7, uuid7_ms

from support.gateway.platform_api import PLATFORM
from support.plain_http import plain_get

if TYPE_CHECKING:
    from runs.conftest import MakeRunFleet

    from fairlead.store.embedded_valkey.server import EmbeddedValkey

    from support.fixtures import RedisOf

pytestmark = pytest.mark.timeout(120)


async def test_a_page_reads_a_bounded_number_of_runs_and_its_cursor_leads_on(
    make_fleet: MakeRunFleet, own_valkey: EmbeddedValkey, redis_of: RedisOf
) -> None:
    fleet = make_fleet(own_valkey.url)
    node = fleet.node()
    run = await asyncio.to_thread(lambda: fleet.begin(agents=["nobody"]))
    store = await redis_of(own_valkey)
    # Newer ones, none of which has a row: as many look-ups as of runs that the caller may not see.
    others = [uuid7(uuid7_ms(run) + 1 + n, os.urandom(10)) for n in range(2 * SCANNED + 100)]
    await store.submit("ZADD", RECENT_RUNS, *(part for one in others for part in (0, one)))

    def page(cursor: str | None) -> tuple[list[str], str | None]:
        query = f"?cursor={cursor}" if cursor else ""
        answer = plain_get(f"{node.api}/v1/runs{query}", headers=PLATFORM, timeout=30).json()
        return [one["id"] for one in answer["runs"]], answer["cursor"]

    pages: list[list[str]] = []
    cursor = None
    while not pages or cursor:
        found, cursor = await asyncio.to_thread(page, cursor)
        pages.append(found)
    assert pages == [[], [], [run]]
    listed = await asyncio.to_thread(lambda: plain_get(f"{node.api}/v1/runs?limit=1", headers=PLATFORM).json())
    assert (listed["runs"], listed["cursor"]) == ([], others[-SCANNED])
