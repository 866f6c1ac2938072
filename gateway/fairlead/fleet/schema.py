"""The schema in Redis: every key, every row and the values in them. It does no I/O, so that the operator can use it
too.

Key                    Type    Content; who writes it; how long it lives
fl1:data_epoch         string  `mark lost-at`, the data epoch. Written by the first node that finds none; no TTL
fl1:compared_server    string  id of the server whose data the nodes have compared with what they know; no TTL
fl1:compared_primary:{s} string  the same for the primary of a Cluster that has the slot of s; no TTL, one for each tag
fl1:compared:{id}      set     the nodes that have compared what they know with the data of that server; 10 minutes. In
                               a Cluster its tag is that of fl1:compared_primary, and the id follows it
fl1:confirmed:{s}      string  empty; its write comes after those that replicas are to confirm (see `confirmer`); 1 s.
                               In a Cluster the address of the server follows
fl1:nodes              zset    lease → time of the last heartbeat (ms). Written with each heartbeat; entries older than
                               an expired row are removed
fl1:node:{fl1:nodes}:n hash    one node's counts, state and epoch, and what it has served since its start (see
                               `traffic`). Written with each heartbeat; 150 s after the last one. A Cluster has three
                               copies of these two, under the tags of `MEMBERSHIP`
fl1:revision           hash    the revision whose nodes take new links, and until when (ms). Written by the operator in
                               each pass of a rollout; no TTL
fl1:rebalance          hash    node → links that it should keep at most; `node enough` → links from which on it takes
                               no new ones. Written by the operator in every pass of a rebalance; 30 s after the last
                               one
fl1:disconnect         hash    which links a LinkOperation asks to close, until when (ms), and the tokens of its rate.
                               Written by the operator in every pass of it; an hour after the last one
fl1:disconnected:{o}   hash    lease → how far that node is with the LinkOperation o. Written by each node; an hour
                               after the last one
fl2:agent:{s}:a        hash    lease, gen, boot, journal, conn, sid, facts, labels (and when they were lost), their last
                               changes, position in the columns, last seen, close
                               code (or which link ended without one), recent failures, last move by a rebalance, the
                               sessions by which two holders of its key are told apart (and when they were last, and
                               since when a notice of them waits for being told). Written by claim, release, the
                               rebalancer and the platform; no TTL, the index sweeper removes it after `forget_after`
fl2:open:{s}:a         hash    open command id → its deadline (ms). Written by what accepts and ends commands; until a
                               minute after the last deadline
fl1:agents:{s}         zset    index of agent ids, all with score 0, paged by name. Written by claim; no TTL, the index
                               sweeper owns it
fl1:columns:{s}        hash    the columns of a shard: facts and labels of its agents key by key, by which selectors
                               find agents; see columns.lua. Written in the step that writes a row; no TTL
fl1:cells:{s}          string  the cells of these columns. Written in the same step; no TTL
fl2:cmd:{s}:id         hash    a command's record, a row for its target, its followers. Written by the scripts of
                               commands; deadline + retention, and `retention` from the end on
fl2:out:{s}:id         stream  results; entry `k-0` has offset k-1. Written by append_results; as long as the record, or
                               until they are dropped to make room. Once the command has ended and they are few, the
                               record has them itself
fl2:in:{s}:id          stream  input; entry `k-0` has chunk k-1. Written by append_input; as long as the record
fl2:outcome:{s}:id     string  final state of a command with an Idempotency-Key, and when it ended, if that key
                               outlives the record. Written by finish; as long as the key
fl2:aside:{s}:id       list    what a node knows of the end of a command that has no record after a failover, for the
                               node that accepted it. Written by set_aside, removed by that node; 10 minutes
fl2:kept:{s}           zset    `id agent bytes` of each ended command with more than 1 KiB of results, or more than
                               its method may have → when it ended (ms). Written by what ends commands; entries are
                               removed with the results
fl2:kept_until:{s}     zset    the same → until when its results are kept (ms). Likewise
fl2:kept_bytes:{s}     string  bytes of these results. Likewise
fl2:deadlines:{s}      zset    `id agent` → when the command sweeper checks it next (ms). Written by what accepts
                               commands; emptied by what ends them
fl1:runs               zset    id of each open run → until when it has an owner (ms). Written by the owner of each; no
                               TTL, runs that have ended are removed
fl1:recent_runs        zset    ids of the last 10,000 runs, in the order of their posts. Written by whoever posts a run;
                               no TTL, runs that are gone are removed when runs are listed
fl1:run:{id}           hash    a run: what was asked for, its state, counts, owner. Written by the scripts of runs; as
                               long as its commands, and `retention` from the end on. So are the next four
fl1:run_agents:{id}    list    the agents of a run, 1,000 in each entry
fl1:run_states:{id}    string  the state of each of its targets, as one letter
fl1:run_ends:{id}      list    how its targets ended, in the order of their ends
fl1:run_groups:{id}    hash    how many of its targets ended in the same way with the same output
fl1:idem:{s}:hash      string  body hash and command id of an Idempotency-Key, in the shard of the command's agent.
                               Written by dispatch; 24 h
fl1:idem:{hash}        string  the same of the Idempotency-Key of a run
fl1:link_stats:{a}     string  statistics of an agent's link. Written by its node on request; 10 s
fl1:worst_links:{n} by string  a node's worst links by a measure. Written by that node on request; 10 s
fl1:inbox:{lease}      stream  doorbells for one process of a node. Written by other nodes (see bus.inbox); 150 s
                               after its last heartbeat
fl1:moves              hash    the fleet's budget of moves, a token bucket. rate and most (moves/s) and until (ms) are
                               written by the operator in every pass, rate is valid for 30 s; tokens and at (ms) by
                               take_moves; no TTL
fl1:scaling_history    string  what the operator remembers of the fleet, JSON. Written by the operator in each pass;
                               7 days after the last one
fl1:service_tokens     hash    service tokens: digest, name, roles, lifetime; last uses; their revision. Written by the
                               API; no TTL, tokens are removed a week after they have expired
fl1:enrolment:{id}     hash    an enrolment token, and a field for each agent and key that it has enrolled. Written by
                               enrolment; a week after the token has expired
fl1:enrolment_tokens   zset    ids of enrolment tokens, qualified by their tenants → when they expire (ms). Written by
                               the API; no TTL, those that expired a week ago are removed
fl1:pending_enrolments hash    `agent thumbprint` → an enrolment that waits for an administrator, or what was decided.
                               Written by enrolment and the API; a day after the agent has asked last
fl1:approvals:{all}    hash    id → the state of a request for an approval. Written by the API; no
                               TTL, each is removed after it has expired. So is the next one
fl1:approval_requests:{all} hash  id → what the approval is asked for. Written once by the API
fl2:bound_key:{s}:a    string  thumbprint of the key that an agent's id is bound to, or `revoked` and that thumbprint;
                               with `@ISSUED` behind it (s), it is the key of a certificate of that time, and alone, an
                               id that was released. Written by enrolment, claim and the API; no TTL, but a week once it
                               was released without a certificate
fl1:revoked_keys       zset    `time thumbprint agent` of each key that was revoked lately → that time (ms). Written by
                               the API, and by nodes after Redis has lost it; no TTL, keys are removed after 8 days
fl1:tenant_open:{t}    zset    open commands of the tenant t → their deadlines (ms). Written if it has a quota; no TTL
fl1:tenant_use:{t}     hash    the bucket of its rate; `run:ID` → concurrency of a run, and its end (ms). Likewise
fl1:tenant_agents:{t}  zset    agents that it has enrolled → when (ms). Likewise
fl1:content:{digest}   string  octets that many commands get as their input, under their SHA-256, with `TENANT/` before
                               it. Written once by the API; an hour after the deadline of the last that refers to it
fl1:schedules:{all}    hash    id → a schedule: its cron expression, the terms of its runs, its poster. Written by the
                               API; no TTL, each is removed by a caller. So are the next three
fl1:schedule_names:{all}/t hash  digest of a caller and a name → id of the schedule of the tenant t that has it
fl1:schedules_due:{all} zset   id → when it is due next (ms). Written by whoever begins its run, too
fl1:schedule_starts:{all} hash  id → how its last start went. Written by whoever begins its run
fl1:events             stream  events of agents. Written by the recorder; 100,000 entries at most, see events_bytes
fl1:events_bytes:{…}   string  bytes of the events that are kept, so that the oldest are removed in time. Written by
                               add_event and remove_events; no TTL
fl1:events_agents:{…}  hash    agent → how many events of it are kept, their bytes, and the position before which there
                               are none. Written by add_event and remove_events; no TTL, entries go with the events
fl1:events_trimmed:{…} string  position of the last event that was removed for space, or that was lost before the first
                               one. Written by add_event; no TTL
fl1:event_groups:{…}   zset    names of the groups of readers of a tenant → when each was used last (ms). Written by
                               their readers; no TTL, 64 at most, those that are gone are removed when one is made
fl1:event_group:{…}:n  hash    a group: its owner, what it reads, how far it has come; for each event that it has not
                               acknowledged its attempts and its reader, and their number for each reader. Written by
                               its readers; 7 days after it was used last. So is the next one
fl1:event_pending:{…}:n zset   position of each event that the group has not acknowledged → when it is due again (ms)
fl1:dead_letters:{…}:n stream  events that the sink n could not deliver, with the last error. Written by its owner,
                               removed by the API; 1,000 and 8 MiB at most, 30 days after the last one. So is the next
                               one
fl1:dead_letter_bytes:{…}:n string  their bytes, so that the oldest are removed in time

`fl1` and `fl2` are versions of the layout, so that nodes of two versions never misread each other's data. All keys of
one script share one hash tag, as Redis Cluster requires: that of another key, or {s}, the shard of an agent (0 to 63),
which its commands share with it. So one script may touch everything that a command concerns, and a command's id alone
leads to its keys, because it contains the shard (see `shards`). An agent's id is qualified by its tenant everywhere
(see `tenant`). No script decides whether a node is alive: `node_table` does.
"""

from __future__ import annotations

from enum import StrEnum
from functools import cache
from typing import NamedTuple

from fairlead.shards import agent_shard, command_shard

DATA_EPOCH = "fl1:data_epoch"
NODES = "fl1:nodes"
COMPARED_SERVER = "fl1:compared_server"
COMPARED_PRIMARY = "fl1:compared_primary"
REVISION = "fl1:revision"
EVENTS = "fl1:events"
EVENTS_BYTES = "fl1:events_bytes:{fl1:events}"
EVENTS_TRIMMED = "fl1:events_trimmed:{fl1:events}"
EVENTS_AGENTS = "fl1:events_agents:{fl1:events}"
MOVES = "fl1:moves"
REBALANCE = "fl1:rebalance"
DISCONNECT = "fl1:disconnect"
SCALING_HISTORY = "fl1:scaling_history"
SERVICE_TOKENS = "fl1:service_tokens"
ENROLMENT_TOKENS = "fl1:enrolment_tokens"
REVOKED_KEYS = "fl1:revoked_keys"
PENDING_ENROLMENTS = "fl1:pending_enrolments"
APPROVALS = "fl1:approvals:{all}"
SCHEDULES = "fl1:schedules:{all}"
SCHEDULES_DUE = "fl1:schedules_due:{all}"
SCHEDULE_NAMES = "fl1:schedule_names:{all}"
SCHEDULE_STARTS = "fl1:schedule_starts:{all}"
APPROVAL_REQUESTS = "fl1:approval_requests:{all}"

MEMBERSHIP = (NODES, "nodes:nz", "nodes:r3")
"""The hash tags of the copies of the table of nodes; one server keeps the first alone. Their slots are a third of all
slots apart, so that in a Cluster whose primaries have equal ranges of slots no primary has all copies."""
REMEMBERED_MS = 24 * 3600_000
"""How long an Idempotency-Key is bound to the command that was first posted under it."""
OPEN_LIMIT = 1_000
"""The number of open commands of one agent. `hello.have` and `welcome.have` hold at most 1,024 entries."""


KEY_TYPES = {
    DATA_EPOCH: "string", COMPARED_SERVER: "string", COMPARED_PRIMARY: "string", "fl1:compared": "set",
    "fl1:confirmed": "string", NODES: "zset",
    "fl1:node": "hash", REVISION: "hash", REBALANCE: "hash", DISCONNECT: "hash",
    "fl1:disconnected": "hash", "fl2:agent": "hash", "fl2:open": "hash", "fl1:agents": "zset", "fl1:columns": "hash",
    "fl1:cells": "string",
    "fl2:cmd": "hash",
    "fl2:out": "stream", "fl2:in": "stream", "fl2:outcome": "string", "fl2:aside": "list",
    "fl2:deadlines": "zset", "fl1:idem": "string",
    "fl2:kept": "zset", "fl2:kept_until": "zset", "fl2:kept_bytes": "string",
    "fl1:runs": "zset", "fl1:recent_runs": "zset", "fl1:run": "hash", "fl1:run_agents": "list",
    "fl1:run_states": "string", "fl1:run_ends": "list", "fl1:run_groups": "hash",
    "fl1:link_stats": "string", "fl1:worst_links": "string", "fl1:inbox": "stream", MOVES: "hash",
    SCALING_HISTORY: "string", SERVICE_TOKENS: "hash", ENROLMENT_TOKENS: "zset", "fl1:enrolment": "hash",
    "fl2:bound_key": "string", "fl1:tenant_open": "zset", "fl1:tenant_use": "hash", "fl1:tenant_agents": "zset",
    REVOKED_KEYS: "zset", EVENTS: "stream", "fl1:events_bytes": "string",
    "fl1:events_trimmed": "string", "fl1:events_agents": "hash", "fl1:event_groups": "zset", "fl1:event_group": "hash",
    "fl1:event_pending": "zset",
    "fl1:dead_letters": "stream", "fl1:dead_letter_bytes": "string",
    PENDING_ENROLMENTS: "hash", "fl1:approvals": "hash",
    "fl1:approval_requests": "hash", "fl1:content": "string",
    "fl1:schedules": "hash", "fl1:schedule_names": "hash", "fl1:schedules_due": "zset", "fl1:schedule_starts": "hash",
}  # fmt: skip
"""The type of each key, by its part before the hash tag."""
SINGLE_KEYS = frozenset({
    DATA_EPOCH, COMPARED_SERVER, NODES, REVISION, REBALANCE, DISCONNECT, "fl1:runs", "fl1:recent_runs", MOVES,
    SCALING_HISTORY, SERVICE_TOKENS, ENROLMENT_TOKENS, REVOKED_KEYS, EVENTS, PENDING_ENROLMENTS,
})  # fmt: skip
"""Those of them that are whole keys, without a hash tag."""


def key_type(key: str) -> str | None:
    """The type of the values of `key`; None if it is not a key of this schema."""
    return KEY_TYPES.get(key.partition(":{")[0])


def nodes_key(copy: int) -> str:
    return f"{NODES}:{{{MEMBERSHIP[copy]}}}" if copy else NODES


def node_key(node: str, copy: int = 0) -> str:
    return f"fl1:node:{{{MEMBERSHIP[copy]}}}:{node}"


def compared_server_key(tag: str) -> str:
    """Where the server is noted whose data has been compared; `tag` is one of its hash tags in a Cluster."""
    return f"fl1:compared_primary:{{{tag}}}" if tag else COMPARED_SERVER


def compared_key(server: str, tag: str) -> str:
    return f"fl1:compared:{{{tag}}}:{server}" if tag else f"fl1:compared:{{{server}}}"


def agent_key(agent: str) -> str:
    return f"fl2:agent:{{{agent_shard(agent)}}}:{agent}"


def disconnected_key(operation: str) -> str:
    return f"fl1:disconnected:{{{operation}}}"


def bound_key(agent: str) -> str:
    return f"fl2:bound_key:{{{agent_shard(agent)}}}:{agent}"


def enrolment_key(id: str) -> str:
    return f"fl1:enrolment:{{{id}}}"


def open_key(agent: str) -> str:
    return f"fl2:open:{{{agent_shard(agent)}}}:{agent}"


def link_stats_key(agent: str) -> str:
    return f"fl1:link_stats:{{{agent}}}"


def worst_links_key(lease: str, by: str) -> str:
    return f"fl1:worst_links:{{{lease}}} {by}"


def index_key(shard: int) -> str:
    return f"fl1:agents:{{{shard}}}"


def columns_key(shard: int) -> str:
    return f"fl1:columns:{{{shard}}}"


def columns_keys(shard: int) -> tuple[str, str]:
    """The columns of a shard and their cells."""
    return columns_key(shard), f"fl1:cells:{{{shard}}}"


def cmd_key(command: str) -> str:
    return f"fl2:cmd:{{{command_shard(command)}}}:{command}"


def out_key(command: str) -> str:
    return f"fl2:out:{{{command_shard(command)}}}:{command}"


def in_key(command: str) -> str:
    return f"fl2:in:{{{command_shard(command)}}}:{command}"


def outcome_key(command: str) -> str:
    return f"fl2:outcome:{{{command_shard(command)}}}:{command}"


def aside_key(command: str) -> str:
    return f"fl2:aside:{{{command_shard(command)}}}:{command}"


@cache
def deadlines_key(shard: int) -> str:
    return f"fl2:deadlines:{{{shard}}}"


def record_keys(command: str) -> tuple[str, str, str, str]:
    """The keys of a record: itself, its results, its input, its outcome. Each command needs them several times, so the
    shard is computed once."""
    tail = f"{{{command_shard(command)}}}:{command}"
    return f"fl2:cmd:{tail}", f"fl2:out:{tail}", f"fl2:in:{tail}", f"fl2:outcome:{tail}"


@cache
def kept_keys(shard: int) -> tuple[str, str, str]:
    """The keys of what is kept of ended commands: by age, by when it is due, and the bytes."""
    return f"fl2:kept:{{{shard}}}", f"fl2:kept_until:{{{shard}}}", f"fl2:kept_bytes:{{{shard}}}"


def keys_to_accept(shard: int, command: str, agent: str) -> tuple[str, str, str]:
    """The agent's row and open commands, and the record, of a command whose shard is known: for one of many."""
    of_agent = f"{{{shard}}}:{agent}"
    return f"fl2:agent:{of_agent}", f"fl2:open:{of_agent}", f"fl2:cmd:{{{shard}}}:{command}"


def keys_to_append(shard: int, command: str, agent: str) -> tuple[str, str, str, str, str, str]:
    """The record, results, input and outcome of a command whose shard is known, and the open commands and the row of
    its agent."""
    of_command, of_agent = f"{{{shard}}}:{command}", f"{{{shard}}}:{agent}"
    return (
        f"fl2:cmd:{of_command}", f"fl2:out:{of_command}", f"fl2:in:{of_command}", f"fl2:outcome:{of_command}",
        f"fl2:open:{of_agent}", f"fl2:agent:{of_agent}",
    )  # fmt: skip


def idem_key(digest: str, agent: str) -> str:
    """What the Idempotency-Key of a command is bound to, beside the command's record."""
    return f"fl1:idem:{{{agent_shard(agent)}}}:{digest}"


def run_idem_key(digest: str) -> str:
    return f"fl1:idem:{{{digest}}}"


class TargetState(StrEnum):
    """The states of a command's target. Every target is in exactly one of them."""

    QUEUED = "queued"
    SENT = "sent"
    RUNNING = "running"
    OK = "ok"
    FAILED = "failed"
    TIMEOUT = "timeout"
    OFFLINE = "offline"
    CANCELLED = "cancelled"
    EXPIRED = "expired"

    @property
    def over(self) -> bool:
        """True for terminal states: they are set once and never change."""
        return self not in (TargetState.QUEUED, TargetState.SENT, TargetState.RUNNING)


AGENT_FIELDS = (
    "lease", "gen", "boot", "conn", "sid", "up", "seen", "close", "drained", "facts", "labels", "reason", "failures",
    "labels_lost", "unrecorded", "cloned",
)  # fmt: skip
"""The fields of an agent's hash, in the order of `AgentRow`."""


class AgentRow(NamedTuple):
    """What Redis knows about one agent. Times are Redis TIME in ms; 0 means never.

    It is a tuple because listing agents creates thousands: a frozen dataclass with as many fields takes several times
    as long to create.
    """

    agent: str
    lease: str
    gen: int
    boot: str
    conn: int
    sid: str
    up: int
    seen: int
    close: int
    drained: bool
    facts: str = "{}"
    labels: str = "{}"
    reason: str = ""
    failures: str = ""
    """`facts` and `labels` are JSON, `reason` is the reason of the last close, and `failures` has a line
    `time description` for each of the last commands that failed."""
    labels_lost: int = 0
    """When this row was written again after Redis had lost it with its labels; 0 if the labels were set since."""
    unrecorded: str = ""
    """`lease sid` of the link before this one if nobody recorded how it ended; `close` is 0 then."""
    cloned: int = 0
    """When the agent's key was last found to have two holders; 0 if it never was."""

    @property
    def last_failure(self) -> str:
        """The newest line of `failures`."""
        return self.failures.partition("\n")[0]

    @classmethod
    def parse(cls, agent: str, values: list[bytes | None]) -> AgentRow | None:
        """Parse the reply to HMGET of AGENT_FIELDS, or of the first nine; None if the agent was never seen."""
        lease, gen, boot, conn, sid, up, seen, close, drained = values[:9]
        if gen is None:
            return None
        first = (
            agent,
            lease.decode() if lease else "",
            int(gen),
            boot.decode() if boot else "",
            int(conn) if conn else 0,
            sid.decode() if sid else "",
            int(up) if up else 0,
            int(seen) if seen else 0,
            int(close) if close else 0,
            drained == b"1",
        )
        if len(values) == len(first) - 1:
            return cls(*first)
        facts, labels, reason, failures, lost, unrecorded, cloned = values[9:]
        return cls(
            *first,
            facts.decode() if facts else "{}",
            labels.decode() if labels else "{}",
            reason.decode() if reason else "",
            failures.decode() if failures else "",
            int(lost) if lost else 0,
            unrecorded.decode() if unrecorded else "",
            int(cloned) if cloned else 0,
        )
