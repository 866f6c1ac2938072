"""Tasks end although Python 3.11 drops a cancellation now and then."""

from __future__ import annotations

import asyncio

from fairlead.store.cluster.running_tasks import cancel_all


async def sends_for_ever() -> None:
    """As redis-py does: what is waited for has always just ended."""
    while True:
        await asyncio.wait_for(asyncio.sleep(0), 60)


async def test_tasks_end_whose_cancellation_may_be_dropped() -> None:
    tasks = [asyncio.create_task(sends_for_ever()) for _ in range(50)]
    await asyncio.sleep(0.1)
    async with asyncio.timeout(60):
        await cancel_all(tasks)
    assert all(task.cancelled() for task in tasks)
