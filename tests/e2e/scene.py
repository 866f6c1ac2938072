"""What the chapters of the story share: the release, the agents outside the cluster, and the callers.

Made once by the fixture, ended by it whatever happens. Agents are processes that find the Ingress by its host name,
through an /etc/hosts of their own; how each ended is looked at by the chapters that end them.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any

from callers import Callers
from evidence import now
from kube import INGRESS, Kube, behind
from release import HOST, Release

FAIRLEAD = [sys.executable, "-m", "fairlead"]
WORKERS = Path(__file__).with_name("workers.py")
URL = f"ws://{HOST}:{INGRESS.rpartition(':')[2]}"
METRICS = f"http://{INGRESS.partition(':')[0]}:8001/metrics"
STOP_TIMEOUT = 60.0
LOG_LINES = 20


class Program:
    """One process with agents, outside the cluster."""

    def __init__(self, scene: Scene, name: str, argv: list[str]) -> None:
        self.name = name
        self.log = scene.folder / f"{name}.log"
        self._shown = scene.folder / f"{name}.out"
        environment = {
            **os.environ,
            "FAIRLEAD_AGENT_TOKEN": scene.release.token("agent"),
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        }
        with self.log.open("wb") as log, self._shown.open("wb") as shown:
            self._process = subprocess.Popen(
                behind(scene.folder / "hosts", [HOST], *argv),
                env=environment, stdin=subprocess.DEVNULL, stdout=shown, stderr=log, start_new_session=True,
            )  # fmt: skip

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def stop(self) -> int:
        """SIGTERM; the exit code."""
        if self.running:
            self._process.terminate()
        try:
            return self._process.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            raise

    def complaints(self) -> dict[str, int]:
        """Of a swarm that was stopped: agents that lost links, did not come back, saw what no gateway may do."""
        told: dict[str, Any] = json.loads(self._shown.read_text())
        return {word: told[word] for word in ("lost", "missing", "gone", "violations", "died") if told[word]}

    def tail(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-LOG_LINES:])


class Scene:
    def __init__(self, kube: Kube, namespace: str, folder: Path) -> None:
        self.release = Release(kube, namespace, folder)
        self.folder = folder
        self.began = now()
        self.programs: dict[str, Program] = {}
        self.callers: Callers | None = None

    def __enter__(self) -> Scene:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.callers is not None:
            self.callers.finish()
        for program in self.programs.values():
            if program.running:
                program.stop()

    def start(self, name: str, *argv: str) -> Program:
        program = self.programs[name] = Program(self, name, list(argv))
        return program

    def swarm(self, name: str, agents: int, rate: int) -> Program:
        """Idle agents, held until they are stopped."""
        return self.start(
            name, *FAIRLEAD, "swarm", "--url", URL, "--agents", str(agents), "--rate", str(rate),
            "--processes", "1", "--id-prefix", name, "--output", "json",
        )  # fmt: skip

    def workers(self, count: int) -> Program:
        return self.start("workers", sys.executable, str(WORKERS), URL, str(count), str(self.book))

    @property
    def book(self) -> Path:
        return self.folder / "runs"

    def call(self, workers: int, rate: float) -> None:
        """From now on the workers get commands all the time."""
        platform, token = self.release.platform(), self.release.token("platform")
        self.book.touch()
        self.callers = Callers(platform, token, workers, rate, self.book)
        self.callers.start()

    def exec(self, agent: str, *argv: str) -> str:
        """`fairlead exec` through the platform's Service."""
        environment = {
            **os.environ,
            "FAIRLEAD_API": self.release.platform(),
            "FAIRLEAD_TOKEN": self.release.token("platform"),
        }
        done = subprocess.run(
            [*FAIRLEAD, "exec", "--no-stdin", agent, "--", *argv],
            env=environment, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"exec ended with {done.returncode}: {done.stderr}"
        return done.stdout

    def open_connections(self) -> int:
        """Those that Traefik holds for its clients, at this moment."""
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(METRICS, timeout=5) as answer:
            lines = answer.read().decode().splitlines()
        found = [line for line in lines if line.startswith('traefik_open_connections{entrypoint="web"')]
        return int(float(found[0].rpartition(" ")[2]))

    def linked(self, agents: int, timeout: float) -> float:
        """Wait until the operator counts that many links; the seconds it took."""
        return self.release.until(f"{agents} links", lambda: self.release.links() == agents, timeout)

    def tell(self) -> None:
        """All that one wants to read after a failure."""
        print(self.release.kube.account(self.release.namespace), file=sys.stderr)
        for program in self.programs.values():
            print(f"--- {program.name}: {'runs' if program.running else 'ended'}\n{program.tail()}", file=sys.stderr)
        if self.callers is not None:
            entries = list(self.callers.ledger.entries)
            open_ones = [str(entry) for entry in entries if not entry.over]
            print(f"--- callers: {len(entries)} commands, open: {open_ones[:10]}", file=sys.stderr)

    def note(self, text: str) -> None:
        """One line of the story, with its time since the beginning."""
        print(f"{(now() - self.began).total_seconds():6.1f} s  {text}", flush=True)


def sleep(seconds: float) -> None:
    """Time that must really pass: a fault lasts so long, or nothing may happen in it."""
    time.sleep(seconds)
