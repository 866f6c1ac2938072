"""`fairlead store`: says what fills Redis, for whoever has to make room in it.

It reads Redis itself and asks no node, because a Redis that is full is looked at while nodes refuse commands. So it
needs the address of Redis, as a node does, and what a node may do there. It changes nothing.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fairlead.cli.output.formats import report_option
from fairlead.cli.output.table import format_table
from fairlead.cli.redis.options import redis_options, redis_url
from fairlead.errors import Unavailable
from fairlead.text import plain

if TYPE_CHECKING:
    from collections import Counter

    from fairlead.fleet.reports.store_usage import StoreUsage

CONNECT_TIMEOUT = 5.0
CONTENTS = {
    "fl2:cmd": "commands with their payloads", "fl2:out": "results", "fl2:in": "input", "fl2:agent": "agents",
    "fl2:open": "open commands of agents", "fl1:agents": "index of agents", "fl2:deadlines": "deadlines",
    "fl1:events": "events", "fl1:inbox": "doorbells", "fl1:run": "runs", "fl1:run_agents": "agents of runs",
    "fl1:run_ends": "ends of runs", "fl1:idem": "Idempotency-Keys",
    "fl2:outcome": "outcomes of commands", "fl2:aside": "ends after a failover",
    "fl2:bound_key": "keys of agents", "fl1:node": "nodes",
    "fl1:columns": "facts and labels, by which agents are selected", "fl1:cells": "their values, agent by agent",
    "fl1:content": "contents, such as scripts",
    "fl1:link_stats": "latencies of links", "fl1:dead_letters": "what sinks could not deliver",
    "fl1:event_pending": "events that groups and sinks have under way", "fl1:event_group": "groups and sinks",
    "fl1:run_groups": "outcomes of runs", "fl1:run_states": "states of the agents of runs",
    "fl1:runs": "open runs", "fl1:recent_runs": "the last runs", "fl1:schedules": "schedules",
    "fl1:schedules_due": "when schedules are due", "fl1:schedule_starts": "last starts of schedules",
    "fl1:schedule_names": "names of schedules",
    "fl2:kept": "which results may be dropped", "fl2:kept_until": "until when results are kept",
    "fl1:service_tokens": "service tokens", "fl1:enrolment": "enrolment tokens and what they have enrolled",
    "fl1:pending_enrolments": "agents that wait for an approval",
    "fl1:approvals": "requests for an approval", "fl1:approval_requests": "what approvals are asked for",
    "fl1:tenant_open": "open commands of tenants", "fl1:tenant_agents": "agents of tenants",
    "fl1:events_agents": "events of each agent", "fl1:revoked_keys": "keys that were revoked lately",
    "fl1:data_epoch": "mark by which a loss of data is noticed", "fl1:compared": "nodes that have compared the data",
    "fl1:compared_server": "server whose data was compared", "fl1:compared_primary": "the same for a primary",
    "fl1:confirmed": "what replicas confirm", "fl1:nodes": "index of nodes", "fl1:revision": "revision in service",
    "fl1:rebalance": "links that nodes should keep", "fl1:disconnect": "which links are to be closed",
    "fl1:disconnected": "how far nodes are with that", "fl2:kept_bytes": "bytes of results that are kept",
    "fl1:worst_links": "worst links of nodes", "fl1:moves": "budget of moves",
    "fl1:scaling_history": "the operator's memory",
    "fl1:enrolment_tokens": "index of enrolment tokens", "fl1:tenant_use": "what tenants use",
    "fl1:events_bytes": "bytes of events", "fl1:events_trimmed": "the last event that was removed",
    "fl1:event_groups": "index of groups and sinks", "fl1:dead_letter_bytes": "bytes of dead letters",
    "other": "not Fairlead's: a Redis of its own is better",
}  # fmt: skip
"""What is in each kind of key."""


class RedisUnavailable(Unavailable):
    """The Redis that this command asks itself does not answer."""

    code = "redis_unavailable"


@click.command(
    short_help="Show what fills Redis.",
    epilog="The address is that of a node's settings: in a pod, `fairlead store` needs no option.",
)
@redis_options
@report_option
def store(config: Path | None, output: str, **flags: str | None) -> None:
    """Show what fills Redis: bytes by kind of key, and the ten agents, methods and commands that have the most.

    Every key is looked at once, in small pages. Sizes of kinds with more than 10,000 keys (200,000 of commands) are
    estimated from as many.
    """
    import asyncio

    usage = asyncio.run(_read(redis_url(config, flags)))
    if output == "json":
        click.echo(json.dumps(_document(usage), indent=2))
    else:
        click.echo("\n".join(_lines(usage)))


async def _read(url: str) -> StoreUsage:
    from fairlead.fleet.reports.store_usage import read_usage
    from fairlead.store.servers.opening import open_store

    pipeliner = open_store(url, client_name="fairlead-store")
    pipeliner.start()
    try:
        if not await pipeliner.wait_available(CONNECT_TIMEOUT):
            raise RedisUnavailable(f"{pipeliner.last_error.message}: expected the Redis of a node")
        return await read_usage(pipeliner, _progress if sys.stderr.isatty() else lambda seen, keys: None)
    finally:
        if sys.stderr.isatty():
            click.echo("\r\x1b[K", err=True, nl=False)
        await pipeliner.aclose()


def _progress(seen: int, keys: int) -> None:
    click.echo(f"\r{seen:,} of {keys:,} keys", err=True, nl=False)


def _lines(usage: StoreUsage) -> list[str]:
    limit = f" of {_mib(usage.limit)} MiB ({usage.used / usage.limit:.0%})" if usage.limit else ", without a maxmemory"
    kinds = sorted(usage.kinds.items(), key=lambda kind: -kind[1].bytes)
    counted = sum(kind.bytes for _, kind in kinds) or 1
    rows = [
        (name, f"{kind.keys:,}", ("~" if kind.measured < kind.keys else "") + _mib(kind.bytes),
         f"{kind.bytes / counted:.0%}", f"{kind.bytes // max(1, kind.keys):,}", CONTENTS.get(name, ""))
        for name, kind in kinds
    ]  # fmt: skip
    lines = [f"Redis uses {_mib(usage.used)} MiB{limit}.", ""]
    lines += format_table(("KEYS OF", "COUNT", "MIB", "SHARE", "BYTES EACH", "CONTENT"), rows, range(1, 5))
    for head, counter in (("AGENT", usage.agents), ("METHOD", usage.methods)):
        if counter:
            lines += [
                "",
                *format_table((head, "MIB"), [(plain(name), _mib(size)) for name, size in _top(counter)], (1,)),
            ]
    if usage.commands:
        commands = [
            (command, *map(plain, usage.owners.get(command, ("-", "-"))), _mib(size))
            for command, size in _top(usage.commands)
        ]
        lines += ["", *format_table(("COMMAND", "AGENT", "METHOD", "MIB"), commands, (3,))]
    return lines


def _document(usage: StoreUsage) -> dict[str, object]:
    return {
        "used_bytes": usage.used, "limit_bytes": usage.limit,
        "kinds": {
            name: {"keys": kind.keys, "bytes": kind.bytes, "estimated": kind.measured < kind.keys}
            for name, kind in sorted(usage.kinds.items())
        },
        "agents": dict(_top(usage.agents)), "methods": dict(_top(usage.methods)),
        "commands": [
            {"id": command, "agent": agent, "method": method, "bytes": size}
            for command, size in _top(usage.commands)
            for agent, method in (usage.owners.get(command, ("", "")),)
        ],
    }  # fmt: skip


def _top(counter: Counter[str]) -> list[tuple[str, int]]:
    from fairlead.fleet.reports.store_usage import LARGEST

    return counter.most_common(LARGEST)


def _mib(size: int) -> str:
    return f"{size / 2**20:,.1f}"
