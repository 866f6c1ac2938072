"""The great trial: agents by the thousand on a real Kubernetes, commands on all of them, and one fault after the other.

    python -m trial.run                         2,000 agents: Fairlead with its operator, then a plain Deployment
    python -m trial.run --agents 200 --only fairlead

Started by `make trial`, which brings the cluster and the images. Agents come through the Ingress, commands through the
Service. Each chapter begins when the one before it has come to rest, and none waits for longer than some minutes. The
result is a Markdown table for each fleet, printed and written to a file. It exits with 1 when Fairlead lost a command
or ran one twice. docs/trial.md explains the columns.
"""

from __future__ import annotations

import argparse
import json
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from e2e.evidence import ACCESS
from e2e.release import is_ready
from support.kube import INGRESS, Kube, KubeError, find
from trial import external_metric, fairlead_fleet, plain_fleet
from trial.agents import name
from trial.fairlead_fleet import FairleadFleet
from trial.fleet import AgentPrograms, Fleet, calm
from trial.links import Link, read_links
from trial.plain_fleet import PlainFleet
from trial.report import Played, Result, tell
from trial.traffic import Traffic

LINKED_TIMEOUT = 300.0
LOGGED_TIMEOUT = 60.0
MOST = 5_000
"""Agents: beyond that, one machine that holds both ends measures itself."""


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')}  {text}", file=sys.stderr, flush=True)


def play(fleet: Fleet, kind: str, agents: int, folder: Path, skip: list[str]) -> Result:
    """All chapters of one fleet, and what was recorded."""
    result = Result(fleet.name, agents)
    began = time.time()
    fleet.install()
    say(f"{fleet.name} is installed")
    programs = AgentPrograms(fleet, kind, agents, folder)
    names = [name(number) for number in range(agents)]
    traffic = Traffic(fleet.api, names, seed=1)
    try:
        say(f"{agents} agents: {calm(fleet, agents, 1, LINKED_TIMEOUT)}")
        traffic.start()
        time.sleep(20)  # until the commands are spread over their time
        for chapter in fleet.chapters():
            if any(word in chapter.name for word in skip):
                continue
            since = time.time()
            try:
                note = chapter.play()
            except (AssertionError, KubeError) as e:  # a result as well; what comes after it shows whether it heals
                note = f"did not end as it should: {str(e)[:300]}"
            except KeyboardInterrupt:
                say(f"stopped in: {chapter.name}")
                break
            ready = [str(pod["status"]["podIP"]) for pod in fleet.pods() if is_ready(pod)]
            result.played.append(Played(chapter.name, since, time.time(), ready, note))
            say(f"{chapter.name}: {note}; {len(traffic.calls)} commands so far")
            if not programs.alive():
                raise AssertionError(f"a process with agents has ended: see {folder}")
    finally:
        traffic.finish()
        programs.end()
        fleet.end()
    result.calls, result.probes, result.runs = traffic.calls, traffic.probes, programs.runs()
    result.repeated = fleet.api.repeated
    result.links = logged(fleet.host, began)
    return result


def logged(host: str, since: float) -> list[Link]:
    """The links in the log of the Ingress, when it has all of them."""
    before = -1
    deadline = time.monotonic() + LOGGED_TIMEOUT
    while True:
        with ACCESS.open() as log:
            links = read_links(log, host, since)
        if len(links) == before or time.monotonic() > deadline:
            return links
        before = len(links)
        time.sleep(3)


def own_address() -> str:
    """Of this machine, as the cluster sees it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((INGRESS.partition(":")[0], 9))
        return str(probe.getsockname()[0])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", type=int, default=2_000, help=f"of each fleet, at most {MOST:,}")
    parser.add_argument("--only", choices=["fairlead", "plain"])
    parser.add_argument("--skip", action="append", default=[], help="a word of the names of chapters to leave out")
    parser.add_argument("--out", type=Path, default=Path("trial.md"), help="where the tables go")
    options = parser.parse_args()
    if not 4 <= options.agents <= MOST:
        parser.error(f"--agents {options.agents}: expected 4 to {MOST:,}")
    kube = find()
    if not isinstance(kube, Kube):
        parser.error(kube)
    if not ACCESS.exists():
        parser.error("the trial reads the log of the Ingress of the cluster that `make cluster` starts")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # both end the chapters, and what was played is told
    folder = Path(tempfile.mkdtemp(prefix="trial-"))
    say(f"logs in {folder}")
    fleets: dict[str, tuple[str, Callable[[], Fleet]]] = {
        "fairlead": (fairlead_fleet.NAMESPACE, lambda: FairleadFleet(kube, folder, options.agents)),
        "plain": (plain_fleet.NAMESPACE, lambda: PlainFleet(kube, folder, options.agents, own_address())),
    }
    # A trial that was killed leaves it behind, and the namespaces that it was for cannot end then.
    kube.kubectl("delete", "apiservice", external_metric.API_SERVICE, "--ignore-not-found")
    results = []
    for kind, (namespace, make) in fleets.items():
        if options.only in (None, kind):
            with kube.namespace(namespace):
                results.append(play(make(), kind, options.agents, folder, options.skip))
            (folder / f"{kind}.json").write_text(json.dumps([asdict(one) for one in results[-1].played], indent=1))
            options.out.write_text("\n\n".join(tell(result) for result in results) + "\n")
            say(f"written: {options.out}")
    print(options.out.read_text())
    ours = [one for one in results if one.fleet == FairleadFleet.name]
    bad = [row for one in ours for row in one.rows() if (row[3], row[4]) != ("0", "0")]
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
