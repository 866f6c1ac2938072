"""Recordings of terminals: a real node, agents that say exactly what a test wants, and the shipped agent and CLI."""

from __future__ import annotations

import asyncio
import base64
import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.routing.delivery.terminal_recording import TerminalRecording
from fairlead.store.embedded_valkey.server import EmbeddedValkey
from fairlead.wire.messages import OVER, Ack, Cancel, Chunk, End

from support.gateway.metrics import metric
from support.gateway.platform_api import GatewayApi, MakeGatewayApi
from support.gateway.process import GatewayProcess, MakeGateway
from support.gateway.scripted_agent import DialAgent, ScriptedAgent
from support.waiting import until

SHELL = {"cols": 100, "rows": 30, "term": "vt100"}


def recorded(folder: Path) -> list[tuple[dict[str, Any], list[list[Any]]]]:
    """The header and the events of each recording, in the order of their commands."""
    found = []
    for path in sorted(folder.iterdir()):
        assert path.stat().st_mode & 0o777 == 0o600
        header, *events = [json.loads(line) for line in path.read_text().splitlines()]
        found.append((header, events))
    return found


def recording(make: MakeGateway, redis: str, folder: Path, *flags: str) -> GatewayProcess:
    return make(redis, "--terminal-recordings", str(folder), *flags)


async def open_terminal(api: GatewayApi, agent: ScriptedAgent) -> str:
    answer = await api.post({"agent": agent.agent, "method": "shell", "payload": SHELL})
    assert answer.status_code == 202
    assert answer.json()["recorded"] is True
    command = await agent.command()
    await agent.send(Ack(id=command.id, state="accepted"))
    return command.id


async def show(agent: ScriptedAgent, command: str, n: int, data: bytes) -> None:
    await agent.send(Chunk(id=command, n=n, kind="pty", payload=data))


async def stored(api: GatewayApi, command: str, count: int) -> None:
    """Wait until the command has so many results."""

    async def there() -> bool:
        return len(await api.lines(command, follow=False)) >= count

    await until(there)


async def test_what_a_terminal_shows_is_recorded(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, api_of: MakeGatewayApi, dial: DialAgent, tmp_path: Path
) -> None:
    gateway = recording(make_gateway, own_valkey.url, tmp_path / "casts")
    api, agent = api_of(gateway), await dial(gateway)
    await agent.greet()
    answer = await api.post({"agent": agent.agent, "method": "exec"})
    assert answer.json()["recorded"] is False
    other = await agent.command()
    command = await open_terminal(api, agent)
    await show(agent, command, 0, "gr\u00fc".encode()[:3])
    await show(agent, command, 1, "gr\u00fc".encode()[3:] + b"n\r\n")
    await api.http.post(f"/v1/commands/{command}/input?n=0", content=b"\x00a password\r")
    assert (await agent.expect(Chunk)).payload == b"\x00a password\r"
    await api.http.post(f"/v1/commands/{command}/input?n=1", content=b'\x01{"cols":40,"rows":10}')
    await agent.expect(Chunk)
    await show(agent, command, 2, b"end")
    await agent.send(
        Chunk(id=other.id, n=0, kind="stdout", payload=b"not a terminal"), End(id=other.id, state="ok", total=1)
    )
    await agent.send(End(id=command, state="ok", total=3))
    assert (await api.end(command))["state"] == "ok"
    lines = [line for line in await api.lines(command) if "n" in line]
    stored = b"".join(base64.b64decode(one["base64"]) if "base64" in one else one["text"].encode() for one in lines)
    assert stored.decode() == "gr\u00fcn\r\nend"
    ((header, events),) = recorded(tmp_path / "casts")
    assert (header["version"], header["width"], header["height"], header["env"]) == (2, 100, 30, {"TERM": "vt100"})
    assert command in header["title"]
    assert agent.agent in header["title"]
    assert "".join(text for _, code, text in events if code == "o") == "gr\u00fcn\r\nend"
    assert [(code, text) for _, code, text in events[-3:]] == [("r", "40x10"), ("o", "end"), ("m", "ended: ok")]
    assert all(0 <= before[0] <= after[0] for before, after in pairwise(events))
    assert await metric(gateway, "fairlead_terminal_recordings_total") == 1


async def test_a_recording_that_is_full_says_so_and_its_terminal_goes_on(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, api_of: MakeGatewayApi, dial: DialAgent, tmp_path: Path
) -> None:
    folder = tmp_path / "casts"
    gateway = recording(make_gateway, own_valkey.url, folder, "--terminal-recording-size", "65536")
    api, agent = api_of(gateway), await dial(gateway)
    await agent.greet()
    command = await open_terminal(api, agent)
    screen = b"#" * 8192
    for n in range(20):
        await show(agent, command, n, screen)
    await agent.send(End(id=command, state="ok", total=20))
    assert (await api.end(command))["state"] == "ok"
    assert await api.output(command) == (screen * 20).decode(), "whoever reads it gets all"
    ((_, events),) = recorded(folder)
    *shown, cut, end = events
    assert [code for _, code, _ in shown] == ["o"] * 7
    assert (cut[1], cut[2].split(":")[0], end[1:]) == ("m", "cut", ["m", "ended: ok"])
    assert sum(path.stat().st_size for path in folder.iterdir()) <= 65536
    assert await metric(gateway, "fairlead_terminal_recordings_cut_total") == 1
    assert f"{command}." in next(line for line in gateway.log().splitlines() if "is cut at 65536 bytes" in line)


async def test_no_terminal_is_opened_that_cannot_be_recorded(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, api_of: MakeGatewayApi, dial: DialAgent, tmp_path: Path
) -> None:
    folder = tmp_path / "casts"
    gateway = recording(make_gateway, own_valkey.url, folder)
    api, agent = api_of(gateway), await dial(gateway)
    await agent.greet()
    command = await open_terminal(api, agent)
    await show(agent, command, 0, b"recorded")
    await stored(api, command, 1)
    folder.rename(tmp_path / "moved")
    folder.write_text("in its place")
    await show(agent, command, 1, b"never seen")
    cancel = await agent.expect(Cancel)
    assert (cancel.id, cancel.why) == (command, OVER)
    end = await api.end(command)
    assert (end["state"], end["error"]["code"], end["error"]["temporary"]) == ("failed", "recording_unavailable", True)
    assert await api.output(command) == "recorded"
    refused = await api.start(agent.agent, "shell")
    assert (await api.end(refused))["error"]["code"] == "recording_unavailable"
    allowed = await api.start(agent.agent, "exec")
    assert (await agent.command()).id == allowed, "the terminal was never sent to the agent"
    assert await metric(gateway, "fairlead_terminal_recording_failures_total") == 2
    folder.unlink()
    (tmp_path / "moved").rename(folder)
    await open_terminal(api, agent)
    assert len(recorded(folder)) == 2


async def test_an_agent_that_moves_to_another_node_is_recorded_there(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, api_of: MakeGatewayApi, dial: DialAgent, tmp_path: Path
) -> None:
    first, second = (
        recording(make_gateway, own_valkey.url, tmp_path / name, "--node", name) for name in ("node-1", "node-2")
    )
    api, agent = api_of(first), await dial(first)
    await agent.greet()
    command = await open_terminal(api, agent)
    await show(agent, command, 0, b"before, ")
    await stored(api, command, 1)
    moved = await dial(second, agent.agent)
    await moved.greet(conn=2)
    await show(moved, command, 1, b"after")
    await moved.send(End(id=command, state="ok", total=2))
    assert (await api.end(command))["state"] == "ok"
    ((_, before),) = recorded(tmp_path / "node-1")
    ((header, after),) = recorded(tmp_path / "node-2")
    assert [text for _, code, text in before if code == "o"] == ["before, "]
    assert [text for _, code, text in after if code == "o"] == ["after"]
    assert command in header["title"]
    assert after[-1][1:] == ["m", "ended: ok"]


async def test_the_user_is_told(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, api_of: MakeGatewayApi, tmp_path: Path
) -> None:
    gateway = recording(make_gateway, own_valkey.url, tmp_path / "casts")
    argv = [sys.executable, "-m", "fairlead"]
    with (tmp_path / "agent.log").open("wb") as log:
        agent = subprocess.Popen(
            [*argv, "agent", "run", "--url", gateway.link, "--id", "a"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    try:
        api = api_of(gateway)

        async def online() -> bool:
            return (await api.http.get("/v1/agents/a")).status_code == 200

        await until(online)
        typed = b"echo this is ''recorded; exit 3\n"
        command = [*argv, "shell", "--api", gateway.api, "a", "--", "sh"]
        done = await asyncio.to_thread(
            subprocess.run, command, input=typed, capture_output=True, timeout=60, check=False
        )
        assert done.returncode == 3, done.stderr
        assert b"the gateway records what this terminal shows" in done.stderr
        ((_, events),) = recorded(tmp_path / "casts")
        shown = "".join(text for _, code, text in events if code == "o")
        assert shown == done.stdout.decode()
        assert "this is recorded" in shown
    finally:
        agent.kill()
        agent.wait()


async def test_a_folder_that_cannot_be_used_stops_the_start(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(AssertionError, match=r"terminals cannot be recorded in .*/file/casts"):
        recording(make_gateway, own_valkey.url, tmp_path / "file" / "casts")


@given(st.text(), st.lists(st.integers(0, 40), max_size=8), st.data())
def test_output_is_whole_however_it_is_cut_and_repeated(text: str, cuts: list[int], data: st.DataObject) -> None:
    octets = text.encode()
    edges = sorted({0, len(octets), *(cut for cut in cuts if cut < len(octets))})
    chunks = [octets[a:b] for a, b in pairwise(edges)]
    recording = TerminalRecording("t", b"{}", 0.0)
    for n, chunk in enumerate(chunks):
        for again in range(data.draw(st.integers(0, n)), n + 1):
            recording.output(again, chunks[again] if again < n else chunk, 1.0)
    lines = [json.loads(line) for line in recording.take().splitlines()]
    assert lines[0]["width"] == 80
    assert "".join(line[2] for line in lines[1:]) == text
