"""The tables that run.py prints: a row for each server, and its ratio to the node or to the carrier."""

from __future__ import annotations

import statistics
from typing import Any

from bench.links.scale import Scale
from bench.peers.catalogue import LABELS


def ratio(figure: float, ours: float) -> float:
    """NaN where ours is too short for the scheduler's count: at the tiny scale of a test."""
    return figure / ours if ours > 0 else float("nan")


def table(title: str, head: list[str], rows: list[list[Any]]) -> None:
    print(f"\n{title}\n")
    cells = [[f"{c:,.1f}" if isinstance(c, float) else str(c) for c in row] for row in rows]
    print("| " + " | ".join(head) + " |")
    print("|" + "---|" * len(head))
    for row in cells:
        print("| " + " | ".join(row) + " |")


def report(
    node: dict[str, Any],
    plain: dict[str, dict[str, float]],
    echoes: dict[int, dict[str, dict[str, float]]],
    scale: Scale,
) -> None:
    mebibytes = [f"{one['pss'] / 2**20:.1f}" for one in node["cycles"]]
    again, valkey_again = (
        statistics.median(one[key] for one in node["cycles"]) for key in ("accept_us", "accept_valkey_us")
    )
    table(
        f"The real node, {scale.agents:,} registered agents; Valkey's own share apart",
        ["", "node", "Valkey"],
        [
            ["bytes (PSS) per idle agent", node["bytes"], node["valkey_bytes"]],
            ["CPU µs per accept of new agents", node["accept_us"], node["accept_valkey_us"]],
            [f"CPU µs per accept of known agents, median of {scale.cycles} × {scale.cycle:,}", again, valkey_again],
            [f"full collection among {scale.crowd:,} agents, ms", node["gc_ms"], ""],
            [f"PSS after {scale.cycles} comings and goings, first … last, MiB",
             f"{mebibytes[0]} … {mebibytes[-1]}", ""],
        ],
    )  # fmt: skip
    table(
        "Commands: POST, the stream read to its end",
        ["in flight", "p50 ms", "p99 ms", "node CPU µs", "Valkey CPU µs"],
        [
            [c["in_flight"], f"{c['p50_ms']:.2f}", f"{c['p99_ms']:.2f}", c["node_us"], c["valkey_us"]]
            for c in node["commands"]
        ],
    )
    mine = {"the node, registered": node} | {LABELS[name]: figures for name, figures in plain.items()}
    table(
        f"Idle connections ({scale.agents:,}; the collection among {scale.crowd:,}); × is the ratio to the node",
        ["server", "bytes", "×", "accept µs", "×", "full collection ms", "×"],
        [
            [name, *(v for f in ("bytes", "accept_us", "gc_ms") for v in (p[f], ratio(p[f], node[f])))]
            for name, p in mine.items()
        ],
    )
    table(
        "Echo of 128 B, server CPU µs per message; × is the ratio to Fairlead's carrier",
        ["server", *(h for c in echoes for h in (f"{c} conn", "×"))],
        [
            [
                LABELS[n],
                *(
                    v
                    for c in echoes
                    for v in (echoes[c][n]["us"], ratio(echoes[c][n]["us"], echoes[c]["fairlead"]["us"]))
                ),
            ]
            for n in plain
        ],
    )


def report_rounds(found: dict[int, dict[str, dict[str, float]]]) -> None:
    for clients, peers in found.items():
        ours = peers["fairlead"]
        table(
            f"Rounds of {clients:,} clients: connect, send {{c}}, get {{c, ts}}; × is the ratio to Fairlead's carrier",
            ["server", "CPU µs per client", "×", "round s", "connect p50 ms", "connect p99 ms", "answer p50 ms",
             "answer p99 ms"],
            [
                [LABELS[name], one["cpu_us"], ratio(one["cpu_us"], ours["cpu_us"]), f"{one['seconds']:.3f}",
                 *(f"{one[figure]:.2f}" for figure in ("connect_p50", "connect_p99", "answer_p50", "answer_p99"))]
                for name, one in peers.items()
            ],
        )  # fmt: skip
