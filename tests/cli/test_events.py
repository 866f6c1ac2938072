"""`fairlead events`: prints, filters and follows events, against a real gateway and an agent of the SDK."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence

import pytest

from fairlead.cli.fleet.event_sinks import _sinks_view
from fairlead.client import Acknowledgements
from fairlead.client.events.event_groups import EventGroupRequests
from fairlead.client.events.event_sinks import EventSinkInfo

from support.cli.processes import environment, gateway
from support.waiting import WAIT, wait_until

Run = Callable[..., subprocess.CompletedProcess[bytes]]
AGENT = """\
import asyncio
from fairlead.agent import Agent

agent = Agent("{url}", id="web-1", token="development-agent-token", facts={{"os": "linux"}})

@agent.command("emit")
async def emit(type: str, value: int) -> None:
    agent.emit(type, {{"value": value}})

asyncio.run(agent.run())
"""


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The API of a gateway with an agent whose method `emit` emits an event."""
    folder = tmp_path_factory.mktemp("events")
    part, links, api, _ = gateway(folder)
    (folder / "agent.py").write_text(AGENT.format(url=links))
    agent = subprocess.Popen([sys.executable, "-P", folder / "agent.py"], env=environment(api))
    try:
        wait_until(lambda: emitted(api, "first", 0))
        yield api
    finally:
        agent.kill()
        agent.wait(WAIT)
        part.stop()


def emitted(api: str, kind: str, value: int) -> bool:
    line = [sys.executable, "-P", "-m", "fairlead", "call", "web-1", "emit", f"type={kind}", f"value:={value}"]
    return subprocess.run(line, env=environment(api), capture_output=True, timeout=WAIT, check=False).returncode == 0


def listed(run: Run, api: str, *options: str, expected: int) -> list[dict[str, object]]:
    def find() -> list[dict[str, object]]:
        done = run("events", "-o", "json", *options, api=api)
        assert done.returncode == 0, done.stderr
        found = [json.loads(line) for line in done.stdout.splitlines()]
        return found if len(found) >= expected else []

    return wait_until(find)


def test_events_are_listed_filtered_and_taken_up_again(api: str, run: Run) -> None:
    assert emitted(api, "disk.full", 5)
    assert emitted(api, "net.up", 6)
    full, up = listed(run, api, "--agent", "web-1", "--since", "1h", expected=3)[-2:]
    assert (full["agent"], full["type"], full["data"]) == ("web-1", "disk.full", {"value": 5})
    assert [one["type"] for one in listed(run, api, "--type", "disk.*", expected=1)] == ["disk.full"]
    assert [one["type"] for one in listed(run, api, "--after", str(full["offset"]), expected=1)] == ["net.up"]
    assert len(listed(run, api, "-l", "os=linux", expected=3)) >= 3
    none = run("events", "-l", "os=plan9", api=api)
    assert (none.returncode, none.stdout, b"no events match" in none.stderr) == (0, b"", True)
    last = run("events", "--after", str(full["offset"]), api=api).stdout.decode()
    assert last.split(maxsplit=3)[1:] == ["web-1", "net.up", '{"value": 6}\n']
    assert last.startswith(str(up["time"]))


def test_follow_prints_what_comes_until_it_is_interrupted(api: str) -> None:
    import signal

    line = [sys.executable, "-P", "-m", "fairlead", "events", "-f", "--type", "live", "-o", "json"]
    with subprocess.Popen(line, env=environment(api), stdout=subprocess.PIPE) as process:
        try:
            assert emitted(api, "live", 1)
            assert emitted(api, "live", 2)
            assert process.stdout is not None
            found = [json.loads(process.stdout.readline())["data"] for _ in range(2)]
            assert found == [{"value": 1}, {"value": 2}]
            process.send_signal(signal.SIGINT)
            assert process.wait(WAIT) == 130
        finally:
            if process.poll() is None:
                process.kill()


def test_a_sink_that_its_node_does_not_know_is_told() -> None:
    table = "\n".join(_sinks_view([EventSinkInfo(name="siem", node="node-2")]).lines)
    assert "node-2 has not begun: expected the same file of sinks on all nodes" in table


def test_the_last_error_of_a_sink_has_its_time() -> None:
    """It stays after a success: a receiver that fails now and then is no better because the last post went well."""
    at = "2026-11-28T21:00:00Z"
    sink = EventSinkInfo(name="siem", host="siem.example", node="node-1", offset="1-0", error="status 503", error_at=at)
    fine = EventSinkInfo(name="good", host="good.example", node="node-1", offset="1-0")
    head, *rows = _sinks_view([sink, fine]).lines
    assert rows[0][head.index("ERROR AT") :].split(None, 1) == [at, "status 503"]
    assert rows[1][head.index("ERROR AT") :].split() == ["-", "-"]


async def test_an_acknowledgement_that_is_under_way_at_the_end_is_waited_for() -> None:
    began, told = asyncio.Event(), asyncio.Event()
    acknowledged: list[str] = []

    class Requests(EventGroupRequests):
        def __init__(self) -> None: ...

        async def acknowledge(self, group: str, offsets: Sequence[str]) -> int:
            began.set()
            await told.wait()
            acknowledged.extend(offsets)
            return len(offsets)

    async def read() -> None:
        printed = Acknowledgements(Requests(), "workers")
        async with printed.sent():
            printed.add("1-0")
            await began.wait()
            asyncio.get_running_loop().call_soon(told.set)

    await asyncio.wait_for(read(), WAIT)
    assert acknowledged == ["1-0"]


def test_readers_of_a_group_share_what_comes_and_groups_are_listed(api: str, run: Run) -> None:
    for value in range(3):
        assert emitted(api, "work", value)
    listed(run, api, "--type", "work", expected=3)
    first = run("events", "--group", "workers", "--type", "work", "-o", "json", api=api)
    assert [json.loads(line)["data"]["value"] for line in first.stdout.splitlines()] == [0, 1, 2]
    assert run("events", "--group", "workers", api=api).stdout == b"", "they were acknowledged as they were printed"
    assert emitted(api, "work", 3)
    assert wait_until(lambda: run("events", "--group", "workers", api=api).stdout).endswith(b'{"value": 3}\n')
    shown = json.loads(run("events", "groups", "ls", "-o", "json", api=api).stdout)["groups"]
    assert [(one["name"], one["type"], one["pending"]) for one in shown] == [("workers", "work", 0)]
    table = run("events", "groups", "ls", api=api).stdout.decode().splitlines()
    assert table[0].split() == ["GROUP", "PENDING", "LAG", "LOST", "LAST", "READ"]
    assert table[1].split()[:4] == ["workers", "0", "0", "-"]
    assert run("events", "groups", "rm", "workers", api=api).returncode == 0
    again = run("events", "groups", "rm", "workers", api=api)
    assert (again.returncode, b"there is no group" in again.stderr) == (2, True)


def test_wrong_options_are_explained(run: Run) -> None:
    both = run("events", "--after", "5-0", "--since", "1h")
    assert (both.returncode, b"expected one of them" in both.stderr) == (2, True)
    since = run("events", "--since", "yesterday")
    assert (since.returncode, b"expected a whole number with s, m, h or d" in since.stderr) == (2, True)
