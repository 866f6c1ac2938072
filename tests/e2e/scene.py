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
import urllib.error
import urllib.request
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any

from e2e.callers import Callers
from e2e.evidence import now
from e2e.figures import StoryFigures
from e2e.release import HOST, VALUES, Release
from e2e.traces import Traces
from support.kube import INGRESS, Kube, behind

FAIRLEAD = [sys.executable, "-m", "fairlead"]
URL = f"ws://{HOST}:{INGRESS.rpartition(':')[2]}"
METRICS = f"http://{INGRESS.partition(':')[0]}:8001/metrics"
STOP_TIMEOUT = 120.0
LOG_LINES = 20


class AgentProgram:
    """One process with agents, outside the cluster."""

    def __init__(self, scene: Scene, name: str, argv: list[str]) -> None:
        self.name = name
        self.log = scene.folder / f"{name}.log"
        self._shown = scene.folder / f"{name}.out"
        environment = {
            **os.environ,
            "FAIRLEAD_AGENT_TOKEN": scene.release.token("agent"),
            "OTEL_EXPORTER_OTLP_ENDPOINT": scene.traces.outside,
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
        """Send SIGTERM and wait for the end; returns the exit code."""
        if self.running:
            self._process.terminate()
        try:
            return self._process.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            raise

    def end(self) -> None:
        """Kill the process, whatever its state."""
        if self.running:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def complaints(self) -> dict[str, int]:
        """Of a swarm that was stopped: agents that lost links, did not come back, saw what no gateway may do."""
        status: dict[str, Any] = json.loads(self._shown.read_text())
        return {word: status[word] for word in ("lost", "missing", "gone", "violations", "died") if status[word]}

    def tail(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-LOG_LINES:])


class Scene:
    def __init__(self, kube: Kube, namespace: str, traces: Traces, folder: Path) -> None:
        # Traces of commands whose caller asks for it, and of a hundredth of the others.
        telemetry = {"otlpEndpoint": traces.inside, "samplingRatio": 0.01}
        self.release = Release(kube, namespace, folder, {**VALUES, "telemetry": telemetry})
        self.traces = traces
        self.figures = StoryFigures()
        self.folder = folder
        self.began = now()
        self.programs: dict[str, AgentProgram] = {}
        self.callers: Callers | None = None
        self.lost = 0
        """Links of the first swarm that were cut by killing a gateway."""

    def __enter__(self) -> Scene:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.callers is not None:
            self.callers.abandon()
        for program in self.programs.values():
            program.end()

    def start(self, name: str, *argv: str) -> AgentProgram:
        program = self.programs[name] = AgentProgram(self, name, list(argv))
        return program

    def swarm(self, name: str, agents: int, rate: int) -> AgentProgram:
        """Idle agents, held until they are stopped."""
        return self.start(
            name, *FAIRLEAD, "swarm", "--url", URL, "--agents", str(agents), "--rate", str(rate),
            "--processes", "1", "--id-prefix", name, "--output", "json",
        )  # fmt: skip

    def workers(self, prefix: str, count: int) -> AgentProgram:
        """Agents of the SDK."""
        return self.start(
            f"{prefix}s", sys.executable, "-m", "e2e.workers", URL, prefix, str(count), str(self.executions)
        )

    @property
    def executions(self) -> Path:
        return self.folder / "runs"

    def call(self, workers: int, rate: float) -> None:
        """From now on the workers receive commands all the time."""
        platform, token = self.release.platform(), self.release.token("platform")
        self.executions.touch()
        self.callers = Callers(platform, token, workers, rate, self.executions)
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

    def ask(self, path: str, method: str = "GET", *, at: str = "") -> Any:
        """The platform's API, through its Service or at an address of one pod. What it refuses is an OSError."""
        request = urllib.request.Request(f"{at or self.release.platform()}{path}", method=method)
        request.add_header("authorization", f"Bearer {self.release.token('platform')}")
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=30) as answer:
            return json.load(answer)

    def run(self, agent: str, method: str, payload: object, trace: str, *, at: str) -> list[Any]:
        """A command that the pod at that address is asked for, in a trace that its caller has begun; all lines."""
        body = json.dumps({"agent": agent, "method": method, "payload": payload}).encode()
        headers = {
            "authorization": f"Bearer {self.release.token('platform')}", "content-type": "application/json",
            "accept": "application/x-ndjson", "traceparent": f"00-{trace}-{os.urandom(8).hex()}-01",
        }  # fmt: skip
        request = urllib.request.Request(f"{at}/v1/commands", data=body, headers=headers)
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60) as answer:
            return [json.loads(line) for line in answer]

    def online(self) -> dict[str, tuple[str, datetime]]:
        """Each agent that is online, the pod that holds its link, and since when."""
        found: dict[str, tuple[str, datetime]] = {}
        cursor = ""
        while True:
            page = self.ask(f"/v1/agents?state=online&limit=500{cursor}")
            found |= {one["id"]: (one["node"], datetime.fromisoformat(one["since"])) for one in page["agents"]}
            if not page["cursor"]:
                return found
            cursor = f"&cursor={page['cursor']}"

    def places(self) -> dict[str, str]:
        """Each agent that is online, and the pod that holds its link."""
        return {agent: pod for agent, (pod, _) in self.online().items()}

    def kill(self, pod: dict[str, Any], timeout: float) -> dict[str, float]:
        """kill -9 of all processes of a pod's container; returns how long each of its agents was without a link, in
        seconds.

        From before the signal until the claim of the next link, which the gateway that took it has written down.
        """
        victims = [agent for agent, place in self.places().items() if place == pod["metadata"]["name"]]
        began = now()
        self.release.signal(pod, signal.SIGKILL)
        found: dict[str, float] = {}

        def all_back() -> bool:
            there = self.online()
            since = {agent: (there[agent][1] - began).total_seconds() for agent in victims if agent in there}
            found.update({agent: seconds for agent, seconds in since.items() if seconds > 0})
            return len(found) == len(victims)

        try:
            self.release.until("the agents of the killed pod at others", all_back, timeout)
        except AssertionError as e:
            raise AssertionError(f"{e}; still away: {sorted(set(victims) - found.keys())}") from e
        return found

    def empty(self, pod: str, agents: int, left: int) -> None:
        """The pod's agents connect anew, again and again, until all `agents` are online, `left` of them there at most,
        and none of those with commands."""

        def emptied() -> bool:
            places = self.places()
            here = [agent for agent, at in places.items() if at == pod]
            if len(here) <= left and not any(agent.startswith("worker-") for agent in here):
                return len(places) == agents
            for agent in here:
                with suppress(urllib.error.HTTPError):  # it moves of itself at this moment
                    self.ask(f"/v1/agents/{agent}/link", "DELETE")
                sleep(0.1)  # what moves faster than pods report is counted twice for a while, and calls for a pod more
            return False

        self.release.until(f"no more than {left} agents at {pod}", emptied, 400)

    def open_connections(self) -> int:
        """Those that Traefik holds for its clients, at this moment."""
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(METRICS, timeout=5) as answer:
            lines = answer.read().decode().splitlines()
        found = [line for line in lines if line.startswith('traefik_open_connections{entrypoint="web"')]
        return int(float(found[0].rpartition(" ")[2]))

    def linked(self, agents: int, timeout: float) -> float:
        """Wait until the operator counts that many links; returns the seconds it took."""
        return self.release.until(f"{agents} links", lambda: self.release.links() == agents, timeout)

    def tell(self) -> None:
        """Everything that is useful after a failure."""
        print(self.release.kube.account(self.release.namespace), file=sys.stderr)
        for program in self.programs.values():
            print(f"--- {program.name}: {'runs' if program.running else 'ended'}\n{program.tail()}", file=sys.stderr)

    def last_words(self) -> str:
        """The most important part of it, in about forty lines."""
        sections = [self.release.kube.digest(self.release.namespace, 4)]
        sections += [f"--- {one.name}: {'runs' if one.running else 'ended'}" for one in self.programs.values()]
        if self.callers is not None:
            entries = list(self.callers.ledger.entries)
            open_ones = [str(entry) for entry in entries if not entry.over]
            sections.append(f"--- callers: {len(entries)} commands, open: {open_ones[:3]}")
        return "\n".join(sections)

    def note(self, text: str) -> None:
        """One line of the story, with its time since the beginning."""
        print(f"{(now() - self.began).total_seconds():6.1f} s  {text}", flush=True)


def sleep(seconds: float) -> None:
    """Time that must really pass: a fault lasts so long, or nothing may happen in it."""
    time.sleep(seconds)
