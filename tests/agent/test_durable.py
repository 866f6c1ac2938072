"""Agents with a journal: what a killed process leaves behind, in real processes against a scripted gateway."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fairlead.agent import Agent, Command
from fairlead.agent.errors import JournalFailed, JournalFull
from fairlead.agent.journal import LEAST, WASTE, Journal
from fairlead.agent.records import frame, replay
from fairlead.errors import ConfigError, Unavailable
from fairlead.wire.agent_link import Outbox
from fairlead.wire.messages import Ack, Chunk, Cmd, End, Event, Hello

if TYPE_CHECKING:
    from tests.agent.conftest import AgentProcess, Gateway, Link

AGENT = '''
import asyncio, resource, sys
from pathlib import Path
from fairlead.agent import Agent, Command
from fairlead.errors import Unavailable

here = Path(__file__).parent
agent = Agent(sys.argv[1], "edge-1", "token-1", journal=here / "memory")

def ran(command):
    with (here / "runs").open("a") as f:
        f.write(f"{command.id} {command.attempt}\\n")

@agent.command("count")
async def count(command: Command, chunks: int, hang: bool = False):
    ran(command)
    for n in range(chunks):
        yield f"{n}\\n"
    if hang:
        await asyncio.Event().wait()

@agent.command("read-then-hang")
async def read_then_hang(command: Command):
    ran(command)
    await command.stdin.read()
    await asyncio.Event().wait()

@agent.command("once-hung")
async def once_hung(command: Command) -> str:
    """Hangs in the first process that runs it."""
    ran(command)
    if len((here / "runs").read_text().splitlines()) == 1:
        await asyncio.Event().wait()
    return "done"

@agent.command("emit")
async def emit(count: int) -> list[str]:
    failed = []
    for n in range(count):
        try:
            agent.emit("happened", n)
        except Unavailable as e:
            failed.append(e.code)
    return failed

@agent.command("no-more-disk")
async def no_more_disk() -> None:
    """From now on a write beyond what the journal has fails, as on a full disk."""
    size = (here / "memory" / "journal").stat().st_size
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 200, resource.RLIM_INFINITY))

@agent.command("until-full")
async def until_full(command: Command):
    await no_more_disk()
    for n in range(100):
        await command.write("stdout", f"{n:050d}")

@agent.command("emit-when-full")
async def emit_when_full() -> list[str]:
    await no_more_disk()
    return await emit(10)

if __name__ == "__main__":
    agent.run()
'''


class Host:
    """One machine: the agent's program and its folder, however often the process is killed."""

    def __init__(self, gateway: Gateway, folder: Path, start: Callable[..., AgentProcess]) -> None:
        self.gateway = gateway
        self.folder = folder
        self.memory = folder / "memory"
        self._start = start
        (folder / "durable.py").write_text(AGENT)
        self.process: AgentProcess | None = None

    async def linked(self, **welcome: Any) -> Link:
        self.process = self._start(str(self.folder / "durable.py"), self.gateway.url)
        return await self.gateway.linked(**welcome)

    async def killed(self) -> None:
        assert self.process is not None
        self.process.signal(signal.SIGKILL)
        await self.process.exit_code()

    @property
    def runs(self) -> list[str]:
        path = self.folder / "runs"
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def host(gateway: Gateway, tmp_path: Path, agent_process: Callable[..., AgentProcess]) -> Host:
    return Host(gateway, tmp_path, agent_process)


def hello(link: Link) -> Hello:
    return link.of(Hello)[0]


# -- a process is killed ---------------------------------------------------------------------------


async def test_what_ran_ends_with_outcome_unknown_behind_its_chunks(host: Host) -> None:
    link = await host.linked()
    link.stores = False
    await link.command("c1", "count", {"chunks": 5, "hang": True})
    await link.until(lambda: len(link.of(Chunk, "c1")) == 5)
    await host.killed()
    again = await host.linked(have={"c1": 2})
    end = await again.end("c1")
    assert [(c.n, c.payload) for c in again.of(Chunk, "c1")] == [(n, b"%d\n" % n) for n in (2, 3, 4)]
    assert (end.state, end.total) == ("error", 5)
    assert end.error is not None
    assert end.error.code == "outcome_unknown"
    assert hello(again).caps.journal == hello(link).caps.journal != ""
    assert hello(again).boot != hello(link).boot
    assert hello(again).have == {}
    await again.command("c1", "count", {"chunks": 5}, attempt=2)
    await again.until(lambda: bool(again.of(Ack, "c1")))
    assert again.of(Ack, "c1")[0].state == "duplicate"
    assert host.runs == ["c1 1"]


async def test_what_had_ended_arrives_and_is_not_run_again(host: Host) -> None:
    link = await host.linked()
    link.stores = False
    await link.command("c1", "count", {"chunks": 3})
    await link.command("c2", "count", {"chunks": 0})
    first, second = await link.end("c1"), await link.end("c2")
    await host.killed()
    again = await host.linked(have={"c1": 0, "c2": 0})
    assert await again.end("c1") == first
    assert await again.end("c2") == second
    assert again.of(Chunk) == link.of(Chunk)
    await again.command("c1", "count", {"chunks": 3}, attempt=2)
    assert (await again.expect(Ack, "c1")).state == "duplicate"
    await host.killed()
    # Its end is stored, and that is remembered as well.
    third = await host.linked()
    await third.command("c1", "count", {"chunks": 3}, attempt=3)
    assert (await third.expect(Ack, "c1")).state == "duplicate"
    await third.command("c3", "count", {"chunks": 0})
    await third.end("c3")
    assert [end.id for end in third.of(End)] == ["c3"]
    assert host.runs == ["c1 1", "c2 1", "c3 1"]


async def test_what_welcome_does_not_name_is_dropped(host: Host) -> None:
    link = await host.linked()
    link.stores = False
    await link.command("c1", "count", {"chunks": 2})
    await link.command("c2", "count", {"chunks": 2, "hang": True})
    await link.end("c1")
    await link.until(lambda: len(link.of(Chunk, "c2")) == 2)
    await host.killed()
    for _ in range(2):
        again = await host.linked()
        await again.command("c1", "count", {"chunks": 2}, attempt=2)
        await again.command("c2", "count", {"chunks": 2}, attempt=2)
        await again.until(lambda: len(again.of(Ack)) == 2)  # noqa: B023
        assert [ack.state for ack in again.of(Ack)] == ["duplicate", "duplicate"]
        assert not again.of(Chunk)
        assert not again.of(End)
        await host.killed()
    assert replay((host.memory / "journal").read_bytes()).state.commands == {}


async def test_lost_results_are_a_gap_over_a_restart_too(host: Host) -> None:
    link = await host.linked()
    await link.command("c1", "count", {"chunks": 3, "hang": True})
    await link.until(lambda: len(link.of(Chunk, "c1")) == 3)
    await host.killed()
    again = await host.linked(have={"c1": 7})
    end = await again.end("c1")
    assert end.error is not None
    assert (end.error.code, end.total) == ("results_gap", 7)


async def test_events_come_until_they_are_stored(host: Host) -> None:
    link = await host.linked()
    await link.command("c1", "emit", {"count": 2})
    await link.end("c1")
    stored = [e.id for e in link.of(Event)]
    link.stores = False
    await link.command("c2", "emit", {"count": 3})
    await link.end("c2")
    await host.killed()
    again = await host.linked(have={"c2": 0})
    await again.until(lambda: len(again.of(Event)) == 3)
    assert again.of(Event) == link.of(Event)[2:]
    assert len(stored) == 2
    await again.command("c3", "count", {"chunks": 0})
    await again.end("c3")
    await host.killed()
    third = await host.linked()
    await third.command("c4", "count", {"chunks": 0})
    await third.end("c4")
    assert not third.of(Event)


async def test_a_command_is_in_the_file_before_its_ack(host: Host) -> None:
    link = await host.linked()
    for n in range(5):
        await link.command(f"c{n}", "count", {"chunks": 0, "hang": True}, traceparent="00-aa-bb-01", lane="bulk")
        await link.expect(Ack, f"c{n}")
        found = replay((host.memory / "journal").read_bytes()).state.commands[f"c{n}"]
        assert (found.cmd.method, found.cmd.lane, found.cmd.traceparent) == ("count", "bulk", "00-aa-bb-01")
        assert found.cmd.payload == b"", "what is never run again needs no arguments"


# -- retry: safe -----------------------------------------------------------------------------------


async def test_a_safe_command_of_which_nothing_came_is_begun_again_once(host: Host) -> None:
    link = await host.linked()
    await link.command("c1", "once-hung", retry="safe")
    await link.expect(Ack, "c1")
    async with asyncio.timeout(20):
        while host.runs != ["c1 1"]:
            await asyncio.sleep(0.01)
    await host.killed()
    again = await host.linked(have={"c1": 0})
    end = await again.end("c1")
    assert (end.state, end.payload) == ("ok", b'"done"')
    assert hello(again).have == {"c1": 0}
    assert not again.of(Ack)
    assert host.runs == ["c1 1", "c1 2"]


async def test_a_safe_command_is_not_begun_a_third_time(host: Host) -> None:
    link = await host.linked()
    await link.command("c1", "count", {"chunks": 0, "hang": True}, retry="safe")
    await link.expect(Ack, "c1")
    await host.killed()
    again = await host.linked(have={"c1": 0})
    await again.command("c2", "count", {"chunks": 0})
    await again.end("c2")
    await host.killed()
    third = await host.linked(have={"c1": 0})
    end = await third.end("c1")
    assert end.error is not None
    assert end.error.code == "outcome_unknown"
    assert host.runs.count("c1 2") == 1


async def test_a_safe_command_that_wrote_or_read_is_not_begun_again(host: Host) -> None:
    link = await host.linked()
    await link.command("c1", "count", {"chunks": 1, "hang": True}, retry="safe")
    await link.command("c2", "read-then-hang", retry="safe")
    await link.feed("c2", b"x")
    await link.until(lambda: bool(link.of(Chunk, "c1")))
    memory = host.memory / "journal"

    def took() -> bool:
        return replay(memory.read_bytes()).state.commands["c2"].spent

    async with asyncio.timeout(20):
        while not took():
            await asyncio.sleep(0.02)
    await host.killed()
    again = await host.linked(have={"c1": 1, "c2": 0})
    for command in ("c1", "c2"):
        end = await again.end(command)
        assert end.error is not None
        assert end.error.code == "outcome_unknown"
    assert host.runs == ["c1 1", "c2 1"]


async def test_a_safe_command_that_nobody_wants_any_more_is_not_begun_again(host: Host) -> None:
    link = await host.linked()
    await link.command("c1", "count", {"chunks": 0, "hang": True}, retry="safe")
    await link.command("c2", "count", {"chunks": 0, "hang": True}, retry="safe", deadline=100)
    await link.expect(Ack, "c1")
    await link.end("c2")
    await host.killed()
    again = await host.linked()
    await again.command("c3", "count", {"chunks": 0})
    await again.end("c3")
    assert [end.id for end in again.of(End)] == ["c3"]
    assert "c1 2" not in host.runs


# -- the folder ------------------------------------------------------------------------------------


async def test_a_lost_folder_is_another_memory(host: Host) -> None:
    link = await host.linked()
    await link.command("c1", "count", {"chunks": 1})
    await link.end("c1")
    await host.killed()
    for path in host.memory.iterdir():
        path.unlink()
    again = await host.linked()
    assert hello(again).caps.journal not in ("", hello(link).caps.journal)
    await again.command("c1", "count", {"chunks": 1}, attempt=2)
    assert (await again.expect(Ack, "c1")).state == "accepted"


async def test_a_damaged_folder_is_another_memory_that_keeps_its_events(host: Host) -> None:
    link = await host.linked()
    link.stores = False
    await link.command("c1", "emit", {"count": 2})
    await link.end("c1")
    await link.command("c2", "count", {"chunks": 1})
    await link.end("c2")
    await host.killed()
    file = host.memory / "journal"
    data = bytearray(file.read_bytes())
    data[data.index(b"count")] ^= 1
    file.write_bytes(data)
    again = await host.linked()
    await again.until(lambda: len(again.of(Event)) == 2)
    assert again.of(Event) == link.of(Event)
    assert hello(again).caps.journal not in ("", hello(link).caps.journal)
    await again.command("c1", "count", {"chunks": 0}, attempt=2)
    assert (await again.expect(Ack, "c1")).state == "accepted"
    assert host.process is not None
    assert re.search(r"damaged: the record at octet \d+ is damaged", host.process.log)


async def test_a_torn_tail_is_cut(host: Host) -> None:
    link = await host.linked()
    link.stores = False
    await link.command("c1", "count", {"chunks": 2})
    await link.end("c1")
    await host.killed()
    file = host.memory / "journal"
    with file.open("ab") as f:
        f.write(frame(Chunk(id="c1", n=2, kind="stdout", payload=b"x" * 99))[:-20])
    again = await host.linked(have={"c1": 0})
    assert (await again.end("c1")).state == "ok"
    assert hello(again).caps.journal == hello(link).caps.journal
    assert not replay(file.read_bytes()).torn


async def test_two_agents_cannot_share_a_folder(host: Host, agent_process: Callable[..., AgentProcess]) -> None:
    await host.linked()
    assert host.process is not None
    first = host.process
    second = agent_process(
        "-m", "fairlead", "agent", "run", "--url", host.gateway.url, "--id", "edge-1", "--journal", str(host.memory)
    )  # fmt: skip
    assert await second.exit_code() == 2
    assert f"in use by process {first.pid}: each agent needs its own" in second.log
    with pytest.raises(ConfigError, match=f"in use by process {first.pid}"):
        Journal(host.memory, "edge-1")


async def test_a_folder_belongs_to_one_agent(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "deep" / "memory", "edge-1")
    assert (tmp_path / "deep" / "memory").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "deep" / "memory" / "journal").stat().st_mode & 0o777 == 0o600
    with pytest.raises(ConfigError, match=f"in use by process {os.getpid()}"):
        Journal(tmp_path / "deep" / "memory", "edge-1")
    await journal.close()
    with pytest.raises(ConfigError, match="'edge-1', not of 'edge-2'"):
        Journal(tmp_path / "deep" / "memory", "edge-2")
    await Journal(tmp_path / "deep" / "memory", "edge-1").close()
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot be used"):
        Journal(tmp_path / "file", "edge-1")
    with pytest.raises(ConfigError, match=str(LEAST)):
        Journal(tmp_path / "small", "edge-1", LEAST - 1)


async def test_a_journal_of_a_later_version_is_left_alone(tmp_path: Path) -> None:
    await Journal(tmp_path, "edge-1").close()
    file = tmp_path / "journal"
    head = replay(file.read_bytes()).state.head
    assert head is not None
    later = frame(type(head)(2, head.journal, head.agent))
    file.write_bytes(later)
    with pytest.raises(ConfigError, match="version 2"):
        Journal(tmp_path, "edge-1")
    assert file.read_bytes() == later


# -- a full disk -----------------------------------------------------------------------------------


async def test_a_full_disk_refuses_ends_and_recovers(host: Host) -> None:
    link = await host.linked()
    await link.command("c1", "count", {"chunks": 3, "hang": True})
    await link.until(lambda: len(link.of(Chunk, "c1")) == 3)
    await link.command("slow", "no-more-disk")
    await link.end("slow")
    fill = 0
    while not (refused := [ack for ack in link.of(Ack) if ack.state == "refused"]):
        fill += 1
        await link.command(f"f{fill}", "count", {"chunks": 0})
        await link.expect(Ack, f"f{fill}")
    assert refused[0].error is not None
    assert (refused[0].error.code, refused[0].error.temporary) == ("journal_failed", True)
    assert "cannot be written: File too large" in refused[0].error.message
    await link.cancel("c1")
    assert (await link.end("c1")).state == "cancelled", "an end is sent though it cannot be kept"
    await host.killed()
    # Nothing half-written is left behind, and there is a new disk.
    assert not replay((host.memory / "journal").read_bytes()).torn
    again = await host.linked()
    await again.command("c9", "count", {"chunks": 1})
    assert (await again.end("c9")).state == "ok"


async def test_output_that_cannot_be_kept_ends_its_command(host: Host) -> None:
    link = await host.linked()
    await link.command("c1", "until-full")
    end = await link.end("c1")
    assert end.error is not None
    assert (end.state, end.error.code, end.error.temporary) == ("error", "journal_failed", True)
    assert end.total == len(link.of(Chunk, "c1")) < 10
    await host.killed()
    again = await host.linked()
    await again.command("c2", "emit-when-full")
    end = await again.end("c2")
    assert b"journal_failed" in end.payload
    assert len(again.of(Event)) == 10 - end.payload.count(b"journal_failed") < 5


async def test_a_disk_that_cannot_sync_is_trusted_no_more(
    gateway: Gateway, tmp_path: Path, serve: Callable[[Agent], Any]
) -> None:
    """/dev/null takes every write and no sync."""
    agent = durable(gateway, tmp_path)

    @agent.command("blocking")
    def blocking() -> None:
        pass

    serve(agent)
    link = await gateway.linked()
    await link.command("c1", "flood", {"size": 1 << 30})
    await link.expect(Chunk, "c1")
    assert agent._journal is not None
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, agent._journal._folder._fd)
    os.close(null)
    for n in range(80):  # more than there are places for threads: each is given back
        await link.command(f"r{n}", "blocking")
        ack = await link.expect(Ack, f"r{n}")
        assert ack.error is not None
        assert (ack.state, ack.error.code, ack.error.temporary) == ("refused", "journal_failed", True)
    end = await link.end("c1")
    assert end.error is not None
    assert end.error.code == "journal_failed"
    with pytest.raises(Unavailable, match="an earlier sync failed"):
        agent.emit("happened")


# -- a full journal, in this process ---------------------------------------------------------------


class Floods:
    """Handlers that write far more than the journal takes."""

    SIZE = 1 << 20

    def __init__(self, agent: Agent) -> None:
        agent.command("flood")(self.flood)
        agent.command("nothing")(self.nothing)

    async def flood(self, command: Command, size: int = SIZE) -> AsyncIterator[bytes]:
        for n in range(size >> 16):
            yield n.to_bytes(4, "big") * (1 << 14)

    async def nothing(self) -> None:
        pass


def durable(gateway: Gateway, folder: Path, limit: int = LEAST) -> Agent:
    agent = Agent(gateway.url, "edge-1", "token-1", journal=folder, journal_limit=limit)
    Floods(agent)
    return agent


async def test_a_full_journal_refuses_and_lets_writers_wait(
    gateway: Gateway, tmp_path: Path, serve: Callable[[Agent], Any]
) -> None:
    agent = durable(gateway, tmp_path)
    serve(agent)
    link = await gateway.linked()
    link.stores = False
    streams = 48
    for n in range(streams):
        await link.command(f"c{n}", "flood")
    file = tmp_path / "journal"
    async with asyncio.timeout(20):
        while file.stat().st_size < LEAST:
            await asyncio.sleep(0.01)
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
    assert file.stat().st_size < LEAST + (64 << 10) + 1000
    # The gateway stores again, and all goes on.
    link.stores = True
    await link.store(link.unstored)
    for n in range(streams):
        end = await link.end(f"c{n}")
        assert end.state == "ok"
        assert link.output(f"c{n}") == b"".join(n.to_bytes(4, "big") * (1 << 14) for n in range(16))
    assert file.stat().st_size < LEAST + (64 << 10) + streams * 200
    await link.command("last", "nothing")
    assert (await link.end("last")).state == "ok"


async def test_what_is_stored_is_left_out_of_the_file(
    gateway: Gateway, tmp_path: Path, serve: Callable[[Agent], Any]
) -> None:
    task = serve(agent := durable(gateway, tmp_path, 64 << 20))
    link = await gateway.linked()
    await link.command("c1", "flood", {"size": 48 << 20})
    file, largest = tmp_path / "journal", 0
    while not link.of(End, "c1"):
        largest = max(largest, file.stat().st_size)
        await asyncio.sleep(0.005)
    # It grows while it is rewritten, by what a busy machine takes in until its disk has synced.
    assert largest < 24 << 20
    async with asyncio.timeout(20):
        while file.stat().st_size > WASTE * 2:
            await asyncio.sleep(0.01)
    agent.stop()
    async with asyncio.timeout(20):
        await task
    state = replay(file.read_bytes()).state
    assert list(state.finished) == ["c1"]
    assert not state.commands


async def test_rewriting_loses_nothing_that_comes_meanwhile(tmp_path: Path) -> None:
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


async def test_what_a_running_command_wrote_survives_a_rewriting_and_a_kill(host: Host) -> None:
    link = await host.linked()
    await link.command("c1", "count", {"chunks": 40_000, "hang": True})
    await link.until(lambda: len(link.of(Chunk, "c1")) == 40_000)
    await host.killed()
    again = await host.linked(have={"c1": 39_998})
    end = await again.end("c1")
    assert [c.payload for c in again.of(Chunk)] == [b"39998\n", b"39999\n"]
    assert end.total == 40_000


# -- admission -------------------------------------------------------------------------------------


async def test_a_cancel_and_a_repetition_that_overtake_the_disk(
    gateway: Gateway, tmp_path: Path, serve: Callable[[Agent], Any]
) -> None:
    serve(durable(gateway, tmp_path))
    link = await gateway.linked()
    await link.command("c1", "flood", {"size": 1 << 30})
    await link.command("c1", "flood", {"size": 1 << 30}, attempt=2)
    await link.cancel("c1")
    end = await link.end("c1")
    assert end.state == "cancelled"
    await link.until(lambda: len(link.of(Ack)) == 2)
    assert [ack.state for ack in link.of(Ack)] == ["accepted", "duplicate"]
    assert end.total == 0, "it was cancelled before the disk had it"


async def test_an_agent_serves_twice(gateway: Gateway, tmp_path: Path, serve: Callable[[Agent], Any]) -> None:
    """What is emitted before, between and in the two lives arrives; the memory is the same."""
    agent = durable(gateway, tmp_path)
    agent.emit("before")
    task = serve(agent)
    link = await gateway.linked()
    link.stores = False
    await link.expect(Event)
    agent.emit("during")
    agent.stop()
    await link.closed()
    await task
    agent.emit("between")
    serve(agent)
    again = await gateway.linked()
    await again.until(lambda: len(again.of(Event)) == 3)
    assert [e.type for e in again.of(Event)] == ["before", "during", "between"]
    assert hello(again).caps.journal == hello(link).caps.journal


async def test_a_stopped_agent_reports_what_it_cancelled_after_its_restart(
    gateway: Gateway, tmp_path: Path, serve: Callable[[Agent], Any]
) -> None:
    task = serve(agent := durable(gateway, tmp_path))
    link = await gateway.linked()
    link.stores = False
    await link.command("c1", "flood", {"size": 1 << 30})
    await link.expect(Chunk, "c1")
    agent.stop()
    await link.closed()
    await task
    made = len(link.of(Chunk, "c1"))
    serve(durable(gateway, tmp_path))
    again = await gateway.linked(have={"c1": 1})
    end = await again.end("c1")
    assert (end.state, end.total) == ("cancelled", made)
    assert len(again.of(Chunk)) == made - 1


async def test_accepts_are_synced_together(tmp_path: Path) -> None:
    journal = Journal(tmp_path, "edge-1")
    journal.start(lambda: None)
    waiters = [journal.accept(Cmd(id=f"c{n}", method="m")) for n in range(300)]
    assert not any(waiter.done() for waiter in waiters)
    async with asyncio.timeout(20):
        await asyncio.gather(*waiters)
    assert len(replay((tmp_path / "journal").read_bytes()).state.commands) == 300
    await journal.close()
    with pytest.raises(JournalFailed):
        journal.keep(Event(id="e1", type="t"))


async def test_a_quarter_is_kept_for_output(tmp_path: Path) -> None:
    """Commands that may begin again hold their arguments; they must not fill the journal that they write into."""
    journal = Journal(tmp_path, "edge-1", LEAST)
    journal.start(lambda: None)
    accepted = 0
    with pytest.raises(JournalFull):  # noqa: PT012
        while True:
            await journal.accept(Cmd(id=f"c{accepted}", method="m", payload=b"x" * 500_000, retry="safe"))
            accepted += 1
    assert LEAST * 5 // 8 < accepted * 500_000 < LEAST * 7 // 8
    assert journal.has_room
    await journal.close()


FAILING = """
import resource, sys
from pathlib import Path
from fairlead.agent.folder import Folder

folder = Folder(Path(sys.argv[1]))
folder.replace(folder.prepare([b"head"]), 0)
folder.append(b"x" * 90)
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
try:
    folder.append(b"y" * 20)
except OSError as e:
    print(e.strerror, folder.size)
folder.append(b"z" * 6)
"""


def test_a_failed_write_leaves_nothing_behind(tmp_path: Path) -> None:
    """Six of its octets fit. In a child, since a limit cannot be raised again."""
    done = subprocess.run(
        [sys.executable, "-c", FAILING, str(tmp_path)], check=True, capture_output=True, text=True, timeout=30
    )
    assert done.stdout == "File too large 94\n"
    assert (tmp_path / "journal").read_bytes() == b"head" + b"x" * 90 + b"z" * 6
