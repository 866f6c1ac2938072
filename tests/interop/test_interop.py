"""The protocol is as documented: an agent in another language, written from docs/protocol.md alone, at real nodes.

Each test checks what the platform sees (all of the output, in order, once) and what the agent itself reports (how
often it ran something, which close codes it got). test_vectors.py plays the vectors to the same agent.
"""

from __future__ import annotations

import asyncio
import signal

import pytest

from fairlead.store.embedded_valkey.server import EmbeddedValkey
from fairlead.store.pipeliner import Pipeliner

from support.gateway_process import ServeProcess
from support.interop.foreign_agent import StartForeign
from support.interop.platform_api import ApiOf


def numbers(count: int) -> str:
    return "".join(f"{i}\n" for i in range(count))


async def test_a_command_streams_its_output(
    nodes: list[ServeProcess], api_of: ApiOf, start_foreign: StartForeign
) -> None:
    foreign = await start_foreign([nodes[0].link], "streams")
    await foreign.wait_for_line("welcome")
    api = api_of(nodes[1])
    text = "one\ntwo\nзачем 🙂\n\nno newline"
    output, end = await api.results(await api.start("streams", "echo", {"text": text}))
    assert (output, end["state"], end["payload"]) == (text, "ok", {"bytes": 0})
    # Nearly two windows: the chunks wait for credit, and the receipts free what they hold. The long line is cut.
    text = "".join(f"{n:0{size}}\n" for n, size in enumerate((150_000, 9, 70_000, 1, *[2_000] * 130)))
    output, end = await api.results(await api.start("streams", "echo", {"text": text}))
    assert (output == text, end["state"]) == (True, "ok")


async def test_an_unknown_method_is_refused(
    nodes: list[ServeProcess], api_of: ApiOf, start_foreign: StartForeign
) -> None:
    foreign = await start_foreign([nodes[0].link], "refuses")
    await foreign.wait_for_line("welcome")
    api = api_of(nodes[0])
    _, end = await api.results(await api.start("refuses", "dance"))
    assert (end["state"], end["error"]["code"]) == ("failed", "unknown_method")
    assert not foreign.all("run")


async def test_input_is_echoed(nodes: list[ServeProcess], api_of: ApiOf, start_foreign: StartForeign) -> None:
    foreign = await start_foreign([nodes[0].link], "hears")
    await foreign.wait_for_line("welcome")
    api = api_of(nodes[1])
    command = await api.start("hears", "echo", {"input": True})
    parts = [f"{n:04}".encode() * 16_384 for n in range(12)]  # 64 KiB each: three windows
    for n, part in enumerate(parts):
        async with asyncio.timeout(20):
            while (await api.http.post(f"/v1/commands/{command}/input?n={n}", content=part)).status_code == 503:
                await asyncio.sleep(0.05)
    answer = await api.http.post(f"/v1/commands/{command}/input?n={len(parts)}&end=true", content=b"")
    assert answer.is_success, answer.text
    output, end = await api.results(command)
    assert (output == b"".join(parts).decode(), end["payload"]) == (True, {"bytes": 12 * 65_536})


async def test_a_cancel_and_a_deadline_end_commands(
    nodes: list[ServeProcess], api_of: ApiOf, start_foreign: StartForeign
) -> None:
    foreign = await start_foreign([nodes[0].link], "stops")
    await foreign.wait_for_line("welcome")
    api = api_of(nodes[1])
    command = await api.start("stops", "count", {"n": 1_000_000, "pause": 10})
    await api.seen(command, 5)
    assert (await api.http.delete(f"/v1/commands/{command}")).is_success
    output, end = await api.results(command)
    assert output == numbers(output.count("\n"))
    assert (end["state"], end["error"]["code"]) == ("cancelled", "cancelled")  # not cancel_unconfirmed: the agent's own
    command = await api.start("stops", "count", {"n": 1_000_000, "pause": 10}, deadline=1)
    output, end = await api.results(command)
    assert output == numbers(output.count("\n"))
    assert (end["state"], end["error"]["code"]) == ("timeout", "deadline")
    assert "ms have passed" in end["error"]["message"]  # the agent's own words: the gateway would have come 2 s later


@pytest.mark.timeout(90)
async def test_a_cancel_ends_a_command_whose_output_nobody_reads(
    nodes: list[ServeProcess], api_of: ApiOf, start_foreign: StartForeign
) -> None:
    """100 MB into a window that nobody reads: the agent's own end arrives, at a cancel and at a deadline."""
    foreign = await start_foreign([nodes[0].link], "floods")
    await foreign.wait_for_line("welcome")
    api = api_of(nodes[1])
    for deadline in (None, 6):
        more = {"deadline": deadline} if deadline else {}
        command = await api.start("floods", "flood", {"bytes": 100_000_000}, retain="window", **more)
        await api.recorded(command, 64)  # the 4 MiB that the store holds of a window
        if deadline is None:
            assert (await api.http.delete(f"/v1/commands/{command}")).is_success
        _, end = await api.window_end(command)
        assert end["error"]["code"] == ("deadline" if deadline else "cancelled"), end
        assert (await api.http.get("/v1/agents/floods/link")).json()["commands"] == 0
    assert not foreign.all("violation")
    assert not foreign.all("closed")


async def test_a_result_too_large_for_a_message_is_an_error(
    nodes: list[ServeProcess], api_of: ApiOf, start_foreign: StartForeign
) -> None:
    foreign = await start_foreign([nodes[0].link], "large")
    await foreign.wait_for_line("welcome")
    api = api_of(nodes[0])
    _, end = await api.results(await api.start("large", "large", {"bytes": 774_142}))
    assert (end["state"], len(end["payload"])) == ("ok", 774_142)  # with its quotes the most that JSON takes
    _, end = await api.results(await api.start("large", "large", {"bytes": 774_143}))
    assert (end["state"], end["error"]["code"]) == ("failed", "result_too_large")
    _, end = await api.results(await api.start("large", "large", {"bytes": 3_000_000}))
    assert (end["state"], end["error"]["code"]) == ("failed", "result_too_large")
    assert not foreign.all("closed")


@pytest.mark.timeout(120)
async def test_a_thousand_commands_run_one_after_the_other(
    nodes: list[ServeProcess], api_of: ApiOf, start_foreign: StartForeign
) -> None:
    foreign = await start_foreign([nodes[0].link], "works")
    await foreign.wait_for_line("welcome")
    api = api_of(nodes[0])
    for n in range(1000):
        output, end = await api.results(await api.start("works", "echo", {"text": f"{n}\n"}))
        assert (output, end["state"]) == (f"{n}\n", "ok")
    await foreign.wait_for_line("run", 1000)  # its stdout is read apart from its results
    assert len({run["id"] for run in foreign.all("run")}) == len(foreign.all("run")) == 1000
    assert not foreign.all("closed")


async def test_an_event_is_stored(
    nodes: list[ServeProcess], shared_valkey: EmbeddedValkey, api_of: ApiOf, start_foreign: StartForeign
) -> None:
    foreign = await start_foreign([nodes[0].link], "tells")
    await foreign.wait_for_line("welcome")
    api = api_of(nodes[0])
    _, end = await api.results(await api.start("tells", "event", {"type": "interop.said", "body": {"x": 1}}))
    store = Pipeliner(shared_valkey.url)
    store.start()
    try:
        assert await store.wait_available(10)
        async with asyncio.timeout(10):
            while (
                end["payload"]["id"].encode() not in repr(await store.submit("XRANGE", "fl1:events", "-", "+")).encode()
            ):
                await asyncio.sleep(0.05)
    finally:
        await store.aclose()


@pytest.mark.parametrize("fault", ["killed", "drained", "superseded"])
async def test_a_stream_continues_after_a_lost_link(
    own_nodes: list[ServeProcess], api_of: ApiOf, start_foreign: StartForeign, fault: str
) -> None:
    """The link is lost in the middle of the output: all of it arrives, in order, once; the command ran once."""
    holder, other = own_nodes
    foreign = await start_foreign([holder.link, other.link], "moves")
    await foreign.wait_for_line("welcome")
    api = api_of(other)
    counted = await api.start("moves", "count", {"n": 400, "pause": 10})
    echoed = await api.start("moves", "echo", {"text": "a\n", "input": True})
    assert (await api.http.post(f"/v1/commands/{echoed}/input?n=0", content=b"b\n")).is_success
    await api.seen(counted, 50)
    await api.seen(echoed, 2)
    if fault == "killed":
        holder.process.kill()
    elif fault == "drained":
        holder.process.terminate()
    else:
        foreign.signal(signal.SIGUSR2)
    assert (await foreign.wait_for_line("welcome", 2))["resumed"]
    assert (await api.http.post(f"/v1/commands/{echoed}/input?n=1&end=true", content=b"c\n")).is_success
    output, end = await api.results(counted)
    assert (output, end["state"], end["payload"]) == (numbers(400), "ok", {"n": 400})
    output, end = await api.results(echoed)
    assert (output, end["state"]) == ("a\nb\nc\n", "ok")
    await foreign.wait_for_line("run", 2)
    assert sorted(run["id"] for run in foreign.all("run")) == sorted([counted, echoed])
    lost = await foreign.wait_for_line("closed")
    if fault == "killed":
        assert (lost["code"], lost["replaced"]) == (1006, False)
    elif fault == "drained":
        assert (await foreign.wait_for_line("drain"))["why"] == "shutdown"
        assert (lost["code"], lost["own"], lost["replaced"]) in ((1000, True, True), (4007, False, True))
        assert await asyncio.to_thread(holder.process.wait, 20) == 0
    else:
        assert (lost["code"], lost["own"], lost["replaced"]) == (4007, False, True)
    assert len(foreign.all("welcome")) == 2
    assert not foreign.all("violation")


async def test_a_killed_process_ends_with_outcome_unknown(
    nodes: list[ServeProcess], api_of: ApiOf, start_foreign: StartForeign
) -> None:
    foreign = await start_foreign([nodes[0].link], "dies")
    await foreign.wait_for_line("welcome")
    api = api_of(nodes[1])
    command = await api.start("dies", "count", {"n": 1_000_000, "pause": 10})
    await api.seen(command, 5)
    foreign.signal(signal.SIGKILL)
    await foreign.exit_code()
    successor = await start_foreign([nodes[1].link], "dies")
    await successor.wait_for_line("welcome")
    output, end = await api.results(command)
    assert output == numbers(output.count("\n"))
    assert (end["state"], end["error"]["code"]) == ("failed", "outcome_unknown")
    assert not successor.all("run")


async def test_a_terminated_process_cancels_its_commands(
    nodes: list[ServeProcess], api_of: ApiOf, start_foreign: StartForeign
) -> None:
    foreign = await start_foreign([nodes[0].link], "leaves")
    await foreign.wait_for_line("welcome")
    api = api_of(nodes[1])
    command = await api.start("leaves", "count", {"n": 1_000_000, "pause": 10})
    await api.seen(command, 5)
    foreign.signal(signal.SIGTERM)
    assert await foreign.exit_code() == 0
    _, end = await api.results(command)
    assert (end["state"], end["error"]["code"]) == ("cancelled", "cancelled")


async def test_another_boot_takes_over(nodes: list[ServeProcess], start_foreign: StartForeign) -> None:
    first = await start_foreign([nodes[0].link], "twin")
    await first.wait_for_line("welcome")
    second = await start_foreign([nodes[1].link], "twin")
    await second.wait_for_line("welcome")
    assert await first.exit_code() == 3
    assert first.all("closed")[-1]["code"] == 4507
    assert not second.all("closed")
