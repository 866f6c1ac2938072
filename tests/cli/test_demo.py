"""The demo: its ports, its children, and the whole of it from start to Ctrl-C."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from fairlead.cli.child import Child, tail
from fairlead.cli.doors import check_doors, free_doors
from fairlead.errors import ConfigError

Run = Callable[..., subprocess.CompletedProcess[bytes]]
WAIT = 50.0


def test_taken_ports_are_all_named(run: Run) -> None:
    one, two = free_doors(2)
    assert len({*one, *two}) == 6
    with socket.create_server(("127.0.0.1", one.link)), socket.create_server(("127.0.0.1", two.admin)):
        with pytest.raises(ConfigError) as caught:
            check_doors([one, two])
        done = run("demo", "--port", str(one.link))
    assert f"port {one.link} (agents' links)" in caught.value.message
    assert f"port {two.admin} (probes and metrics)" in caught.value.message
    assert f"port {one.api}" not in caught.value.message
    assert done.returncode == 2
    assert "--port 0" in done.stderr.decode()
    check_doors([one, two])


def test_each_node_takes_three_ports_in_a_row(run: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = run("demo", "--port", str(port - 5), "--nodes", "2")
    assert f"port {port} (probes and metrics) cannot be had" in done.stderr.decode()
    assert done.returncode == 2


def test_the_ports_of_all_nodes_must_exist(run: Run) -> None:
    done = run("demo", "--port", "65531", "--nodes", "2")
    assert done.returncode == 2
    assert "65530 is the highest" in done.stderr.decode()


def python(code: str) -> list[str]:
    return [sys.executable, "-I", "-c", code]


async def test_a_child_ends_when_told_to(tmp_path: Path) -> None:
    child = Child("sleeper", python("import time; time.sleep(1000)"), tmp_path / "log", {})
    await child.start()
    assert child.alive
    assert await child.stop(10)
    assert not child.alive
    assert "by signal 15" in child.epitaph()


async def test_a_child_that_does_not_listen_is_killed(tmp_path: Path) -> None:
    code = "import signal as s; s.signal(s.SIGTERM, s.SIG_IGN); print('deaf', flush=True); s.pause(); s.pause()"
    child = Child("deaf", python(code), tmp_path / "log", {})
    await child.start()
    while "deaf" not in tail(child.log):  # bounded by the test's own timeout
        assert child.alive
    assert not await child.stop(0.1)
    assert not child.alive


async def test_a_dead_child_leaves_its_last_words(tmp_path: Path) -> None:
    code = "import sys; [print('line', i, flush=True) for i in range(100)]; sys.exit('no more')"
    child = Child("talker", python(code), tmp_path / "log", {})
    await child.start()
    await child.ended()
    epitaph = child.epitaph()
    assert "talker ended with exit code 1" in epitaph
    assert "no more" in epitaph
    assert "line 99" in epitaph
    assert "line 1\n" not in epitaph


class Running:
    """A demo that has said that it is ready."""

    def __init__(self, data: Path) -> None:
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
    apis = [words[1] for line in demo.shown.splitlines() if (words := line.split())[:1] == ["API"]]
    assert len(apis) == 1, "one line, for the eye and for awk"
    urls = apis[0].split(",")
    assert len(set(urls)) == 2
    rows = json.loads(run("agents", "ls", "-o", "json", env={"FAIRLEAD_API": apis[0]}).stdout)["agents"]
    assert {row["id"]: row["node"] for row in rows} == {"agent-1": "node-1", "agent-2": "node-2"}
    for url in (apis[0], *urls):
        done = run("exec", "agent-2", "--", "tr", "a-z", "A-Z", env={"FAIRLEAD_API": url}, input=b"hello\n")
        assert (done.stdout, done.returncode) == (b"HELLO\n", 0), done.stderr
    assert len(demo.family) >= 5
    demo.process.send_signal(signal.SIGINT)
    assert demo.wait() == 0, demo.talk
    assert not [one for one in demo.family if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]
    assert "killed" not in "".join(demo.talk)


def test_a_part_that_dies_ends_the_demo_and_is_named(demo: Running) -> None:
    found = re.search(r"agent-1 \(pid (\d+)\)", demo.shown)
    assert found is not None
    os.kill(int(found[1]), signal.SIGKILL)
    assert demo.wait() == 1
    talk = "".join(demo.talk)
    assert "agent-1 ended by signal 9" in talk
    assert "agent-1.log" in talk
    assert not [one for one in demo.family if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]
