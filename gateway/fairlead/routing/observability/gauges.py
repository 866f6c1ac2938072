"""The gauges and counters of a node that are read when they are scraped; `Metrics` holds those that are written.

The node calls each function once, when the objects that are read exist.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from functools import partial

from fairlead.bus.inbox import Inbox
from fairlead.carrier.listener import Connection
from fairlead.carrier.reading.scheduler import ReadScheduler
from fairlead.hub.hub import Hub
from fairlead.routing.background_tasks import BackgroundTasks
from fairlead.routing.fleet_store import FleetStore
from fairlead.routing.followers import Followers
from fairlead.routing.membership.membership import Membership
from fairlead.routing.moves.drain import NodeDrain
from fairlead.routing.moves.expiring_links import ExpiringLinks
from fairlead.store.backlog import Priority
from fairlead.telemetry.metrics import Metrics
from fairlead.telemetry.tracing import Tracing


def watch_links(metrics: Metrics, hub: Hub, capacity: int) -> None:
    metrics.add_gauge("fairlead_links", "Open links, with or without an agent", lambda: hub.links)
    metrics.add_gauge(
        "fairlead_links_opening", "Links that were accepted and are not welcomed yet", hub.opening.__len__
    )
    metrics.add_gauge(
        "fairlead_links_opening_limit", "The most links that may wait for their welcome now", lambda: hub.opening.bound
    )
    metrics.add_gauge(
        "fairlead_oldest_claim_age_seconds",
        "Time since the hello of the link that has waited longest for this node to welcome it",
        lambda: hub.opening.oldest_claim(asyncio.get_running_loop().time()),
    )
    metrics.add_gauge("fairlead_link_capacity", "Links that this node accepts", lambda: capacity)
    metrics.add_gauge("fairlead_agents", "Agents that this node holds", lambda: len(hub))
    metrics.add_gauge("fairlead_draining", "1 while this node drains", lambda: float(hub.draining))
    metrics.add_gauge(
        "fairlead_drain_remaining",
        "Agents that have yet to leave because this node drains",
        lambda: hub.drain_remaining,
    )
    metrics.add_gauge("fairlead_pending_bytes", "Bytes received and not stored yet", lambda: hub.totals.pending)


def watch_reading(metrics: Metrics, scheduler: ReadScheduler, slow_readers: Collection[Connection]) -> None:
    metrics.add_gauge("fairlead_slow_readers", "Agents that read more slowly than the node sends", slow_readers.__len__)
    metrics.add_gauge(
        "fairlead_send_queue_bytes", "Bytes that wait for slow readers",
        lambda: sum(connection.buffered() for connection in slow_readers),
    )  # fmt: skip
    metrics.add_gauge(
        "fairlead_links_read_paused", "Links over a budget, which are not read at present", lambda: scheduler.waiting
    )
    metrics.add_counter(
        "fairlead_link_read_pauses_total", "Times that reading a link was paused for its budget", lambda: scheduler.held
    )
    metrics.add_gauge("fairlead_incomplete_message_bytes", "Bytes of incomplete messages", lambda: scheduler.kept)


def watch_redis(metrics: Metrics, fleet: FleetStore, inbox: Inbox, membership: Membership) -> None:
    store, memory, recent = fleet.store, fleet.memory, fleet.records.recent
    metrics.add_gauge("fairlead_redis_memory_bytes", "Memory that Redis uses", lambda: memory.used)
    metrics.add_gauge(
        "fairlead_redis_memory_limit_bytes", "Memory that Redis may use, 0 for no limit", lambda: memory.limit
    )
    metrics.add_counter(
        "fairlead_store_full_total", "Commands refused because Redis had too little memory", lambda: memory.refused
    )
    metrics.add_gauge(
        "fairlead_redis_disk_failing",
        "1 while Redis cannot write to its disk, or cannot rewrite its append-only file",
        lambda: float(bool(memory.disk.problem)),
    )
    metrics.add_gauge(
        "fairlead_redis_unconfirmed",
        "1 while replicas, or the disk, do not confirm what Redis stores, as the setting durability demands",
        lambda: float(bool(store.unconfirmed)),
    )
    metrics.add_counter(
        "fairlead_redis_confirmations_total",
        "Times that replicas, or the disk, confirmed answers of Redis",
        lambda: store.confirmations[0],
    )
    metrics.add_gauge(
        "fairlead_redis_up",
        "1 while Redis answers, with all primaries of a Cluster, and takes this node's heartbeats",
        lambda: float(store.available and not store.partly_away and not membership.problem),
    )
    metrics.add_varying_gauge(
        "fairlead_redis_primary_up", "1 while this primary of Redis answers", "primary",
        lambda: {address: float(up) for address, up in store.primaries().items()},
    )  # fmt: skip
    metrics.add_labelled_gauge(
        "fairlead_redis_backlog", "Calls that wait to be sent to Redis", "priority",
        {priority.label: partial(store.waiting, priority) for priority in Priority},
    )  # fmt: skip
    metrics.add_gauge(
        "fairlead_recent_steps_bytes",
        "Bytes of what this node has told Redis lately about commands, to be said again after a failover",
        lambda: recent.size,
    )
    metrics.add_counter("fairlead_redis_commands_total", "Commands that Redis answered", lambda: store.commands)
    metrics.add_counter(
        "fairlead_redis_errors_total", "Times that Redis was lost or did not answer", lambda: store.trips
    )
    metrics.add_counter("fairlead_doorbells_sent_total", "Doorbells sent to other nodes", lambda: inbox.sent)
    metrics.add_counter("fairlead_doorbells_received_total", "Doorbells received", lambda: inbox.received)
    metrics.add_counter("fairlead_doorbells_lost_total", "Doorbells that reached no inbox", lambda: inbox.lost)


def watch_routing(
    metrics: Metrics,
    membership: Membership,
    followers: Followers,
    tasks: BackgroundTasks,
    event_readers: Callable[[], int],
) -> None:
    metrics.add_gauge("fairlead_event_readers", "Callers that read events on this node", event_readers)
    metrics.add_gauge(
        "fairlead_heartbeat_age_seconds", "Seconds since the last answered heartbeat",
        lambda: membership.since_heartbeat,
    )  # fmt: skip
    metrics.add_gauge("fairlead_followers", "Callers that wait for results on this node", lambda: len(followers))
    metrics.add_gauge("fairlead_tasks", "Short tasks of routing that run", lambda: len(tasks))


def watch_moves(metrics: Metrics, drain: NodeDrain) -> None:
    metrics.add_gauge(
        "fairlead_moves_waiting", "Agents that wait for the budget to grant their move", lambda: drain.waiting
    )
    metrics.add_gauge(
        "fairlead_move_rate",
        "Moves per second of the whole fleet, as this node knows it; 0 before it moves any",
        lambda: drain.budget.rate,
    )


def watch_tracing(metrics: Metrics, tracing: Tracing) -> None:
    if (exporter := tracing.exporter) is not None:
        metrics.add_gauge("fairlead_spans_waiting", "Spans that wait for the collector", lambda: len(exporter))
    metrics.add_counter("fairlead_spans_exported_total", "Spans that the collector accepted", lambda: tracing.exported)
    metrics.add_counter("fairlead_spans_dropped_total", "Spans that were lost", lambda: tracing.dropped)


def watch_identity(
    metrics: Metrics, expiring: ExpiringLinks, untrusted: Callable[[], int], refused: Callable[[], int]
) -> None:
    """Links that end with a certificate or JWT, and links that were refused or are not trusted any more."""
    metrics.add_counter(
        "fairlead_untrusted_links_total",
        "Links closed because their client certificate was revoked, or its authority or their tenant was removed",
        untrusted,
    )
    metrics.add_gauge(
        "fairlead_expiring_links", "Links that end with the certificate or JWT that has opened them", expiring.__len__
    )
    metrics.add_counter(
        "fairlead_expired_links_total",
        "Links closed because the certificate or JWT that had opened them was not replaced in time",
        lambda: expiring.closed,
    )
    metrics.add_counter("fairlead_refused_links_total", "Links closed because of their agent's identity", refused)
