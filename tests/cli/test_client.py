"""`fairlead.client` with a real gateway and a real agent; and how it uses the next address when one fails."""

from __future__ import annotations

import asyncio
import re
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from starlette.responses import Response

from fairlead.client import Chunk, Client
from fairlead.errors import (
    AgentUnknown,
    CommandUnknown,
    ConnectionRefused,
    FairleadError,
    IdempotencyConflict,
    InvalidRequest,
    NodeBusy,
    ResultsTrimmed,
    Unauthorized,
    Unavailable,
)

from support.cli.processes import CliFleet
from support.cli.relay import Relay
from support.cli.scripted_api import ScriptedApi, problem

TOKEN = "development-platform-token"
UNKNOWN = "01990000-0000-7000-8000-00000000000f"
ROOT = Path(__file__).parents[2]


async def test_client_reads_agents_and_links_and_sets_labels(fleet: CliFleet) -> None:
    async with Client(fleet.api, TOKEN) as client:
        assert await client.label("web-1", {"client/test": "yes", "gone": "soon"}) == {
            "client/test": "yes",
            "gone": "soon",
        }
        assert await client.label("web-1", {"gone": None}) == {"client/test": "yes"}
        found = [one async for one in client.agents("client/test=yes,os=linux", state="online")]
        assert [one.id for one in found] == ["web-1"]
        assert [one async for one in client.agents("client/test=no")] == []
        detail = await client.agent("web-1")
        assert (detail.state, detail.node, detail.labels) == ("online", "node-1", {"client/test": "yes"})
        link = await client.link("web-1")
        assert (link.node, link.sid, link.congested) == ("node-1", detail.link.sid, False)
        assert await client.label("web-1", {"client/test": None}) == {}


async def test_a_disconnected_agent_comes_back(fleet: CliFleet) -> None:
    async with Client(fleet.api, TOKEN) as client:
        before = (await client.agent("web-1")).link
        await client.disconnect("web-1")
        async with asyncio.timeout(20):
            while True:
                now = await client.agent("web-1")
                if now.state == "online" and now.link.conn > before.conn:
                    break
                await asyncio.sleep(0.05)
        assert now.link.boot == before.boot


async def test_client_sends_input_to_a_command(fleet: CliFleet) -> None:
    async with (
        Client(fleet.api, TOKEN) as client,
        client.command("web-1", "exec", {"argv": ["tr", "a-z", "A-Z"], "stdin": True}) as command,
    ):
        assert re.fullmatch(r"[0-9a-f-]{36}", command.id)
        text = b"some words\n" * 20_000  # several chunks of the link
        await command.input(text)
        await command.input(b"the last", end=True)
        data = b"".join([chunk.data async for chunk in command])
        assert data == text.upper() + b"THE LAST"
        end = await command.wait()
        assert command.end is end
        assert (end.state, end.exit().exit_code, end.agent) == ("ok", 0, "web-1")
        with pytest.raises(InvalidRequest, match="over"):
            await command.input(b"more")
        async with client.attach(command.id, 1) as again:
            later = [chunk async for chunk in again]
        assert later[0].offset == 1
        assert again.end == end


async def test_a_cancelled_command_ends_as_cancelled(fleet: CliFleet) -> None:
    async with (
        Client(fleet.api, TOKEN) as client,
        client.command("web-1", "exec", {"argv": ["sleep", "1000"]}) as command,
    ):
        await command.cancel()
        assert (await command.wait()).state == "cancelled"
        assert await client.cancel(command.id) == "cancelled"


async def test_leaving_does_not_cancel_and_attach_continues(fleet: CliFleet, tmp_path: Path) -> None:
    script = f"echo one; until [ -e {tmp_path}/go ]; do sleep 0.02; done; echo two"
    async with Client(fleet.api, TOKEN) as client:
        async with client.command("web-1", "exec", {"argv": ["sh", "-c", script]}) as command:
            async for chunk in command:
                assert chunk.data == b"one\n"
                break
        async with client.attach(command.id, follow=False) as seen:
            assert [chunk.data async for chunk in seen] == [b"one\n"]
            assert seen.end is None
            with pytest.raises(FairleadError, match="not followed"):
                await seen.wait()
        (tmp_path / "go").touch()
        async with client.attach(command.id, command.next) as rest:
            assert [chunk.data async for chunk in rest] == [b"two\n"]
        assert rest.end is not None


async def test_one_idempotency_key_is_one_command(fleet: CliFleet) -> None:
    async with Client(fleet.api, TOKEN) as client:
        async with client.command("web-1", "sys.info", key="a-key-of-this-test") as one:
            await one.wait()
        async with client.command("web-1", "sys.info", key="a-key-of-this-test") as two:
            assert await two.wait() == one.end
        assert two.id == one.id
        with pytest.raises(IdempotencyConflict):
            async with client.command("web-1", "sys.info", {"other": 1}, key="a-key-of-this-test"):
                pass


async def test_client_raises_the_projects_errors(fleet: CliFleet) -> None:
    async with Client(fleet.api, "not-the-right-token") as client:
        with pytest.raises(Unauthorized):
            await client.agent("web-1")
    async with Client(fleet.api, TOKEN) as client:
        with pytest.raises(AgentUnknown, match="nobody") as unknown:
            await client.agent("nobody")
        assert unknown.value.details["status"] == 404
        with pytest.raises(AgentUnknown):
            async with client.command("nobody", "sys.info"):
                pass
        with pytest.raises(CommandUnknown):
            await client.cancel(UNKNOWN)
        with pytest.raises(CommandUnknown):
            async with client.attach(UNKNOWN) as command:
                await command.wait()
        with pytest.raises(InvalidRequest) as wrong:
            [one async for one in client.agents("env in (")]
        assert wrong.value.details["field"] == "selector"
        with pytest.raises(InvalidRequest, match="deadline"):
            async with client.command("web-1", "sys.info", deadline=0):
                pass
    with pytest.raises(InvalidRequest, match="http://"):
        Client("gateway:8081", TOKEN)


async def test_results_read_from_a_window_cannot_be_read_again(fleet: CliFleet) -> None:
    """A window keeps what the reader has not got yet; a second reader comes too late and gets an error."""
    payload = {"argv": ["head", "-c", "9000000", "/dev/zero"]}
    async with Client(fleet.api, TOKEN) as client:
        async with client.command("web-1", "exec", payload, retain="window") as command:
            assert sum([len(chunk.data) async for chunk in command]) == 9_000_000, "more than a window keeps"
        with pytest.raises(ResultsTrimmed):
            async with client.attach(command.id, 0) as late:
                await late.wait()


async def test_results_continue_at_the_next_address(fleet: CliFleet, relay_to: Callable[[str], Relay]) -> None:
    """Two ways to the same fleet: each connection of the first is cut, so the second takes over in mid-stream."""
    first = relay_to(fleet.api)
    first.cuts = [5_000]
    payload = {"argv": ["seq", "1", "20000"]}
    async with (
        Client(f"http://127.0.0.1:{first.port},{fleet.api}", TOKEN) as client,
        client.command("web-1", "exec", payload) as command,
    ):
        text = b"".join([chunk.data async for chunk in command])
    assert text.split() == [b"%d" % i for i in range(1, 20_001)]
    assert first.cuts == []


async def test_a_busy_address_is_skipped_for_the_next(api: ScriptedApi, second_api: ScriptedApi) -> None:
    api.refusals = [problem(503, "node_busy", "full", True)]
    second_api.add_output(b"here")
    second_api.finish("ok")
    async with Client(f"{api.url},{second_api.url}", TOKEN) as client:
        for _ in range(2):
            async with client.command("agent-1", "exec") as command:
                assert [chunk.data async for chunk in command] == [b"here"]
    assert (len(api.streams), len(second_api.streams)) == (1, 2), "it stays at the address that it was read from"


async def test_client_raises_the_busy_error_when_all_addresses_are_busy(
    api: ScriptedApi, second_api: ScriptedApi
) -> None:
    api.refusals = [problem(503, "node_busy", "one is full", True)]
    second_api.refusals = [problem(503, "node_busy", "two is full", True)]
    async with Client(f"{api.url},{second_api.url}", TOKEN) as client:
        with pytest.raises(NodeBusy, match="one is full; two is full"):
            async with client.command("agent-1", "exec"):
                pass


async def test_other_refusals_are_not_tried_at_the_next_address(api: ScriptedApi, second_api: ScriptedApi) -> None:
    api.refusals = [problem(409, "agent_offline", "gone", True)]
    async with Client(f"{api.url},{second_api.url}", TOKEN) as client:
        with pytest.raises(Unavailable, match="gone"):
            async with client.command("agent-1", "exec"):
                pass
    assert second_api.streams == []


async def test_an_answer_without_a_command_id_is_an_error(api: ScriptedApi) -> None:
    api.refusals = [Response('{"end": {"agent": "a", "state": "ok"}}\n', media_type="application/x-ndjson")]
    async with Client(api.url, TOKEN) as client:
        with pytest.raises(FairleadError, match="does not begin with its id"):
            async with client.command("agent-1", "exec"):
                pass


async def test_client_waits_when_the_agent_does_not_read_input(api: ScriptedApi) -> None:
    """More refusals than a gateway that is away would be forgiven."""
    api.input_refusals = [problem(503, "input_full", "4 MiB wait", True) for _ in range(15)]
    api.finish("ok")
    async with Client(api.url, TOKEN) as client, client.command("agent-1", "exec") as command:
        await command.input(b"at last", end=True)
    assert api.inputs == {0: b"at last"}
    assert len(api.input_requests) == 16


async def test_a_cursor_that_does_not_change_ends_the_listing(api: ScriptedApi) -> None:
    api.pages = [{"agents": [{"id": "a", "state": "online"}], "cursor": "1"}, {"agents": [], "cursor": "1"}]
    async with Client(api.url, TOKEN) as client:
        assert [one.id async for one in client.agents()] == ["a"]


async def test_a_cursor_of_another_fleet_is_refused(fleet: CliFleet, api: ScriptedApi) -> None:
    """Two addresses that are not of one fleet: the second page is asked of the other one, whose cursor it is not."""
    api.pages = [{"agents": [{"id": "a", "state": "online"}], "cursor": "none of yours"}]
    api.busy_pages = True
    async with Client(f"{api.url},{fleet.api}", TOKEN) as client:
        with pytest.raises(InvalidRequest, match="start again without one") as wrong:
            [one async for one in client.agents()]
        assert wrong.value.details["field"] == "cursor"


async def test_an_unreachable_gateway_raises_connection_refused(unused_port: int) -> None:
    async with Client(f"http://127.0.0.1:{unused_port}", TOKEN) as client:
        with pytest.raises(ConnectionRefused, match=str(unused_port)):
            await client.agent("web-1")


@pytest.fixture
def unused_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
    return port


def test_the_example_of_the_documentation_runs(fleet: CliFleet, tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "api.md").read_text(), re.DOTALL)
    (example,) = [one for one in blocks if "fairlead.client" in one]
    script = tmp_path / "example.py"
    script.write_text(example.replace("http://127.0.0.1:8081", fleet.api))
    done = subprocess.run([sys.executable, str(script)], capture_output=True, check=False, timeout=40, text=True)
    assert done.returncode == 0, done.stderr
    assert "web-1" in done.stdout
    assert "Linux" in done.stdout
    assert "ok" in done.stdout


def test_a_chunk_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        Chunk(0, "a", 0, "stdout", b"").data = b"x"  # type: ignore[misc]
