"""The journal's folder: lost, damaged, torn, shared, of another agent or of a later version."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from fairlead.agent.journal.journal import LEAST_LIMIT, Journal
from fairlead.agent.journal.records import frame
from fairlead.agent.journal.replay import replay
from fairlead.errors import ConfigError
from fairlead.wire.messages import Ack, Chunk, Event

from support.agent.durable_host import DurableHost, hello
from support.agent.fixtures import StartAgentProcess


async def test_a_lost_journal_is_replaced_by_one_with_a_new_id(host: DurableHost) -> None:
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


async def test_a_damaged_journal_gets_a_new_id_and_keeps_its_events(host: DurableHost) -> None:
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
    assert re.search(r"damaged: the record at byte \d+ is damaged", host.process.log)


async def test_a_torn_tail_is_cut(host: DurableHost) -> None:
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


async def test_two_agents_cannot_share_a_folder(host: DurableHost, agent_process: StartAgentProcess) -> None:
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


async def test_the_folder_of_another_agent_is_refused(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "deep" / "memory", "edge-1")
    assert (tmp_path / "deep" / "memory").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "deep" / "memory" / "journal").stat().st_mode & 0o777 == 0o600
    with pytest.raises(ConfigError, match=f"in use by process {os.getpid()}"):
        Journal(tmp_path / "deep" / "memory", "edge-1")
    await journal.close()
    with pytest.raises(ConfigError, match="'edge-1', not to 'edge-2'"):
        Journal(tmp_path / "deep" / "memory", "edge-2")
    await Journal(tmp_path / "deep" / "memory", "edge-1").close()
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot be used"):
        Journal(tmp_path / "file", "edge-1")
    with pytest.raises(ConfigError, match=str(LEAST_LIMIT)):
        Journal(tmp_path / "small", "edge-1", LEAST_LIMIT - 1)


async def test_a_journal_of_a_later_version_is_refused_and_not_changed(tmp_path: Path) -> None:
    await Journal(tmp_path, "edge-1").close()
    file = tmp_path / "journal"
    head = replay(file.read_bytes()).state.header
    assert head is not None
    later = frame(type(head)(2, head.journal, head.agent))
    file.write_bytes(later)
    with pytest.raises(ConfigError, match="version 2"):
        Journal(tmp_path, "edge-1")
    assert file.read_bytes() == later
