"""The tables of record in Markdown, one function for the result of each program. Called by `page`."""

from __future__ import annotations

from typing import Any

from bench.hold_usage import memory_rows
from bench.market.run import LABELS as MARKET_LABELS
from bench.output import markdown
from bench.peers.catalogue import LABELS
from bench.tls.run import LABELS as TLS_LABELS
from bench.tls.run import OURS as TLS_OURS

SHOWN_VERSIONS = (
    "uvicorn", "aiohttp", "websockets", "wsproto", "autobahn", "picows", "socketify", "python-socketio", "asyncssh",
    "uvloop", "nginx", "openssl", "ws", "socket.io", "node", "github.com/lxzan/gws", "github.com/gorilla/websocket",
    "go", "gcc",
)  # fmt: skip
BASE = "fairlead"
Servers = dict[str, dict[str, float]]


def number(figure: float) -> str:
    return f"{figure:,.0f}" if figure >= 100 else f"{figure:.1f}"


def spread(one: dict[str, float], key: str) -> str:
    """A median, with the least and the greatest of the turns."""
    return f"{number(one[key])} ({number(one[f'{key}_low'])}–{number(one[f'{key}_high'])})"


def times(servers: Servers, name: str, key: str) -> str:
    """The ratio to our carrier on asyncio's transports."""
    ours = servers[BASE][key]
    return f"{servers[name][key] / ours:.2f}" if ours else "–"


def links(figures: dict[str, Any]) -> str:
    node, plain, scale = figures["node"], figures["plain"], figures["scale"]
    parts = [
        f"### Connect and timestamp\n\nServer CPU µs per client (medians of {scale['turns']} turns, with "
        "the least and the "
        "greatest); × is the ratio to *Fairlead's carrier*; load is the share of its core that the load "
        "generator used: where "
        "it is 1.0, the wall time is the generator's and not the server's.",
    ]
    sizes = figures["rounds"]
    head = ["server", *(cell for size in sizes for cell in (f"{int(size):,} clients", "×", "round s", "load"))]
    rows = [
        [LABELS[name], *(cell for servers in sizes.values() for cell in (
            spread(servers[name], "cpu_us"), times(servers, name, "cpu_us"), f"{servers[name]['seconds']:.3f}",
            f"{servers[name]['load']:.2f}"))]
        for name in plain
    ]  # fmt: skip
    parts += [markdown(head, rows), "### Bytes and echo", _idle(node, plain, scale), _echo(figures["echo"], plain)]
    return "\n\n".join(parts)


def _idle(node: dict[str, Any], plain: Servers, scale: dict[str, int]) -> str:
    text = (
        f"{scale['agents']:,} idle connections; the full garbage collection with {scale['crowd']:,}. The "
        "first row is a node "
        f"with registered agents, for each of which Valkey has {number(node['valkey_bytes'])} B and spends "
        f"{number(node['accept_valkey_us'])} µs at the claim."
    )
    head = ["server", "bytes", "×", "accept CPU µs", "×", "full collection ms"]
    own = plain[BASE]
    registered = [f"{node[key] / own[key]:.2f}" if own[key] else "–" for key in ("bytes", "accept_us")]
    first = [
        "*a node, registered agents*", number(node["bytes"]), registered[0], number(node["accept_us"]), registered[1],
        number(node["gc_ms"]),
    ]  # fmt: skip
    rows = [
        [LABELS[name], spread(one, "bytes"), times(plain, name, "bytes"), spread(one, "accept_us"),
         times(plain, name, "accept_us"), number(one["gc_ms"])]
        for name, one in plain.items()
    ]  # fmt: skip
    return text + "\n\n" + markdown(head, [first, *rows])


def _echo(echoes: dict[str, Servers], plain: Servers) -> str:
    text = "Echo of 128 B: server CPU µs per message, and the load generator's share of its core."
    head = ["server", *(cell for count in echoes for cell in (f"{int(count):,} connections", "×", "load"))]
    rows = [
        [LABELS[name], *(cell for servers in echoes.values() for cell in (
            spread(servers[name], "us"), times(servers, name, "us"), f"{servers[name]['load']:.2f}"))]
        for name in plain
    ]  # fmt: skip
    return text + "\n\n" + markdown(head, rows)


def workers(figures: dict[str, Any]) -> str:
    rows = [
        [
            one["state"],
            f"{sum(one['links']):,}",
            f"{min(one['links']):,}",
            f"{max(one['links']):,}",
            f"{one['max_to_mean']:.3f}",
            f"{one['us_per_link']:.0f}",
        ]
        for one in figures["states"]
    ]
    head = [f"{figures['workers']} workers", "links", "fewest", "most", "max/mean", "CPU µs of all workers per link"]
    commands = [
        [f"{one['in_flight']}", f"{one['p50_ms']:.1f}", f"{one['p99_ms']:.1f}", f"{one['workers_us']:,.0f}",
         f"{one['valkey_us']:,.0f}"]
        for one in figures["commands"]
    ]  # fmt: skip
    return (
        "### Even workers\n\n"
        + markdown(head, rows)
        + "\n\nCommands through the API port of all workers, to agents on any of them:\n\n"
        + markdown(["in flight", "p50 ms", "p99 ms", "workers CPU µs", "Valkey CPU µs"], commands)
    )


def hold(figures: dict[str, Any]) -> str:
    linked, counts, killed = figures["swarm"]["linked"], figures["links"], figures["killed"]
    lost = ""
    if killed:
        back = f"all but {killed['missing']:,.0f}" if killed["missing"] else "all"
        lost = (
            f" In the end, workers with {killed['lost']:,} links were killed at once; "
            f"after {killed['back_s']:.0f} s {back} were linked again."
        )
    runs = [
        [f"{run['in_flight']}", f"{run['count']:,}", f"{run['p50_ms']:.1f}", f"{run['p99_ms']:.1f}",
         number(run["nodes_us"]), number(run["valkey_us"])]
        for run in figures["commands"]
    ]  # fmt: skip
    return "\n\n".join((
        f"### Agents held\n\n{linked:,} registered agents on {len(counts)} workers ({min(counts):,.0f} to "
        f"{max(counts):,.0f} links each), both ends on this machine. They came at "
        f"{figures['agents'] / figures['set_up_s']:,.0f} a second, and while they are idle, nodes, Valkey and the "
        f"agents' processes use {figures['idle_cores']:.2f}, {figures['idle_valkey_cores']:.2f} and "
        f"{figures['idle_swarm_cores']:.2f} cores.{lost}",
        "How much more memory there is than before the agents came. Pages that were shared with other processes and "
        "became a process's own make its USS grow, but not its RSS:",
        markdown(["memory", "MiB", "bytes each"], memory_rows(figures)),
        "Commands meanwhile:",
        markdown(["in flight", "commands", "p50 ms", "p99 ms", "nodes CPU µs", "Valkey CPU µs"], runs),
    ))  # fmt: skip


def market(figures: dict[str, Any]) -> str:
    names = list(figures["memory"])
    head = ["stocks", "clients", "", *(MARKET_LABELS[name] for name in names)]
    packets, latency = [], []
    for cell in figures["cells"]:
        begin = [str(cell["stocks"]), str(cell["clients"]), "binary" if cell["binary"] else "text"]
        servers = cell["servers"]
        packets.append(begin + [f"{1e6 / servers[name]['us']:,.0f}" if servers[name]["us"] else "–" for name in names])
        latency.append(begin + [f"{servers[name]['p50_ms']:.1f} / {servers[name]['p99_ms']:.1f}" for name in names])
    every = figures["sample_s"]
    moments = len(next(iter(figures["memory"].values())))
    shown = sorted({*range(0, moments, max(1, round(60 / every))), moments - 1})
    memory = [[MARKET_LABELS[name], *(f"{all_[i]:.1f}" for i in shown)] for name, all_ in figures["memory"].items()]
    return "\n\n".join((
        "### Market data\n\nQuotes (open, high, low, close, volume) pushed to all clients, which are one process on a "
        f"core of its own and used at most {_highest_load(figures['cells']):.2f} of it in any cell. Packets per CPU "
        "second of the server:",
        markdown(head, packets),
        "Latency from the time of the tick to the client, p50 / p99 ms:",
        markdown(head, latency),
        "Memory (PSS, MiB) while 1,000 quotes a second are pushed to three clients that read and one that does not:",
        markdown(["server", *(f"{i * every / 60:.1f} min" for i in shown)], memory),
    ))  # fmt: skip


def _highest_load(cells: list[dict[str, Any]]) -> float:
    return max(float(server["load"]) for cell in cells for server in cell["servers"].values())


def hosts(figures: dict[str, Any]) -> str:
    rows = [
        [way, f"{one['seconds']:.3f} ({one['seconds_low']:.3f}–{one['seconds_high']:.3f})", number(one["caller_ms"]),
         number(one["hosts_ms"])]
        for way, one in figures["ways"].items()
    ]  # fmt: skip
    text = (
        f"### One command on {figures['hosts']} hosts\n\nThrough the gateway to agents, and by asyncssh "
        "to as many servers. The "
        "caller of the gateway shares its process with the agents, whose CPU time is in its column; "
        "*hosts* is gateway and "
        "Valkey there, and the servers of asyncssh. *connected* has all SSH connections beforehand, as "
        "a gateway has its links."
    )
    return text + "\n\n" + markdown(["", "s", "caller CPU ms", "hosts CPU ms"], rows)


def handlers(figures: dict[str, Any]) -> str:
    rows = [
        [work, model, f"{took['median']:.3f}", f"{took['min']:.3f}"]
        for work, models in figures["seconds"].items()
        for model, took in models.items()
    ]
    gaps = [[where, str(gap["p50"]), str(gap["p99"])] for where, gap in figures["message_gaps_ms"].items()]
    text = f"### Handlers\n\n{figures['tasks']} tasks on {figures['cores']} cores, in seconds:"
    return "\n\n".join((
        text, markdown(["work", "model", "median s", "least s"], rows),
        "Gaps between the agent's messages meanwhile, with heartbeats every second:",
        markdown(["work, where", "p50 ms", "p99 ms"], gaps),
    ))  # fmt: skip


def nodes(figures: dict[str, Any]) -> str:
    rows = [
        [name, str(run["in_flight"]), f"{run['p50_ms']:.2f}", f"{run['p99_ms']:.2f}", number(run["all_us"])]
        for name, runs in figures["commands"].items()
        for run in runs
    ]
    text = "### Several nodes\n\nCommands posted to one node whose agent is on the other, and on the same node:"
    return text + "\n\n" + markdown(["across", "in flight", "p50 ms", "p99 ms", "CPU µs of all"], rows)


def tls(figures: dict[str, Any]) -> str:
    ours, proxy, alone = (TLS_LABELS[name] for name in (TLS_OURS, "nginx-proxy", "nginx-alone"))
    parts = [
        "### TLS beside nginx\n\nServer CPU µs of a new connection, with its handshake, its request for a link and its "
        f"end (medians of {figures['turns']} turns of {figures['connections']}, with the least and the greatest); × is "
        f"the ratio to *{ours}*, which ends TLS in its own process. *{proxy}* counts both processes. *{alone}* sends a "
        "constant and has no links. Certificates are of ECDSA (P-256) and RSA (2,048 bits); load is the share of a "
        "core that the clients used."
    ]
    modes = [
        (kind, mode, servers) for kind, by_mode in figures["handshakes"].items() for mode, servers in by_mode.items()
    ]
    head = ["server", *(cell for kind, mode, _ in modes for cell in (f"{kind}, {mode}", "×", "load"))]
    names = list(modes[0][2])
    rows = [
        [TLS_LABELS[name], *(cell for _, _, servers in modes for cell in (
            spread(servers[name], "us"), f"{servers[name]['us'] / servers[TLS_OURS]['us']:.2f}",
            f"{servers[name]['load']:.2f}"))]
        for name in names
    ]  # fmt: skip
    parts.append(markdown(head, rows))
    parts.append(f"Bytes of an idle link, of {figures['links']:,}, in all processes that serve it:")
    rows = [
        [TLS_LABELS[name], number(one["bytes"]), number(one["after_message"])] for name, one in figures["idle"].items()
    ]
    parts.append(markdown(["server", "fresh", "after 40 KB in each direction"], rows))
    return "\n\n".join(parts)
