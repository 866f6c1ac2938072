"""The limit of the journal: what is refused, what waits, and that stored results are removed from the file."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from fairlead.agent.errors import JournalFull
from fairlead.agent.journal.journal import LEAST_LIMIT, Journal
from fairlead.agent.journal.replay import replay
from fairlead.agent.journal.writer import WASTE
from fairlead.errors import Unavailable
from fairlead.wire.messages import Ack, Chunk, Cmd, Event
from fairlead.wire.outbox import Outbox

from support.agent.durable_host import DurableHost
from support.agent.fixtures import Serve
from support.agent.flooding_agent import durable
from support.agent.scripted_gateway import Gateway
from support.waiting import until


async def test_a_full_journal_refuses_commands_and_makes_writers_wait(
    gateway: Gateway, tmp_path: Path, serve: Serve
) -> None:
    agent = durable(gateway, tmp_path)
    serve(agent)
    link = await gateway.linked()
    link.stores = False
    streams = 48
    for n in range(streams):
        await link.command(f"c{n}", "flood")
    file = tmp_path / "journal"
    await until(lambda: file.stat().st_size >= LEAST_LIMIT)
    await link.until(lambda: len(link.of(Ack)) == streams)
    refused = 0
    while True:
        refused += 1
        await link.command(f"r{refused}", "nothing")
        ack = await link.expect(Ack, f"r{refused}")
        if ack.state == "refused":
            break
    assert ack.error is not None
    assert (ack.error.code, ack.error.temporary) == ("journal_full", True)
    with pytest.raises(Unavailable, match="full"):
        agent.emit("happened")
    assert file.stat().st_size < LEAST_LIMIT + (64 << 10) + 1000
    # The gateway stores again, and all goes on.
    link.stores = True
    await link.store(link.unstored)
    for n in range(streams):
        end = await link.end(f"c{n}")
        assert end.state == "ok"
        assert link.output(f"c{n}") == b"".join(n.to_bytes(4, "big") * (1 << 14) for n in range(16))
    assert file.stat().st_size < LEAST_LIMIT + (64 << 10) + streams * 200
    await link.command("last", "nothing")
    assert (await link.end("last")).state == "ok"


async def test_a_rewritten_journal_leaves_out_what_is_stored(gateway: Gateway, tmp_path: Path, serve: Serve) -> None:
    task = serve(agent := durable(gateway, tmp_path, 64 << 20))
    link = await gateway.linked()
    await link.command("c1", "flood", {"size": 1 << 30})
    file = tmp_path / "journal"
    # How large it grows meanwhile depends on the disk: it takes in what comes until the disk has synced.
    inodes = {file.stat().st_ino}
    async with asyncio.timeout(40):
        while len(inodes) < 4:
            inodes.add(file.stat().st_ino)
            await asyncio.sleep(0.005)
    await link.cancel("c1")
    await link.end("c1")
    await until(lambda: file.stat().st_size <= WASTE * 2)
    agent.stop()
    async with asyncio.timeout(20):
        await task
    state = replay(file.read_bytes()).state
    assert list(state.finished) == ["c1"]
    assert not state.commands


async def test_records_written_during_a_rewrite_are_kept(tmp_path: Path) -> None:
    """Chunks are kept while the file is rewritten under them, over and over."""
    journal = Journal(tmp_path, "edge-1", 64 << 20)
    outbox = Outbox(journal)
    journal.start(lambda: None)
    for name in ("a", "b"):
        cmd = Cmd(id=name, method="m", credit=1 << 40)
        await journal.accept(cmd)
        outbox.opened(cmd)
    first = (tmp_path / "journal").stat().st_ino
    inodes = {first}
    for n in range(1500):
        made = outbox.streams["a"].chunk("stdout", b"%d" % n * 4000)
        if n % 100 == 0:
            outbox.streams["b"].chunk("stdout", b"%d" % n)
            outbox.occurred(Event(id=f"e{n}", type="t"))
        outbox.stored(made)
        if n % 50 == 0:
            await asyncio.sleep(0.01)
            inodes.add((tmp_path / "journal").stat().st_ino)
    assert len(inodes) > 1, "it was never rewritten"
    # As after a kill: nothing is closed, the file is read as it is.
    found = replay((tmp_path / "journal").read_bytes())
    assert not found.damage
    assert not found.torn
    assert found.state.commands["a"].next == 1500
    assert [c.payload for c, _ in found.state.commands["b"].chunks] == [b"%d" % n for n in range(0, 1500, 100)]
    assert list(found.state.events) == [f"e{n}" for n in range(0, 1500, 100)]
    await journal.close()


async def test_output_of_a_running_command_survives_a_rewrite_and_a_kill(host: DurableHost) -> None:
    link = await host.linked()
    await link.command("c1", "count", {"chunks": 40_000, "hang": True})
    await link.until(lambda: len(link.heard) >= 40_000 and len(link.of(Chunk, "c1")) == 40_000)
    await host.killed()
    again = await host.linked(have={"c1": 39_998})
    end = await again.end("c1")
    assert [c.payload for c in again.of(Chunk)] == [b"39998\n", b"39999\n"]
    assert end.total == 40_000


async def test_a_quarter_of_the_journal_is_reserved_for_output(tmp_path: Path) -> None:
    """Commands that may begin again hold their arguments; they must not fill the journal that they write into."""
    journal = Journal(tmp_path, "edge-1", LEAST_LIMIT)
    journal.start(lambda: None)
    accepted = 0
    with pytest.raises(JournalFull):  # noqa: PT012
        while True:
            await journal.accept(Cmd(id=f"c{accepted}", method="m", payload=b"x" * 500_000, retry="safe"))
            accepted += 1
    assert LEAST_LIMIT * 5 // 8 < accepted * 500_000 < LEAST_LIMIT * 7 // 8
    assert journal.has_room
    await journal.close()
