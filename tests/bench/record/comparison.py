"""What is behind a peer or behind its aim, found in the results: pure, so that a test can hold it.

Less is better in all of these figures. Ours is the carrier that `fairlead serve` uses by default, for every figure of a
server: the best of several carriers, figure by figure, would be a server that does not exist. A floor is no peer: it
serves nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from bench.market.run import LABELS as MARKET_LABELS
from bench.peers.catalogue import FLOORS, LABELS, OWN
from bench.tls.run import LABELS as TLS_LABELS
from bench.tls.run import OURS as TLS_OURS

EVEN = 1.02
"""The aim of max/mean over workers."""
IDEAL = 1.1
"""The aim of ten CPU-bound handlers, in times of what the cores need."""
NOISE = 1.03
"""Smaller differences are ignored: two turns of the same server differ by as much."""
LIMITING = 0.95
"""The share of its core from which on the load generator, and not our server, decides how long a round takes."""
REASONS = {
    "picows": "compiled (Cython), and without HTTP, limits, deadlines or a close handshake of its own",
    "socketify": "µWebSockets is C++ and calls Python once for each message",
    "ws": "V8 compiles the handler, and sockets and HTTP parser are C",
    "socket.io": "V8 compiles the handler, and sockets and HTTP parser are C",
    "gws": "compiled, and few lines run for each message",
    "gorilla": "compiled, and few lines run for each message",
}
UNKNOWN = "not known yet"
DEFAULT = ("direct", "epoll", "fairlead")
"""Our carriers; the first one that a table has is the default one, or the nearest to it."""
TLS_REASONS = {"nginx-alone": "it sends a constant and closes; ours becomes a link, in Python"}


@dataclass(frozen=True)
class Behind:
    what: str
    peer: str
    theirs: str
    ours: str
    reason: str


def behind(results: dict[str, dict[str, Any]]) -> list[Behind]:
    """In the order of the page."""
    found: list[Behind] = []
    for name, compare in (
        ("links", _links), ("workers", _workers), ("market", _market), ("hosts", _hosts), ("handlers", _handlers),
        ("tls", _tls),
    ):  # fmt: skip
        if name in results:
            found += compare(results[name]["figures"])
    return found


def _against(what: str, unit: str, servers: dict[str, float], labels: dict[str, str]) -> Iterator[Behind]:
    ours = next((servers[name] for name in DEFAULT if name in servers), 0.0)
    for name, theirs in servers.items():
        if name not in (*OWN, *FLOORS) and 0 < theirs * NOISE < ours:
            digits = 1 if ours >= 10 else 3
            numbers = (f"{theirs:,.{digits}f} {unit}", f"{ours:,.{digits}f} {unit}")
            yield Behind(what, labels[name], *numbers, REASONS.get(name, UNKNOWN))


def _links(figures: dict[str, Any]) -> Iterator[Behind]:
    for key, what, unit in (
        ("bytes", "bytes of an idle connection", "B"), ("accept_us", "CPU of an accept", "µs"),
        ("gc_ms", "full garbage collection", "ms"),
    ):  # fmt: skip
        yield from _against(what, unit, {name: one[key] for name, one in figures["plain"].items()}, LABELS)
    for clients, servers in figures["rounds"].items():
        what = f"connect and timestamp, {int(clients):,} clients, CPU"
        yield from _against(what, "µs", {name: one["cpu_us"] for name, one in servers.items()}, LABELS)
        what = f"connect and timestamp, {int(clients):,} clients, the round"
        own = next(servers[name] for name in DEFAULT if name in servers)
        if own["load"] < LIMITING:
            yield from _against(what, "ms", {name: one["seconds"] * 1000 for name, one in servers.items()}, LABELS)
    for connections, servers in figures["echo"].items():
        what = f"echo over {int(connections):,} connection{'s' if int(connections) > 1 else ''}, CPU"
        yield from _against(what, "µs", {name: one["us"] for name, one in servers.items()}, LABELS)


def _workers(figures: dict[str, Any]) -> Iterator[Behind]:
    for state in figures["states"]:
        if state["max_to_mean"] > EVEN:
            what, reason = f"links over {figures['workers']} workers, {state['state']}", "workers differ by a slack"
            yield Behind(what, f"max/mean of {EVEN}", f"{EVEN:.3f}", f"{state['max_to_mean']:.3f}", reason)


def _market(figures: dict[str, Any]) -> Iterator[Behind]:
    for cell in figures["cells"]:
        kind = "binary" if cell["binary"] else "text"
        what = f"market data, {cell['stocks']} stocks to {cell['clients']} clients, {kind}"
        for key, figure, unit in (
            ("us", "CPU of a packet", "µs"), ("p50_ms", "latency p50", "ms"), ("p99_ms", "latency p99", "ms"),
        ):  # fmt: skip
            own = next(cell["servers"][name] for name in DEFAULT if name in cell["servers"])
            # A cell has some hundred packets in a turn: only turns that do not overlap tell two servers apart.
            apart = {n: one for n, one in cell["servers"].items() if one is own or _high(one, key) < _low(own, key)}
            servers = {name: one[key] for name, one in apart.items()}
            yield from _against(f"{what}, {figure}", unit, servers, MARKET_LABELS)


def _low(server: dict[str, float], key: str) -> float:
    """The least of all turns, or the figure itself where there was one turn."""
    return server.get(f"{key}_low", server[key])


def _high(server: dict[str, float], key: str) -> float:
    return server.get(f"{key}_high", server[key])


def _hosts(figures: dict[str, Any]) -> Iterator[Behind]:
    for ours, theirs in (("serial", "serial"), ("concurrent", "concurrent"), ("concurrent", "connected")):
        own, peer = (figures["ways"].get(f"{who}, {way}") for who, way in (("fairlead", ours), ("asyncssh", theirs)))
        if own and peer and peer["seconds"] * NOISE < own["seconds"]:
            reason = "a command is stored in Redis before it is sent, and its result before it is shown"
            what, times = f"one command on {figures['hosts']} hosts, {ours}", (peer["seconds"], own["seconds"])
            yield Behind(what, f"asyncssh, {theirs}", f"{times[0]:.3f} s", f"{times[1]:.3f} s", reason)


def _handlers(figures: dict[str, Any]) -> Iterator[Behind]:
    models = figures["seconds"]["fib"]
    ideal = models["sequential"]["min"] / min(figures["cores"], figures["tasks"])
    took = models["agent, process"]["median"]
    if took > IDEAL * ideal:
        what = "ten CPU-bound handlers on one agent"
        pool = models["processes"]["median"]
        reason = f"these cores are busy with more: Python's own pool of processes takes {pool:.2f} s"
        yield Behind(what, f"{IDEAL} × the ideal of the cores", f"{IDEAL * ideal:.2f} s", f"{took:.2f} s", reason)


def _tls(figures: dict[str, Any]) -> Iterator[Behind]:
    for kind, modes in figures["handshakes"].items():
        for mode, servers in modes.items():
            ours = servers[TLS_OURS]["us"]
            for name, one in servers.items():
                if one["us"] * NOISE < ours:
                    what = f"a new connection over TLS, {kind}, {mode}, CPU"
                    numbers = (f"{one['us']:,.0f} µs", f"{ours:,.0f} µs")
                    yield Behind(what, TLS_LABELS[name], *numbers, TLS_REASONS.get(name, UNKNOWN))
    for key, what in (("bytes", "an idle link over TLS"), ("after_message", "an idle link over TLS after 40 KB")):
        ours = figures["idle"][TLS_OURS][key]
        for name, one in figures["idle"].items():
            if one[key] * NOISE < ours:
                yield Behind(f"bytes of {what}", TLS_LABELS[name], f"{one[key]:,.0f} B", f"{ours:,.0f} B", UNKNOWN)
