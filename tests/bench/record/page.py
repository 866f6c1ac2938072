"""Writes the tables of record into docs/benchmarks.md, between two markers, and the plots beside it.

Everything between the markers is generated: how the figures came about, what is behind a peer and why, the tables, the
plots. What stands outside is written by hand and stays.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.output import markdown
from bench.record import plots, sections
from bench.record.comparison import Behind, behind
from bench.record.runs import RUNS

BEGIN, END = "<!-- record: written by make bench-record -->", "<!-- record: end -->"
BUSY = 1.0
"""A load average, before a run, from which on the machine did something else too."""
SECTIONS: dict[str, Callable[[dict[str, Any]], str]] = {
    "links": sections.links, "workers": sections.workers, "hold": sections.hold, "market": sections.market,
    "hosts": sections.hosts, "handlers": sections.handlers, "nodes": sections.nodes, "tls": sections.tls,
}  # fmt: skip


def write(docs: Path, results: dict[str, dict[str, Any]]) -> None:
    """Raises SystemExit if the page has no markers."""
    file = docs / "benchmarks.md"
    text = file.read_text()
    if BEGIN not in text or END not in text:
        raise SystemExit(f"{file} has no lines {BEGIN!r} and {END!r}: put them where the tables shall stand")
    pictures = plots.draw(docs / "benchmarks", results)
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    file.write_text(before + BEGIN + "\n" + generated(results, pictures) + "\n" + END + after)


def generated(results: dict[str, dict[str, Any]], pictures: dict[str, str]) -> str:
    parts = [provenance(results), deficits(behind(results))]
    for name, result in results.items():
        parts.append(SECTIONS[name](result["figures"]))
        if name in pictures:
            parts.append(pictures[name])
    return "\n\n".join(parts)


def provenance(results: dict[str, dict[str, Any]]) -> str:
    """The machine, the versions, and for each run its command, time, commit and load."""
    machine = next(iter(results.values()))["machine"]
    text = [
        f"Machine: {machine['cores']} cores ({machine['cpu']}), {machine['gib']} GiB, Linux "
        f"{machine['kernel']}, CPython "
        f"{machine['python']}."
    ]
    others = sorted(
        f"{name} {result['machine']['python']}"
        for name, result in results.items()
        if result["machine"]["python"] != machine["python"]
    )
    if others:
        text.append(f"**Not of one CPython**: {', '.join(others)}; compare within one run only.")
    versions: dict[str, str] = {}
    for result in results.values():
        versions |= result["figures"].get("versions", {}) if isinstance(result["figures"], dict) else {}
    if versions:
        shown = (name for name in sections.SHOWN_VERSIONS if name in versions)
        text.append("Versions: " + ", ".join(f"{name} {versions[name]}" for name in shown) + ".")
    busy = sorted(name for name, result in results.items() if max(result["machine"]["load"], 0) > BUSY)
    if busy:
        text.append(
            f"**The machine was busy** when these runs began: {', '.join(busy)}. Their wall times and "
            "latencies are those of "
            "a shared machine; CPU times and bytes are less disturbed."
        )
    if small := sorted(name for name, result in results.items() if result["scale"] != "full"):
        text.append(f"**Not at full scale**: {', '.join(small)}. These are a first look, not a record.")
    if len(commits := sorted({result["commit"] for result in results.values()})) > 1:
        text.append(f"**Not of one commit**: these runs are of {', '.join(commits)}; compare within one run only.")
    if missing := [run.name for run in RUNS if run.name not in results]:
        text.append(f"Not run: {', '.join(missing)}.")
    rows = [
        [name, f"`{one['command']}`", one["when"], one["commit"], str(one["seconds"]),
         f"{one['machine']['load']} … {one['load_after']}"]
        for name, one in results.items()
    ]  # fmt: skip
    text.append(markdown(["run", "command", "when", "commit", "s", "load before … after"], rows))
    return "\n\n".join(text)


def deficits(found: list[Behind]) -> str:
    """What is behind a peer, for the top of the page."""
    title = "**Behind a peer, or behind its aim**"
    if not found:
        return f"{title}: nothing in these runs."
    rows = [[one.what, one.peer, one.theirs, one.ours, one.reason] for one in found]
    explained = "A cell of market data is listed if the turns of both servers do not overlap."
    return f"{title}, generated from the results. {explained}\n\n" + markdown(
        ["what", "peer or aim", "theirs", "ours", "reason"], rows
    )
