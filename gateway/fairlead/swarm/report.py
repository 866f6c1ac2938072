"""A result of a swarm in words and as JSON. Pure: the command line prints what comes from here.

Nothing is rounded into a better light: refusals stand beside welcomes by their reason, and when the swarm itself was
late, it says so, because then its latencies are partly its own.
"""

from __future__ import annotations

from fairlead.swarm.coordinator import SwarmResult
from fairlead.swarm.counters import Counters, LatencyHistogram

LATE = 0.05
"""Seconds of lateness of the swarm's own timer, at p99, from which on its latencies are not to be trusted."""


def progress_line(phase: str, counters: Counters, agents: int, seconds: float) -> str:
    parts = [f"{seconds:5.0f} s  {phase}: {counters.linked:,} of {agents:,} linked"]
    if counters.refused:
        parts.append("refused " + counts(counters.refused))
    if counters.lost or counters.gone:
        parts.append(f"lost {counters.lost + counters.gone:,}")
    if counters.moved:
        parts.append(f"moved {counters.moved:,}")
    if counters.drops:
        parts.append(f"dropped {counters.drops:,}, back {counters.back.count:,}")
    if counters.commands:
        parts.append(f"commands {counters.answered:,} of {counters.commands:,}")
    return ", ".join(parts)


def counts(by: dict[str, int]) -> str:
    return ", ".join(f"{name}: {count:,}" for name, count in sorted(by.items(), key=lambda item: -item[1])) or "none"


def as_json(result: SwarmResult) -> dict[str, object]:
    options, t = result.options, result.counters
    return {
        "ok": result.well,
        "agents": options.agents,
        "processes": options.processes,
        "profiles": dict(options.mix),
        "ramp_s": round(t.ramp.longest, 3),
        "held_s": round(result.held, 3),
        "linked": t.linked,
        "missing": t.missing,
        "lost": t.lost,
        "gone": t.gone,
        "moved": t.moved,
        "violations": t.violations,
        "died": result.died,
        "closed": t.closed,
        "connect": {
            "attempts": t.attempts, "welcomes": t.welcomes, "agents": t.once, "refused": t.refused,
            "last_reason": t.reason, "dial": _latency(t.dial), "welcome": _latency(t.connect),
        },
        "heartbeats": {"sent": t.beats, "answered": t.echoes, "rtt": _latency(t.rtt)},
        "commands": {
            "received": t.commands, "answered": t.answered, "duplicates": t.duplicates, "output_bytes": t.output_bytes,
        },
        "events": {"sent": t.events, "stored": t.events_stored, "skipped": t.events_skipped},
        "half_open": {"ended_by_gateway": t.silenced, "unnoticed": t.unnoticed},
        "storm": {"dropped": t.drops, "back": _latency(t.back)},
        "generator": {
            "cpu_s": round(t.cpu, 3), "lag": _latency(t.lag), "late": late(t),
            "bytes_per_agent": t.memory // options.agents if t.memory else None, "bytes": t.footprint or None,
            "bytes_grown": t.memory or None,
        },
    }  # fmt: skip


def as_table(result: SwarmResult) -> str:
    options, t = result.options, result.counters
    rows: list[tuple[str, str]] = [
        ("agents", f"{options.agents:,} in {options.processes} processes; {', '.join(_share(options.mix))}"),
        ("linked at the end", f"{t.linked:,}" + (f", {t.missing:,} missing" if t.missing else "")),
        ("welcomed", f"{'all' if result.complete else f'{t.once:,}'} after {t.ramp.longest:.2f} s"),
        ("held for", f"{result.held:.1f} s"),
        ("attempts", f"{t.attempts:,}, {t.welcomes:,} welcomed; refused: {counts(t.refused)}"),
        ("connect to welcome", _words(t.connect)),
        ("of it, to the upgrade", _words(t.dial)),
        ("links ended by gateway", counts(t.closed)),
        ("lost", f"{t.lost:,}; closed for good: {t.gone:,}; moved on request: {t.moved:,}"),
        ("heartbeats", f"{t.beats:,} sent, {t.echoes:,} answered; {_words(t.rtt)}"),
        ("commands", f"{t.commands:,} received, {t.answered:,} answered and stored; {t.duplicates:,} duplicates; "
                     f"{t.output_bytes:,} bytes of output"),
    ]  # fmt: skip
    if t.events or t.events_skipped:
        rows.append(("events", f"{t.events:,} sent, {t.events_stored:,} stored, {t.events_skipped:,} skipped"))
    if t.silenced or t.unnoticed or "half-open" in options.mix:
        rows.append(("half-open links", f"{t.silenced:,} ended by the gateway, {t.unnoticed:,} not noticed in time"))
    if t.drops:
        rows.append(("storms", f"{t.drops:,} links dropped, {t.back.count:,} back; {_words(t.back)}"))
    if t.violations:
        rows.append(("violations", f"{t.violations:,}: the gateway broke the protocol"))
    if result.died:
        rows.append(("processes died", f"{result.died} of {options.processes}"))
    if t.reason:
        rows.append(("last refusal", t.reason))
    own = f"{t.cpu:.1f} s of CPU"
    if t.memory:
        own += f", {t.memory // options.agents:,} bytes of memory an agent, {t.footprint / 2**20:,.0f} MiB in all"
    rows.append(("the swarm itself", own))
    width = max(len(name) for name, _ in rows)
    lines = [f"{name.ljust(width)}  {text}" for name, text in rows]
    if late(t):
        lines.append(
            f"! the swarm was late itself (timer p99 {_ms(t.lag.quantile(0.99))}): its latencies are partly its own; "
            "use more --processes, a lower --rate or another machine"
        )
    return "\n".join(lines)


def late(counters: Counters) -> bool:
    lag = counters.lag.quantile(0.99)
    return lag is not None and lag > LATE


def _share(mix: dict[str, int]) -> list[str]:
    total = sum(mix.values())
    return [f"{share * 100 / total:g} % {name}" for name, share in mix.items()]


def _latency(latencies: LatencyHistogram) -> dict[str, float | int | None]:
    """In milliseconds."""

    def ms(seconds: float | None) -> float | None:
        return None if seconds is None else round(seconds * 1000, 3)

    return {
        "count": latencies.count,
        "p50_ms": ms(latencies.quantile(0.5)),
        "p99_ms": ms(latencies.quantile(0.99)),
        "max_ms": ms(latencies.longest if latencies.count else None),
    }


def _words(latencies: LatencyHistogram) -> str:
    if not latencies.count:
        return "not measured"
    return f"p50 {_ms(latencies.quantile(0.5))}, p99 {_ms(latencies.quantile(0.99))}, longest {_ms(latencies.longest)}"


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1000:,.1f} ms"
