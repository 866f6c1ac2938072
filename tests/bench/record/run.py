"""`make bench-record`: all tables of record in one command, then docs/benchmarks.md and its plots.

Each program's result is a file of .cache/bench/record; `--resume` runs only those that have none, so that a run that
was broken goes on; it refuses to go on with results of another commit or scale. `--only links` runs one of them, and
`--write` only writes the page from what is there. A program that fails costs its own tables: the others run, the page
says which is missing, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from bench.output import print_progress
from bench.peers.c_programs import ROOT
from bench.peers.installation import Installation
from bench.record import page
from bench.record.runs import RUNS, SCALES, commit, folder, make


def results(home: Path) -> dict[str, dict[str, Any]]:
    """What has been run so far, in the order of the page."""
    files = {run.name: home / f"{run.name}.json" for run in RUNS}
    return {name: json.loads(file.read_text()) for name, file in files.items() if file.exists()}


def refuse_others(found: dict[str, dict[str, Any]], scale: str) -> None:
    """Raises SystemExit if a result is of another commit or scale: one page would mix what cannot be compared."""
    now = commit()
    for name, result in found.items():
        if (result["commit"], result["scale"]) != (now, scale):
            raise SystemExit(
                f"the result of {name} is of commit {result['commit']} at scale {result['scale']}: expected {now} at "
                f"scale {scale} (run without --resume, or check out that commit)"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scale", choices=SCALES, default="full")
    parser.add_argument("--resume", action="store_true", help="run only what has no result yet")
    parser.add_argument("--only", nargs="+", choices=[run.name for run in RUNS], default=[run.name for run in RUNS])
    parser.add_argument("--write", action="store_true", help="run nothing; write the page from the results")
    parser.add_argument("--results", type=Path, help="a folder for the results instead of .cache/bench/record/SCALE")
    parser.add_argument("--docs", type=Path, default=ROOT / "docs", help="the folder of benchmarks.md")
    given = parser.parse_args()
    home = given.results or folder(given.scale)
    failed = []
    if not given.write:
        if given.resume:
            refuse_others(results(home), given.scale)
        chosen = [run for run in RUNS if run.name in given.only]
        print_progress(f"about {sum(run.minutes for run in chosen):g} min at full scale, with results in {home}")
        if given.scale != "smoke":
            print_progress("the peers are installed where they are missing, which takes some minutes once")
            Installation(True)  # now, so that no figure has an installation beside it
        for run in chosen:
            if given.resume and (home / f"{run.name}.json").exists():
                print_progress(f"== {run.name}: there already")
            elif not make(run, given.scale, home):
                failed.append(run.name)
    found = results(home)
    if not found:
        why = f"failed: {', '.join(failed)}" if failed else "run `make bench-record` first"
        raise SystemExit(f"no result in {home}, so {given.docs / 'benchmarks.md'} stays as it is; {why}")
    page.write(given.docs, found)
    print_progress(f"\nwritten: {given.docs / 'benchmarks.md'}")
    if given.scale != "full":
        print_progress("it has a first look now; `git checkout docs` brings back what it had")
    if failed:
        again = f"--scale {given.scale} --only {' '.join(failed)} --resume"
        print_progress(f'failed: {", ".join(failed)}; `make bench-record RECORD="{again}"` tries these again')
        sys.exit(1)


if __name__ == "__main__":
    main()
