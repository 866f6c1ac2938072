"""The demo: its ports, its load balancer, its processes, and a complete run from start to Ctrl-C."""

from __future__ import annotations

import asyncio
import base64
import fcntl
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from fairlead.cli.child_processes import RESTART_MOST, restart_delay
from fairlead.cli.demo import restarts
from fairlead.cli.demo.load_balancer import LoadBalancer
from fairlead.cli.demo.ports import check_ports, free_ports, ports_from
from fairlead.cli.demo.processes import ChildProcess, ValkeyProcess, describe_end, tail
from fairlead.cli.demo.restarts import RestartedProcess
from fairlead.errors import ConfigError, FairleadError
from fairlead.store.embedded_valkey.server import EmbeddedValkey

Run = Callable[..., subprocess.CompletedProcess[bytes]]
WAIT = 100.0

pytestmark = pytest.mark.timeout(240)  # each demo is seven processes, some of which are started again and again


def test_taken_ports_are_all_named(run: Run) -> None:
    ports = free_ports(2)
    one, two = ports.nodes
    assert len({ports.links, *one, *two}) == 7
    with socket.create_server(("127.0.0.1", ports.links)), socket.create_server(("127.0.0.1", two.admin)):
        with pytest.raises(ConfigError) as caught:
            check_ports(ports)
        done = run("demo", "--port", str(ports.links))
    assert f"port {ports.links} (agents' links)" in caught.value.message
    assert f"port {two.admin} (probes and metrics)" in caught.value.message
    assert f"port {one.api}" not in caught.value.message
    assert done.returncode == 2
    assert "--port 0" in done.stderr.decode()
    check_ports(ports)


def test_each_node_takes_three_ports_in_a_row(run: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = run("demo", "--port", str(port - 5), "--nodes", "2")
    assert f"cannot use port {port} (probes and metrics)" in done.stderr.decode()
    assert done.returncode == 2
    assert ports_from(8080, 2) == (8080, [(8081, 8082, 8083), (8084, 8085, 8086)])


def test_the_ports_of_all_nodes_must_exist(run: Run) -> None:
    done = run("demo", "--port", "65531", "--nodes", "2")
    assert done.returncode == 2
    assert "expected at most 65529" in done.stderr.decode()


def python(code: str) -> list[str]:
    return [sys.executable, "-I", "-c", code]


async def test_a_child_ends_when_told_to(tmp_path: Path) -> None:
    child = ChildProcess("sleeper", python("import time; time.sleep(1000)"), tmp_path / "log", {})
    await child.start()
    assert child.alive
    assert (tmp_path / "log.pid").read_text() == f"{child.pid}\n"
    assert await child.stop(10)
    assert not child.alive
    assert "by signal 15 (SIGTERM)" in describe_end(child)
    assert not (tmp_path / "log.pid").exists()


async def test_a_child_that_does_not_listen_is_killed(tmp_path: Path) -> None:
    code = "import signal as s; s.signal(s.SIGTERM, s.SIG_IGN); print('ignoring', flush=True); s.pause(); s.pause()"
    child = ChildProcess("ignoring", python(code), tmp_path / "log", {})
    await child.start()
    while "ignoring" not in tail(child.log):  # bounded by the test's own timeout
        assert child.alive
    assert not await child.stop(0.1)
    assert not child.alive


async def test_the_last_lines_of_a_dead_child_are_kept(tmp_path: Path) -> None:
    code = "import sys; [print('line', i, flush=True) for i in range(100)]; sys.exit('no more')"
    child = ChildProcess("talker", python(code), tmp_path / "log", {})
    await child.start()
    await child.ended()
    last = describe_end(child)
    assert "talker ended with exit code 1" in last
    assert "no more" in last
    assert "line 99" in last
    assert "line 1\n" not in last


async def echo(name: bytes) -> tuple[asyncio.Server, int]:
    """A server that sends its name and then echoes."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(name)
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    return server, server.sockets[0].getsockname()[1]


async def test_the_balancer_spreads_connections_over_those_that_listen() -> None:
    (one, one_port), (two, two_port) = await echo(b"1"), await echo(b"2")
    entry = free_ports(1).links
    made: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def ask() -> bytes:
        """The name of the server that a new connection has reached; nothing when there was none."""
        made.append(await asyncio.open_connection("127.0.0.1", entry))
        try:
            return await made[-1][0].read(1)
        except ConnectionResetError:
            return b""

    balancer = LoadBalancer("127.0.0.1", entry, [one_port, two_port])
    await balancer.start()
    async with asyncio.timeout(20):
        assert [await ask() for _ in range(4)] == [b"1", b"2", b"1", b"2"]
        reader, writer = made[0]
        writer.write(b"x" * 3_000_000)
        assert await reader.readexactly(3_000_000) == b"x" * 3_000_000
        for closed in (made[1], made[3]):
            closed[1].close()
            assert await closed[0].read() == b"", "the other side has ended it, too"
        assert [await ask(), await ask()] == [b"2", b"2"]
        two.close()
        assert {await ask() for _ in range(3)} == {b"1"}
        one.close()
        assert await ask() == b""
    with pytest.raises(ConfigError, match=f"cannot use port {entry} on 127.0.0.1"):
        await LoadBalancer("127.0.0.1", entry, []).start()
    await balancer.stop()
    for _, writer in made:
        writer.close()
        try:
            await writer.wait_closed()
        except OSError:
            pass  # it was reset


def test_restart_pauses_grow_to_a_limit_with_jitter() -> None:
    assert [restart_delay(n, 1.0) for n in (0, 1, 2, 3)] == [1.0, 2.0, 4.0, 8.0]
    assert restart_delay(0, 0.0) == 0.5
    assert restart_delay(10_000, 1.0) == RESTART_MOST


async def test_demo_ends_when_valkey_does_not_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restarts, "restart_delay", lambda failures, draw: 0.01)
    messages: list[str] = []
    valkey = ValkeyProcess(EmbeddedValkey(tmp_path / "valkey"))

    async def is_ready() -> bool:
        return valkey.server.running

    await valkey.start()
    assert (tmp_path / "valkey.pid").read_text() == f"{valkey.pid}\n"
    part = asyncio.ensure_future(RestartedProcess(valkey, is_ready, "Links stay up", messages.append).supervise())
    try:
        os.kill(valkey.pid, signal.SIGKILL)
        with (tmp_path / "valkey" / "valkey.lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # as another server would hold it
            failed = f"it failed {restarts.MOST_FAILURES} times in a row"
            hopeless = f"valkey is not restarted, because {failed}: it could not be started: the data folder"
            with pytest.raises(FairleadError, match=hopeless):
                async with asyncio.timeout(30):
                    await part
    finally:
        part.cancel()
        await valkey.stop()
    assert "ended by signal 9 (SIGKILL); it is restarted" in messages[0]
    assert all("could not be started: the data folder" in line for line in messages[1:])
    assert not (tmp_path / "valkey.pid").exists()


class Running:
    """A demo that has said that it is ready."""

    def __init__(self, data: Path, *options: str) -> None:
        self.data = data
        env = {key: value for key, value in os.environ.items() if not key.startswith("FAIRLEAD_")}
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-P",
                "-m",
                "fairlead",
                "demo",
                "--port",
                "0",
                "--data",
                str(data),
                "--agents",
                "2",
                *options,
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=env,
        )
        self.talk: list[str] = []
        assert self.process.stderr is not None
        assert self.process.stdout is not None
        stderr = self.process.stderr
        self._listener = threading.Thread(target=lambda: self.talk.extend(stderr), daemon=True)
        self._listener.start()
        self.shown = ""
        self.family: list[psutil.Process] = []
        for line in self.process.stdout:
            self.shown += line
            if "Ctrl-C ends" in line:
                break
        else:
            self.close()
            raise AssertionError(f"the demo did not start: {''.join(self.talk)}")
        self.family = psutil.Process(self.process.pid).children(recursive=True)

        (self.api,) = re.findall(r"^ +API +(\S+)$", self.shown, re.MULTILINE)

    def printed(self, words: str) -> bool:
        assert self.process.poll() is None, "".join(self.talk)
        return any(words in line for line in self.talk)

    def pid_of(self, name: str) -> int:
        return int((self.data / f"{name}.pid").read_text())

    def kill(self, name: str) -> None:
        os.kill(self.pid_of(name), signal.SIGKILL)

    def wait(self) -> int:
        code = self.process.wait(WAIT)
        self._listener.join(WAIT)
        return code

    def close(self) -> None:
        self.process.kill()
        for one in self.family:
            try:
                one.kill()
            except psutil.NoSuchProcess:
                pass
        self.process.wait(WAIT)
        self._listener.join(WAIT)
        for pipe in (self.process.stdout, self.process.stderr):
            assert pipe is not None
            pipe.close()


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[Running]:
    running = Running(tmp_path / "data")
    yield running
    running.close()


def test_the_demo_runs_commands_and_ends_in_order(demo: Running, run: Run) -> None:
    urls = demo.api.split(",")
    assert len(set(urls)) == 2
    rows = json.loads(run("agents", "ls", "-o", "json", env={"FAIRLEAD_API": demo.api}).stdout)["agents"]
    assert {row["id"]: row["node"] for row in rows} == {"agent-1": "node-1", "agent-2": "node-2"}
    for url in (demo.api, *urls):
        done = run("exec", "agent-2", "--", "tr", "a-z", "A-Z", env={"FAIRLEAD_API": url}, input=b"hello\n")
        assert (done.stdout, done.returncode) == (b"HELLO\n", 0), done.stderr
    assert len(demo.family) >= 5
    demo.process.send_signal(signal.SIGINT)
    assert demo.wait() == 0, demo.talk
    assert not [one for one in demo.family if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]
    assert "killed" not in "".join(demo.talk)


def test_its_nodes_deliver_events_to_the_sinks_of_a_file(tmp_path: Path, run: Run) -> None:
    sinks = tmp_path / "sinks.toml"
    secret = base64.b64encode(bytes(32)).decode()
    sinks.write_text(f'[sinks.siem]\nurl = "https://siem.example.com/"\nsecrets = ["whsec_{secret}"]\n')
    demo = Running(tmp_path / "data", "--event-sinks", str(sinks))
    try:
        for url in demo.api.split(","):
            listed = run("events", "sinks", "ls", "-o", "name", env={"FAIRLEAD_API": url})
            assert listed.stdout == b"siem\n", listed
    finally:
        demo.close()


def test_its_agents_have_identities_which_they_keep(tmp_path: Path, run: Run) -> None:
    def key(agent: str) -> bytes:
        return (tmp_path / "data" / "identities" / agent / "key.pem").read_bytes()

    keys = []
    for lost in ("", "agent-2"):
        if lost:
            shutil.rmtree(tmp_path / "data" / "identities" / lost)
        demo = Running(tmp_path / "data")
        try:
            for agent in ("agent-1", "agent-2"):
                done = run("exec", agent, "--", "echo", "here", env={"FAIRLEAD_API": demo.api})
                assert done.stdout == b"here\n", done.stderr
            tokens = run("enrolment-tokens", "ls", env={"FAIRLEAD_API": demo.api}).stdout.decode()
            assert f"{1 if lost else 2} of 2" in tokens
            demo.process.send_signal(signal.SIGINT)
            assert demo.wait() == 0, demo.talk
        finally:
            demo.close()
        keys.append((key("agent-1"), key("agent-2")))
    (first, second), (same, other) = keys
    assert (first == same, second == other) == (True, False)


COUNT = "for i in 1 2 3 4 5 6; do echo $i; sleep 0.5; done"


def counted(demo: Running) -> str:
    """What a program on agent-2 has written that counts, while the node of that agent is killed."""
    api = demo.api.split(",")[0]
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "fairlead", "exec", "--api", api, "agent-2", "--", "sh", "-c", COUNT],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        first = process.stdout.readline()
        demo.kill("node-2")
        rest = process.stdout.read()
        assert process.wait(WAIT) == 0
    return (first + rest).decode()


def test_a_killed_part_is_restarted_and_nothing_is_lost(
    demo: Running, run: Run, wait_until: Callable[..., object]
) -> None:
    def node_of(agent: str) -> object:
        return json.loads(run("agents", "get", agent, "-o", "json", env={"FAIRLEAD_API": demo.api}).stdout)["node"]

    assert node_of("agent-2") == "node-2"
    assert counted(demo) == "1\n2\n3\n4\n5\n6\n"
    assert node_of("agent-2") == "node-1", "its link has moved"
    wait_until(lambda: demo.printed("node-2 is back"))
    (line,) = (line for line in demo.talk if "node-2 (pid" in line and "ended" in line)
    assert re.search(
        r"ended by signal 9 \(SIGKILL\); it is restarted in [\d.]+ s\. Its agents connect to another", line
    )

    for name in ("agent-1", "valkey"):
        demo.kill(name)
        wait_until(lambda name=name: demo.printed(f"{name} is back"))
    os.kill(demo.pid_of("node-1"), signal.SIGTERM)  # it drains, exits with 0, and is started again as well
    wait_until(lambda: demo.printed("node-1 is back"))
    for agent in ("agent-1", "agent-2"):
        done = run("exec", agent, "--", "echo", "here", env={"FAIRLEAD_API": demo.api})
        assert done.stdout == b"here\n", done.stderr

    demo.family = psutil.Process(demo.process.pid).children(recursive=True)
    demo.process.send_signal(signal.SIGINT)
    assert demo.wait() == 0, demo.talk
    assert not [one for one in demo.family if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]
    assert not list(demo.data.glob("*.pid"))


def test_a_part_that_fails_repeatedly_ends_the_demo(demo: Running, wait_until: Callable[..., object]) -> None:
    found = re.search(r"node-2 .*links ws://127\.0\.0\.1:(\d+)", demo.shown)
    assert found is not None
    port = int(found[1])
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)

        def take() -> bool:
            try:
                taken.bind(("127.0.0.1", port))
            except OSError:
                return False  # the kernel has not closed it yet
            return True

        demo.kill("node-2")
        wait_until(take)  # long before it is started again, which takes half a second at least
        taken.listen()
        assert demo.wait() == 1
    talk = "".join(demo.talk)
    assert "ended with exit code 2 before it was ready; it is restarted" in talk
    assert f"node-2 is not restarted, because it failed {restarts.MOST_FAILURES} times in a row" in talk
    assert f"cannot use link port {port} on 127.0.0.1" in talk, "its last log lines"
    assert not [one for one in demo.family if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]


def test_a_second_demo_in_the_same_folder_does_not_disturb_the_first(demo: Running, run: Run) -> None:
    before = demo.pid_of("valkey")
    done = run("demo", "--port", "0", "--data", str(demo.data))
    assert done.returncode == 2
    assert f"is in use by another server (process {before})" in done.stderr.decode()
    assert demo.pid_of("valkey") == before
    assert demo.process.poll() is None
