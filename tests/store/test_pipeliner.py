"""The pipeliner and a server that answers: order, batches, error replies, scripts and cancelled calls."""

from __future__ import annotations

import asyncio

import pytest

from fairlead.errors import BusUnavailable, NotAnswered, StoreFull
from fairlead.store.embedded_valkey.server import EmbeddedValkey
from fairlead.store.errors import ScriptError, StoreError
from fairlead.store.pipeliner import Pipeliner
from fairlead.store.reply import Reply, integer, items, octets, table

from support.store_calls import BROKEN, COMMANDS, COUNT, REFUSE, Connect, failure


async def test_replies_keep_the_order_of_submission(pipeliner: Pipeliner) -> None:
    async def caller(name: int) -> list[int]:
        return [integer(await pipeliner.submit("RPUSH", "list", f"{name}:{turn}")) for turn in range(20)]

    lengths = await asyncio.gather(*(caller(name) for name in range(100)))

    pushed = [octets(value).decode() for value in items(await pipeliner.submit("LRANGE", "list", 0, -1))]
    assert len(pushed) == 2000
    for name, places in enumerate(lengths):
        # Each caller was told the very place its value took, and its values follow each other.
        assert [pushed[place - 1] for place in places] == [f"{name}:{turn}" for turn in range(20)]


async def test_an_error_reply_fails_only_its_own_call(pipeliner: Pipeliner) -> None:
    before = pipeliner.submit("SET", "key", "text")
    wrong = pipeliner.submit("LPUSH", "key", "x")
    after = pipeliner.submit("GET", "key")
    assert await before == b"OK"
    with pytest.raises(StoreError, match="WRONGTYPE") as caught:
        await wrong
    assert caught.value.reply_code == "WRONGTYPE"
    assert await after == b"text"
    assert pipeliner.available


async def test_value_of_another_type_is_told_with_its_keys(pipeliner: Pipeliner) -> None:
    keys: list[bytes] = []
    pipeliner.on_wrong_type = keys.extend
    for key in ("text", "number"):
        await pipeliner.submit("RPUSH", key, "x")
    with pytest.raises(StoreError, match=r"WRONGTYPE .*\(keys: text\)"):
        await pipeliner.submit("GET", "text")
    with pytest.raises(ScriptError, match=r"WRONGTYPE .*\(keys: number\)"):
        await pipeliner.run(COUNT, ["number"], [2])
    good, wrong = await pipeliner.submit_each((("GET", "other"), ("GET", "text")))
    assert good is None
    assert "(keys: text)" in str(wrong)
    assert keys == [b"text", b"number", b"text"]


async def test_a_script_answers_with_values_and_with_errors(pipeliner: Pipeliner) -> None:
    first, refused, second = (
        pipeliner.run(COUNT, ["number"], [2]),
        pipeliner.run(REFUSE, ["number"], [7]),
        pipeliner.run(COUNT, ["number"], [3]),
    )
    assert [await first, await second] == [2, 5]
    with pytest.raises(ScriptError, match="script refuse: STALE generation 7") as caught:
        await refused
    assert (caught.value.reply_code, caught.value.script) == ("STALE", "refuse")


async def test_a_script_runs_for_many_in_one_call_and_an_error_affects_only_its_own_answer(
    pipeliner: Pipeliner,
) -> None:
    sizes: list[int] = []
    pipeliner.on_batch = lambda seconds, commands: sizes.append(commands)
    await pipeliner.submit("SET", "number 1", "no number")
    sizes.clear()
    many = COMMANDS.batch * 3 // 4
    calls = [pipeliner.run_each(COUNT, [([f"number {n}"], [n]) for n in range(many)]) for _ in range(2)]
    after = pipeliner.submit("GET", "number 2")
    first, second = [await call for call in calls]
    refused = [replies.pop(1) for replies in (first, second)]
    assert first == [n for n in range(many) if n != 1]
    assert second == [2 * n for n in range(many) if n != 1]
    for error in refused:
        assert isinstance(error, ScriptError)
        assert "not an integer" in error.message
    assert await after == b"4"
    assert sizes == [many, many + 1], "a batch holds whole calls, and their commands are what it is bounded in"
    assert pipeliner.available


async def test_a_flushed_script_is_loaded_again_and_runs_once_for_each_of_many(pipeliner: Pipeliner) -> None:
    calls = [(["number"], [1])] * 3
    assert await pipeliner.run_each(COUNT, calls) == [1, 2, 3]
    await pipeliner.submit("SCRIPT", "FLUSH")
    first, second = pipeliner.run_each(COUNT, calls), pipeliner.run_each(COUNT, calls)
    assert [await first, await second] == [[4, 5, 6], [7, 8, 9]]


async def test_a_script_that_the_server_refuses_is_an_error_for_each_of_many(pipeliner: Pipeliner) -> None:
    refused = await pipeliner.run_each(BROKEN, [(["number"], [])] * 2)
    assert [isinstance(error, ScriptError) and error.reply_code for error in refused] == ["NOSCRIPT"] * 2
    assert await pipeliner.run_each(COUNT, [(["number"], [1])]) == [1]


async def test_a_script_that_does_not_compile_fails_with_the_reason(pipeliner: Pipeliner) -> None:
    broken, sound = pipeliner.run(BROKEN, ["number"], []), pipeliner.run(COUNT, ["number"], [1])
    with pytest.raises(ScriptError, match=r"script broken: .*compiling"):
        await broken
    assert await sound == 1


async def test_a_call_whose_script_was_flushed_fails_when_the_rest_of_its_batch_fails(
    own_valkey: EmbeddedValkey, connect: Connect
) -> None:
    """Such a call waits to be repeated while its batch goes on; it was lost for ever when that batch failed."""
    pipeliner, other = await connect(own_valkey.url), await connect(own_valkey.url)
    assert await pipeliner.run(COUNT, ["number"], [1]) == 1
    await other.submit("SCRIPT", "FLUSH")
    flushed = pipeliner.run(COUNT, ["number"], [1]), pipeliner.run_each(COUNT, [(["number"], [1])] * 2)
    endless = pipeliner.submit("BLPOP", "a list that stays empty", 0)
    assert isinstance(await failure(endless), NotAnswered)
    for call in flushed:
        error = await failure(call)
        assert isinstance(error, BusUnavailable)
        assert not isinstance(error, NotAnswered), "the server has said that it did not execute these"
    assert await pipeliner.wait_available(5)
    assert await pipeliner.run(COUNT, ["number"], [1]) == 2, "none of them was executed"


async def test_many_commands_are_one_call_and_an_error_affects_only_its_own_answer(pipeliner: Pipeliner) -> None:
    await pipeliner.submit("SET", "text", "x")
    commands = [("RPUSH", "list", "a"), ("RPUSH", "text", "b"), ("RPUSH", "list", "c")]
    first, wrong, last = await pipeliner.submit_each(commands)
    assert (first, last) == (1, 2)
    assert isinstance(wrong, StoreError)


async def test_a_flushed_script_is_loaded_again_and_runs_once(pipeliner: Pipeliner) -> None:
    assert await pipeliner.run(COUNT, ["number"], [1]) == 1
    await pipeliner.submit("SCRIPT", "FLUSH")
    calls = [pipeliner.run(COUNT, ["number"], [1]) for _ in range(300)]
    assert await asyncio.gather(*calls) == list(range(2, 302))


async def test_a_cancelled_call_does_not_disturb_its_neighbours(pipeliner: Pipeliner) -> None:
    first, given_up, last = (pipeliner.submit("INCR", "number") for _ in range(3))
    given_up.cancel()
    assert [await first, await last] == [1, 3]


async def test_hashes_are_returned_as_flat_lists(pipeliner: Pipeliner) -> None:
    await pipeliner.submit("HSET", "hash", "a", 1, "b", 2.5)
    assert table(await pipeliner.submit("HGETALL", "hash")) == {b"a": b"1", b"b": b"2.5"}
    with pytest.raises(StoreError, match="expected a list"):
        table(await pipeliner.submit("GET", "nothing"))


async def test_what_one_turn_of_the_event_loop_submits_is_one_batch(pipeliner: Pipeliner) -> None:
    await pipeliner.submit("PING")
    batches = pipeliner.batches
    later: list[asyncio.Future[Reply]] = []
    loop = asyncio.get_running_loop()
    first = pipeliner.submit("SET", "a", 1)
    loop.call_soon(lambda: later.append(pipeliner.submit("SET", "b", 2)))  # it runs after the pipeliner was woken
    assert await first == b"OK"
    assert [await one for one in later] == [b"OK"]
    assert pipeliner.batches == batches + 1


async def test_what_must_be_written_is_although_the_memory_became_full_a_moment_ago(
    own_valkey: EmbeddedValkey, connect: Connect
) -> None:
    pipeliner = await connect(own_valkey.url)
    await pipeliner.submit("CONFIG", "SET", "maxmemory", "1000")
    assert not pipeliner.low_memory  # as a node that has not looked since then
    written, refused = pipeliner.write("ZADD", "times", 1, "member"), pipeliner.submit("SET", "key", "value")
    with pytest.raises(StoreFull):
        await refused
    assert await written == 1
    assert pipeliner.low_memory
    assert await pipeliner.submit("ZSCORE", "times", "member") == b"1"
