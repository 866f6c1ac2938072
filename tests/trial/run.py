"""The great trial: agents by the thousand on a real Kubernetes, commands on all of them, and one fault after the other.

    python -m trial.run                         2,000 agents: Fairlead with its operator, then a plain Deployment
    python -m trial.run --agents 200 --only fairlead
    python -m trial.run --chapter canary        what is needed for it, and this one alone
    python -m trial.run --older HEAD~1          a release of that commit is upgraded to the present one, and rolled back

Started by `make trial`, which brings the cluster and the images. Agents come through the Ingress, commands through the
Service. Each chapter begins when the one before it has come to rest, and none waits for longer than some minutes; one
that fails is told, its fault is taken back, and the next is played. The result is a Markdown table for each fleet,
printed and written to a file; what it was made from stays in the folder that is named first. It exits with 1 when
Fairlead lost a command or ran one twice. docs/trial.md explains the columns.
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
from support.interop.older_version import HistoryMissing
from support.kube import INGRESS, Kube, KubeError, find
from trial import external_metric, fairlead_fleet, plain_fleet
from trial.cpu import CpuWatch
from trial.fairlead_fleet import FairleadFleet
from trial.fleet import GROWTH, Chapter, Fleet, wait_until_settled
from trial.links import RecordedLink, read_links
from trial.older_fleet import OlderFleet, OlderImages
from trial.plain_fleet import PlainFleet
from trial.programs import AgentPrograms, CallerProgram
from trial.report import AFTERWARDS, BEFORE, FleetResult, Played, table_of
from trial.traffic import Pace

LINKED_TIMEOUT = 300.0
LOGGED_TIMEOUT = 60.0
STOPPED = "stopped by hand"
MOST = 5_000
"""Agents: beyond that, one machine that holds both ends measures itself."""


def print_progress(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')}  {text}", file=sys.stderr, flush=True)


def play(fleet: Fleet, kind: str, agents: int, folder: Path, wanted: Callable[[str], bool]) -> FleetResult:
    """All wanted chapters of one fleet, and what was recorded."""
    result = FleetResult(fleet.name, agents, fleet.budget)
    began = time.time()
    cpu = CpuWatch()
    fleet.install()
    print_progress(f"{fleet.name} is installed")
    programs = AgentPrograms(fleet.host, kind, agents, folder, fleet.agent_environment())
    callers = None
    cpu.start()
    try:
        print_progress(f"{agents} agents: {wait_until_settled(fleet, agents, 1, LINKED_TIMEOUT)}")
        callers = CallerProgram(kind, fleet.url, agents, folder, fleet.caller_environment(), Pace())
        time.sleep(20)  # until the commands are spread over their time
        result.played.append(Played(BEFORE, began, time.time(), [], ""))
        for chapter in fleet.chapters():
            if wanted(chapter.name):
                result.played.append(played := _play(fleet, chapter))
                print_progress(f"{played.name}: {played.note}")
                if played.note.endswith(STOPPED):
                    break
                if not (programs.alive() and callers.alive()):
                    raise AssertionError(f"a process with agents or callers has ended: see {folder}")
    except KeyboardInterrupt:
        print_progress(STOPPED)
    finally:
        print_progress("callers hear their last")
        since = time.time()
        if callers is not None:
            callers.finish()
            result.caller_log = callers.caller_log()
        result.played.append(Played(AFTERWARDS, since, time.time(), [], ""))
        programs.end()
        cpu.stop()
        fleet.end()
    result.runs, result.usages = programs.runs(), cpu.usages
    result.links = logged(fleet.host, began)
    return result


def _play(fleet: Fleet, chapter: Chapter) -> Played:
    """One chapter. Whatever goes wrong in it is a result; what comes after it shows whether it heals."""
    since = time.time()
    ready: list[str] = []
    try:
        note = chapter.play()
    except KeyboardInterrupt:
        return Played(chapter.name, since, time.time(), [], STOPPED)
    except Exception as e:
        note = f"did not end as it should: {str(e)[:300] or e!r}"
        try:
            note = f"{note}; then {fleet.restore()}"
        except KeyboardInterrupt:
            return Played(chapter.name, since, time.time(), [], f"{note}; {STOPPED}")
        except Exception as error:
            note = f"{note}; its fault could not be taken back: {str(error)[:200]}"
    try:
        ready = [str(pod["status"]["podIP"]) for pod in fleet.pods() if is_ready(pod)]
    except KubeError as e:
        note = f"{note}; its pods are not known: {str(e)[:100]}"
    return Played(chapter.name, since, time.time(), ready, note)


def logged(host: str, since: float) -> list[RecordedLink]:
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


def keep(result: FleetResult, kind: str, folder: Path) -> None:
    """The raw material, beside what agents and callers wrote."""
    for name, made in (("chapters", result.played), ("links", result.links), ("processors", result.usages)):
        (folder / f"{kind}-{name}.json").write_text(json.dumps([asdict(one) for one in made], indent=1))


def own_address() -> str:
    """Of this machine, as the cluster sees it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((INGRESS.partition(":")[0], 9))
        return str(probe.getsockname()[0])


def arguments() -> tuple[argparse.ArgumentParser, argparse.Namespace]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", type=int, default=2_000, help=f"of each fleet, at most {MOST:,}")
    parser.add_argument("--only", choices=["fairlead", "plain"])
    parser.add_argument(
        "--older", metavar="COMMIT", help="only Fairlead: from this commit's release to the present one"
    )
    parser.add_argument("--skip", action="append", default=[], help="a word of the names of chapters to leave out")
    parser.add_argument("--chapter", action="append", default=[], help="a word of the names of the chapters to play")
    parser.add_argument("--out", type=Path, default=Path("trial.md"), help="where the tables go")
    options = parser.parse_args()
    if options.older:
        if options.only == "plain":
            parser.error("--older: expected no --only plain, whose fleet has no other version")
        options.only = "fairlead"
    if not 4 <= options.agents <= MOST:
        parser.error(f"--agents {options.agents}: expected 4 to {MOST:,}")
    return parser, options


def main() -> int:
    parser, options = arguments()
    kube = find()
    if not isinstance(kube, Kube):
        parser.error(kube)
    if not ACCESS.exists():
        parser.error("the trial reads the log of the Ingress of the cluster that `make cluster` starts")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # both end the chapters, and what was played is told
    folder = Path(tempfile.mkdtemp(prefix="trial-"))
    print_progress(f"logs and raw material in {folder}")
    try:
        older = OlderImages(options.older, folder) if options.older else None
    except HistoryMissing as e:
        print_progress(f"NO OLDER VERSION IS PLAYED: no commit {options.older} here: {e}")
        return 0

    def wanted(chapter: str) -> bool:
        asked = not options.chapter or chapter == GROWTH or any(word in chapter for word in options.chapter)
        return asked and not any(word in chapter for word in options.skip)

    def fairlead() -> Fleet:
        return (
            FairleadFleet(kube, folder, options.agents)
            if older is None
            else OlderFleet(kube, folder, options.agents, older)
        )

    fleets: dict[str, tuple[str, Callable[[], Fleet]]] = {
        "fairlead": (fairlead_fleet.NAMESPACE, fairlead),
        "plain": (plain_fleet.NAMESPACE, lambda: PlainFleet(kube, folder, options.agents, own_address())),
    }
    # A trial that was killed leaves it behind, and the namespaces that it was for cannot end then.
    kube.kubectl("delete", "apiservice", external_metric.API_SERVICE, "--ignore-not-found")
    results: dict[str, FleetResult] = {}
    for kind, (namespace, make) in fleets.items():
        if options.only in (None, kind):
            with kube.namespace(namespace):
                results[kind] = play(make(), kind, options.agents, folder, wanted)
            keep(results[kind], kind, folder)
            options.out.write_text("\n\n".join(table_of(result) for result in results.values()) + "\n")
            print_progress(f"written: {options.out}")
    print(options.out.read_text())
    return 1 if "fairlead" in results and results["fairlead"].faults() else 0


if __name__ == "__main__":
    sys.exit(main())
