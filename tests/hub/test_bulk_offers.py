"""Offers of the lane `bulk`: a few in each turn of the event loop, in their order, whatever becomes of one of them."""

from __future__ import annotations

import asyncio

import pytest

from fairlead.bus.doorbell import CommandOffered
from fairlead.routing.delivery.bulk_offers import AT_ONCE, BulkOffers


def offer(number: int) -> CommandOffered:
    return CommandOffered("agent", f"c{number}", 1, 0, 0, "work", b"", "bulk", "never", 0)


async def test_others_have_their_turn_between_a_few_offers_and_the_next() -> None:
    delivered: list[str] = []
    bulk = BulkOffers(lambda one: delivered.append(one.command))
    count = 3 * AT_ONCE + 1
    for number in range(count):
        bulk.add(offer(number))
    assert not delivered, "the handler of doorbells goes on at once"
    reached = []
    while len(delivered) < count:
        await asyncio.sleep(0)
        reached.append(len(delivered))
    assert reached == [AT_ONCE, 2 * AT_ONCE, 3 * AT_ONCE, count]
    assert delivered == [f"c{number}" for number in range(count)]


async def test_an_offer_that_comes_later_is_delivered_too() -> None:
    delivered: list[str] = []
    bulk = BulkOffers(lambda one: delivered.append(one.command))
    for number in range(2):
        bulk.add(offer(number))
        await asyncio.sleep(0)
        assert len(delivered) == number + 1


async def test_an_offer_that_fails_holds_up_no_other(caplog: pytest.LogCaptureFixture) -> None:
    delivered: list[str] = []

    def deliver(one: CommandOffered) -> None:
        if one.command == "c0":
            raise ValueError("broken")
        delivered.append(one.command)

    bulk = BulkOffers(deliver)
    bulk.add(offer(0))
    bulk.add(offer(1))
    await asyncio.sleep(0)
    assert delivered == ["c1"]
    assert "delivering command c0 failed" in caplog.text
