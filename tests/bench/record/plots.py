"""The plots of the record, drawn by matplotlib as SVG: the same figures make the same file. Called by `page`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib
from matplotlib.figure import Figure

from bench.market.run import LABELS as MARKET_LABELS
from bench.peers.catalogue import FLOORS, LABELS, OWN

if TYPE_CHECKING:
    from matplotlib.axes import Axes

OURS, PEER, FLOOR = "#0072B2", "#999999", "#009E73"
LINES = ("#0072B2", "#56B4E9", "#D55E00", "#000000", "#E69F00", "#CC79A7")
"""Okabe and Ito, as in the simulator's plots."""

PARTS = {"nodes": "#0072B2", "Valkey": "#D55E00", "kernel, both ends": "#999999"}


def draw(folder: Path, results: dict[str, dict[str, Any]]) -> dict[str, str]:
    """Writes the plots; for each run that has some, the Markdown that shows them."""
    folder.mkdir(parents=True, exist_ok=True)
    shown: dict[str, str] = {}
    if "links" in results:
        figures = results["links"]["figures"]
        _bars(folder / "links.svg", figures)
        shown["links"] = "![CPU per client, bytes and echo of each server](benchmarks/links.svg)"
    if "hold" in results:
        hold(folder / "hold.svg", results["hold"]["figures"])
        shown["hold"] = "![Memory and CPU time over agents that join](benchmarks/hold.svg)"
    if "market" in results:
        _memory(folder / "market.svg", results["market"]["figures"])
        shown["market"] = (
            "![Memory of each server over minutes beside a client that does not read](benchmarks/market.svg)"
        )
    return shown


def _bars(path: Path, figures: dict[str, Any]) -> None:
    plain, rounds, echoes = figures["plain"], figures["rounds"], figures["echo"]
    size, count = list(rounds)[-1], list(echoes)[-1]
    panels = (
        (f"CPU µs per client, {int(size):,} clients", {name: one["cpu_us"] for name, one in rounds[size].items()}),
        ("Bytes of an idle connection", {name: one["bytes"] for name, one in plain.items()}),
        (f"CPU µs per echo, {int(count):,} connections", {name: one["us"] for name, one in echoes[count].items()}),
    )
    figure = Figure(figsize=(11, 0.28 * len(plain) + 1.2), layout="constrained")
    axes = figure.subplots(1, len(panels), sharey=True)
    for axis, (title, values) in zip(axes, panels, strict=True):
        _panel(axis, title, values)
    _save(figure, path)


def _panel(axis: Axes, title: str, values: dict[str, float]) -> None:
    names = list(values)[::-1]  # the first one on top
    colours = [OURS if name in OWN else FLOOR if name in FLOORS else PEER for name in names]
    bars = axis.barh([LABELS[name].strip("*") for name in names], [values[name] for name in names], color=colours)
    axis.bar_label(bars, fmt="{:,.0f}", fontsize=7, padding=2)
    axis.set_title(title, loc="left", fontsize=9)
    axis.tick_params(labelsize=8)
    axis.margins(x=0.15)


def hold(path: Path, figures: dict[str, Any]) -> None:
    """Memory and CPU time over the agents that have joined, from the figures of `bench.hold`, which calls it too."""
    growth = figures["growth"]
    begin, agents = growth[0], [one["agents"] for one in growth]
    panels = (
        ("MiB more than without agents", 2**20,
         {"kernel, both ends": "slab", "nodes": "nodes_rss", "Valkey": "valkey_used"}),
        ("CPU seconds since the first agent", 1e6, {"nodes": "nodes_us", "Valkey": "valkey_us"}),
    )  # fmt: skip
    figure = Figure(figsize=(11, 3.5), layout="constrained")
    for axis, (title, unit, lines) in zip(figure.subplots(1, len(panels)), panels, strict=True):
        for name, key in lines.items():
            values = [(one[key] - begin[key]) / unit for one in growth]
            axis.plot(agents, values, label=name, color=PARTS[name])
        axis.set_title(title, loc="left", fontsize=9)
        axis.set_xlabel("Agents")
        axis.xaxis.set_major_formatter("{x:,.0f}")
        axis.yaxis.set_major_formatter("{x:,.0f}")
        axis.tick_params(labelsize=8)
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8, frameon=False)
    _save(figure, path)


def _memory(path: Path, figures: dict[str, Any]) -> None:
    figure = Figure(figsize=(9, 3.5), layout="constrained")
    axis = figure.subplots()
    for colour, (name, values) in zip(LINES, figures["memory"].items(), strict=False):
        minutes = [i * figures["sample_s"] / 60 for i in range(len(values))]
        axis.plot(minutes, [value - values[0] for value in values], label=MARKET_LABELS[name], color=colour)
    axis.set_title("MiB more than before, with one client that does not read", loc="left", fontsize=9)
    axis.set_xlabel("Minutes")
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8, frameon=False)
    _save(figure, path)


def _save(figure: Figure, path: Path) -> None:
    with matplotlib.rc_context({"svg.hashsalt": path.stem, "svg.fonttype": "none"}):
        figure.savefig(path, format="svg", metadata={"Date": None})
