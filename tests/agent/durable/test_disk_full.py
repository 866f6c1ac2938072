"""A full disk: commands are refused, output ends its command, and no partial record remains."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fairlead.agent.journal.replay import replay
from fairlead.errors import Unavailable
from fairlead.wire.messages import Ack, Chunk, Event

from support.agent.durable_host import DurableHost
from support.agent.fixtures import Serve
from support.agent.flooding_agent import durable
from support.agent.scripted_gateway import Gateway
from support.waiting import until


async def test_a_full_disk_refuses_commands_until_it_has_space_again(host: DurableHost) -> None:
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
    # Nothing half-written stays behind. A killed process may leave the record that it is writing: one looks before.
    await until(lambda: not replay((host.memory / "journal").read_bytes()).torn)
    await host.killed()  # and there is a new disk
    again = await host.linked()
    await again.command("c9", "count", {"chunks": 1})
    assert (await again.end("c9")).state == "ok"


async def test_a_command_whose_output_cannot_be_written_ends(host: DurableHost) -> None:
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


async def test_after_a_failed_sync_the_journal_is_not_used_again(
    gateway: Gateway, tmp_path: Path, serve: Serve
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
    os.dup2(null, agent._journal._writer._file._fd)
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


FAILING = """
import resource, sys
from pathlib import Path
from fairlead.agent.journal.journal_file import JournalFile

folder = JournalFile(Path(sys.argv[1]))
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
