"""The result of a swarm as a table and as JSON. Pure: the command line prints it.

Refusals are listed by their reason beside welcomes, and the report says when the swarm itself was late, because then
its latencies are partly its own.
"""

from __future__ import annotations

from fairlead.swarm.coordinator import SwarmResult
from fairlead.swarm.counters import Counters, LatencyHistogram

LATE = 0.05
"""Seconds of lateness of the swarm's own timer, at p99, above which its latencies cannot be trusted."""


def progress_line(phase: str, counters: Counters, agents: int, seconds: float) -> str:
    parts = [f"{seconds:5.0f} s  {phase}: {counters.linked:,} of {agents:,} linked"]
    if counters.refused:
        parts.append("refused " + counts(counters.refused))
    if counters.lost or counters.rejected:
        parts.append(f"lost {counters.lost + counters.rejected:,}")
    if counters.moved:
        parts.append(f"moved {counters.moved:,}")
    if counters.storm_drops:
        parts.append(f"dropped {counters.storm_drops:,}, back {counters.storm_return.count:,}")
    if counters.commands:
        parts.append(f"commands {counters.answered:,} of {counters.commands:,}")
    return ", ".join(parts)


def counts(by: dict[str, int]) -> str:
    return ", ".join(f"{name}: {count:,}" for name, count in sorted(by.items(), key=lambda item: -item[1])) or "none"


def as_json(result: SwarmResult) -> dict[str, object]:
    options, t = result.options, result.counters
    return {
        "ok": result.ok,
        "agents": options.agents,
        "processes": options.processes,
        "profiles": dict(options.mix),
        "ramp_s": round(t.ramp.longest, 3),
        "held_s": round(result.held, 3),
        "linked": t.linked,
        "missing": t.missing,
        "lost": t.lost,
        "gone": t.rejected,
        "moved": t.moved,
        "violations": t.violations,
        "died": result.died,
        "closed": t.closed,
        "connect": {
            "attempts": t.attempts, "welcomes": t.welcomes, "agents": t.agents_welcomed, "refused": t.refused,
            "last_reason": t.last_refusal, "dial": _latency(t.dial), "welcome": _latency(t.connect),
        },
        "heartbeats": {"sent": t.heartbeats, "answered": t.heartbeat_answers, "rtt": _latency(t.rtt)},
        "commands": {
            "received": t.commands, "answered": t.answered, "duplicates": t.duplicates, "output_bytes": t.output_bytes,
        },
        "events": {"sent": t.events, "stored": t.events_stored, "skipped": t.events_skipped},
        "half_open": {"ended_by_gateway": t.half_open_ended, "unnoticed": t.half_open_unnoticed},
        "storm": {"dropped": t.storm_drops, "back": _latency(t.storm_return)},
        "generator": {
            "cpu_s": round(t.cpu, 3), "lag": _latency(t.lag), "late": late(t),
            "bytes_per_agent": t.memory_grown // options.agents if t.memory_grown else None, "bytes": t.memory or None,
            "bytes_grown": t.memory_grown or None,
        },
    }  # fmt: skip


def as_table(result: SwarmResult) -> str:
    options, t = result.options, result.counters
    rows: list[tuple[str, str]] = [
        ("agents", f"{options.agents:,} in {options.processes} processes; {', '.join(_share(options.mix))}"),
        ("linked at the end", f"{t.linked:,}" + (f", {t.missing:,} missing" if t.missing else "")),
        ("welcomed", f"{'all' if result.complete else f'{t.agents_welcomed:,}'} after {t.ramp.longest:.2f} s"),
        ("held for", f"{result.held:.1f} s"),
        ("attempts", f"{t.attempts:,}, {t.welcomes:,} welcomed; refused: {counts(t.refused)}"),
        ("connect to welcome", _words(t.connect)),
        ("of it, to the upgrade", _words(t.dial)),
        ("links ended by gateway", counts(t.closed)),
        ("lost", f"{t.lost:,}; closed for good: {t.rejected:,}; moved on request: {t.moved:,}"),
        ("heartbeats", f"{t.heartbeats:,} sent, {t.heartbeat_answers:,} answered; {_words(t.rtt)}"),
        ("commands", f"{t.commands:,} received, {t.answered:,} answered and stored; {t.duplicates:,} duplicates; "
                     f"{t.output_bytes:,} bytes of output"),
    ]  # fmt: skip
    if t.events or t.events_skipped:
        rows.append(("events", f"{t.events:,} sent, {t.events_stored:,} stored, {t.events_skipped:,} skipped"))
    if t.half_open_ended or t.half_open_unnoticed or "half-open" in options.mix:
        rows.append(
            (
                "half-open links",
                f"{t.half_open_ended:,} ended by the gateway, {t.half_open_unnoticed:,} not noticed in time",
            )
        )
    if t.storm_drops:
        rows.append(
            ("storms", f"{t.storm_drops:,} links dropped, {t.storm_return.count:,} back; {_words(t.storm_return)}")
        )
    if t.violations:
        rows.append(("violations", f"{t.violations:,}: the gateway broke the protocol"))
    if result.died:
        rows.append(("processes died", f"{result.died} of {options.processes}"))
    if t.last_refusal:
        rows.append(("last refusal", t.last_refusal))
    own = f"{t.cpu:.1f} s of CPU"
    if t.memory_grown:
        own += f", {t.memory_grown // options.agents:,} bytes of memory an agent, {t.memory / 2**20:,.0f} MiB in all"
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
