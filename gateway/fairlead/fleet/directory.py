"""The directory of agents: which node holds which agent, and since which generation.

`routing` calls it when links open and close, and the API calls it to look up agents. Every method sends its commands
when it is called and returns an awaitable of the answer, so that a caller who needs two calls in one batch makes both
before it awaits. Raises BusUnavailable if Redis does not answer. The directory never decides whether a node is alive;
`NodeTable` does.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

from fairlead.errors import BusUnavailable, FairleadError
from fairlead.fleet import directory_replies, lua, schema
from fairlead.fleet.columns.facts_change import FactsChange
from fairlead.fleet.directory_replies import AgentOwner, Claimed, LabelsChanged, LastSeen, LimitReached, Overtaken
from fairlead.fleet.schema import AgentRow
from fairlead.shards import SHARDS, agent_shard
from fairlead.store.answer import Answer, AnswerOrError, map_bounded
from fairlead.store.backlog import Priority
from fairlead.store.reply import Reply, integer, items, octets, text
from fairlead.store.store import Store
from fairlead.tenant import bounds

ROW_BYTES = 1_024
"""The expected size of an agent's row with a dozen facts, some labels and one or two failures."""
RANKED_BYTES = 20_000
"""The expected size of the hundred worst links of a node."""
AT_ONCE = 32
"""The number of rows that are requested at once if many are needed: two batches, so that one is in flight while the
other is processed."""
IN_ONE_CALL = 16
"""The number of rows that are requested in one call: as many background calls as fit into one batch."""
NAMES_AT_ONCE = 256
"""The number of agent ids that are requested at once: about 8 KB, and a fraction of a millisecond of the event loop."""
SHARDS_AT_ONCE = 16
"""The number of index shards that are read at once if they have few agents: as many background calls as fit into one
batch."""


CONTESTED_MS: Final = 60_000
"""How long the link of an agent whose key has two holders is not replaced by the other holder: they take turns once a
minute, and not as fast as they can connect."""
CLONED_MS: Final = 24 * 3600_000
"""How long it is remembered that a key had two holders, after it was last noticed."""
UNTOLD_MS: Final = 180_000
"""How long the node that was given a notice of two holders has to tell it, before another claim gives it again. It
repeats what fails for two minutes and a half at most (see `routing.agents.cloned_agents`)."""
ORDERED_MS: Final = 150_000
"""How long after a claim an older connection attempt of the same boot of the agent is refused: the 120 s for which a
connection attempt may wait for Redis by default, and 30 s for its transmission."""
LABEL_LIMIT: Final = 64
"""The number of labels of an agent; the limit for facts is the same."""
FAILURES_KEPT: Final = 5
"""How many of the newest failures are kept: five are enough to see whether a command always fails in the same way."""
LINK_STATS_MS: Final = 10_000
"""How long the statistics of links are kept for the node that requested them, which reads them at once."""


class ProvedKey(NamedTuple):
    """The key that an agent has proved to hold: its thumbprint, "" for none; the labels that its enrolment has granted,
    as JSON, for an agent without a row; and when the certificate or JWT that names the agent was issued (s). With
    `certified` it is a certificate's key, which takes the place of the key of an earlier certificate. `session` is the
    one that the agent has stored, by which two holders of the key are told apart."""

    thumbprint: str = ""
    labels: bytes = b""
    issued: int | None = None
    certified: bool = False
    session: str = ""


NO_KEY: Final = ProvedKey()


class Directory:
    def __init__(self, store: Store) -> None:
        self._store = store

    def claim(
        self,
        agent: str,
        lease: str,
        boot: str,
        conn: int,
        sid: str,
        facts: bytes,
        valid_until: int,
        *,
        own_gen: int | None = None,
        known: bool = False,
        key: ProvedKey = NO_KEY,
        revoke_cloned: bool = False,
        journal: str = "",
    ) -> Answer[Claimed | Overtaken]:
        """Make `lease` the owner of `agent`. With `own_gen` the lease claims the agent again, and succeeds only if the
        row has no newer generation.

        `facts` is JSON. `known` says that the agent had a row before: if there is none now, it was lost with its
        labels. An id that is bound to another `key` is not claimed. With `revoke_cloned` a key that is found to have
        two holders is refused for this id from now on. `journal` is the id under which the agent remembers commands
        if it is not `boot`.
        """
        shard = agent_shard(agent)
        columns, cells = schema.columns_keys(shard)
        reply = self._store.run(
            lua.CLAIM_AGENT,
            (
                schema.agent_key(agent), schema.open_key(agent), schema.bound_key(agent), columns,
                schema.index_key(shard), cells,
            ),
            (
                lease, boot, conn, sid, facts, valid_until, "" if own_gen is None else own_gen, "1" if known else "",
                ORDERED_MS, key.thumbprint, key.labels, "" if key.issued is None else key.issued,
                "1" if key.certified else "", key.session, "1" if revoke_cloned else "", CONTESTED_MS, CLONED_MS,
                UNTOLD_MS, journal, agent,
            ),
            priority=Priority.BACKGROUND,
        )  # fmt: skip
        return Answer(reply, directory_replies.parse_claim)

    def copies_told(self, agent: str) -> asyncio.Future[Reply]:
        """Record that the notice of two holders of the agent's key was told, so that no claim gives it again."""
        return self._store.submit("HDEL", schema.agent_key(agent), "untold")

    async def change_facts(self, changes: Sequence[FactsChange]) -> list[FairleadError | None]:
        """Write other facts of agents, or nothing for an agent that another session has. The answer has an error for
        each agent whose facts could not be written: BusUnavailable if they may be written later."""
        calls = [
            ((schema.agent_key(one.agent), *schema.columns_keys(agent_shard(one.agent))), one.arguments())
            for one in changes
        ]
        replies = await self._store.run_each(lua.CHANGE_FACTS, calls, priority=Priority.BACKGROUND)
        late = BusUnavailable("the row has facts of a later time")
        return [reply if isinstance(reply, FairleadError) else late if reply == -1 else None for reply in replies]

    def release(self, agent: str, sid: str, close: int, drained: bool, reason: str) -> Answer[bool]:
        """Release the lease if it still belongs to the session `sid`."""
        ending = sid, int(close), "1" if drained else "0", reason
        reply = self._store.run(lua.RELEASE_AGENT, (schema.agent_key(agent),), ending, priority=Priority.BACKGROUND)
        return Answer(reply, lambda reply: integer(reply) == 1)

    def mark_moved(self, agent: str, sid: str) -> Answer[bool]:
        """Record that a rebalance moves the agent now. The answer is False if the session `sid` no longer holds it."""
        reply = self._store.run(lua.MARK_MOVED, (schema.agent_key(agent),), (sid,), priority=Priority.BACKGROUND)
        return Answer(reply, lambda reply: integer(reply) == 1)

    def dispatch(
        self, agent: str, command: str, expires: int, valid_until: int
    ) -> Answer[AgentRow | LimitReached | None]:
        """Add `command` to the agent's open commands and read the agent's row; None if the agent was never seen."""
        keys = schema.agent_key(agent), schema.open_key(agent)
        reply = self._store.run(lua.DISPATCH_COMMAND, keys, (command, expires, schema.OPEN_LIMIT, valid_until))
        return Answer(reply, partial(directory_replies.parse_dispatch, agent))

    def remove_open(self, agent: str, command: str) -> asyncio.Future[Reply]:
        """Remove a command that is over from the agent's open commands."""
        return self._store.submit("HDEL", schema.open_key(agent), command, priority=Priority.RESULTS)

    def remove_open_each(self, settled: Sequence[tuple[str, str, str]]) -> Answer[Sequence[str | FairleadError]]:
        """Remove commands that have ended from the open commands of their agents: each (agent, command, failure) of
        `settled`, which must fit into one batch. `failure` describes what went wrong and is noted in the agent's row.

        The answer has the lease of each agent, or the error of that one call. These calls have the same priority as the
        calls for which API callers wait, and do not overtake them.
        """
        reply = self._store.run_each(lua.REMOVE_OPEN, [_remove_open_call(*one) for one in settled])
        return Answer(reply, directory_replies.parse_leases)

    async def open_commands(self, agent: str) -> list[str]:
        return [text(c) for c in items(await self._store.submit("HKEYS", schema.open_key(agent)))]

    def look_up(self, agent: str, priority: Priority = Priority.COMMANDS) -> Answer[AgentRow | None]:
        reply = self._store.submit(
            "HMGET", schema.agent_key(agent), *schema.AGENT_FIELDS, priority=priority, expected=ROW_BYTES
        )
        return Answer(reply, lambda reply: AgentRow.parse(agent, directory_replies.values(items(reply))))

    async def restore_index(self, agents: Sequence[str]) -> None:
        """Write these agents into the index again, which may have lost them with the last writes of a server. Raises
        BusUnavailable."""
        shards: dict[int, list[str | int]] = {}
        for agent in agents:
            shards.setdefault(agent_shard(agent), []).extend((0, agent))
        await asyncio.gather(
            *(
                self._store.write("ZADD", schema.index_key(shard), *members, priority=Priority.BACKGROUND)
                for shard, members in shards.items()
            )
        )

    async def owners(self, agents: Sequence[str]) -> list[AgentOwner | Exception]:
        """The newest owner of each agent, or the exception that reading its row raised."""
        return [
            found async for _, found in map_bounded(lambda agent: AnswerOrError(self.owner(agent)), agents, AT_ONCE)
        ]

    def owner(self, agent: str) -> Answer[AgentOwner]:
        """The newest owner of `agent`."""
        key = schema.agent_key(agent)
        return Answer(
            self._store.submit("HMGET", key, "lease", "gen", "boot", priority=Priority.BACKGROUND),
            directory_replies.parse_owner,
        )

    def last_seen(self, agents: Sequence[str]) -> AsyncGenerator[tuple[str, LastSeen | Exception | None]]:
        """Each of `agents` with the LastSeen of its row, None if it has no row, or the exception that reading
        raised."""
        return map_bounded(lambda agent: AnswerOrError(self._last_seen(agent)), agents, AT_ONCE)

    def _last_seen(self, agent: str) -> Answer[LastSeen | None]:
        key = schema.agent_key(agent)
        return Answer(
            self._store.submit("HMGET", key, "gen", "lease", "up", "seen", priority=Priority.BACKGROUND),
            directory_replies.parse_last_seen,
        )

    async def look_up_all(self, agents: Sequence[str]) -> list[AgentRow]:
        """The rows of those agents that have one, in the order of `agents`."""
        parts = [agents[at : at + IN_ONE_CALL] for at in range(0, len(agents), IN_ONE_CALL)]
        return [row async for _, rows in map_bounded(self._look_up_each, parts, AT_ONCE // IN_ONE_CALL) for row in rows]

    def _look_up_each(self, agents: Sequence[str]) -> Answer[list[AgentRow]]:
        commands = [("HMGET", schema.agent_key(agent), *schema.AGENT_FIELDS) for agent in agents]
        replies = self._store.submit_each(commands, priority=Priority.BACKGROUND, expected=ROW_BYTES)
        return Answer(replies, partial(directory_replies.parse_rows, agents))

    def label(
        self, agent: str, changes: Mapping[str, str | None], checked: str | None = None
    ) -> Answer[dict[str, str] | LimitReached | LabelsChanged | None]:
        """Set labels, or remove those whose value is None. The answer is all labels afterwards, or None if the agent
        was never seen. With `checked`, the labels of a row that was read before, nothing is changed if they are others
        now."""
        flat = [item for key, value in changes.items() for item in (key, "" if value is None else "1", value or "")]
        keys = schema.agent_key(agent), *schema.columns_keys(agent_shard(agent))
        reply = self._store.run(lua.SET_LABELS, keys, (LABEL_LIMIT, checked or "", *flat))
        return Answer(reply, directory_replies.parse_labels)

    def write_link_stats(self, agent: str, state: bytes) -> asyncio.Future[Reply]:
        """Write the statistics of the agent's link, for the node that requested them."""
        return self._store.submit("SET", schema.link_stats_key(agent), state, "PX", LINK_STATS_MS)

    def read_link_stats(self, agent: str) -> Answer[bytes]:
        """What `write_link_stats` wrote within the last LINK_STATS_MS; b"" if it wrote nothing."""
        reply = self._store.submit("GET", schema.link_stats_key(agent))
        return Answer(reply, lambda reply: b"" if reply is None else octets(reply))

    def write_worst_links(self, lease: str, by: str, links: bytes) -> asyncio.Future[Reply]:
        """Write the worst links of this node, for the node that requested them."""
        return self._store.submit("SET", schema.worst_links_key(lease, by), links, "PX", LINK_STATS_MS)

    def read_worst_links(self, lease: str, by: str) -> Answer[bytes]:
        """What `write_worst_links` wrote on that node within the last LINK_STATS_MS; b"" if it wrote nothing."""
        reply = self._store.submit("GET", schema.worst_links_key(lease, by), expected=RANKED_BYTES)
        return Answer(reply, lambda reply: b"" if reply is None else octets(reply))

    def index_page(self, shard: int, after: str, count: int, tenant: str | None = None) -> Answer[list[str]]:
        """Up to `count` agent ids of one shard of the index, ordered by name, after `after` ("" for the first): those
        of one tenant, or with None those of all."""
        start, end = ("-", "+") if tenant is None else bounds(tenant)
        reply = self._store.submit(
            "ZRANGE", schema.index_key(shard), f"({after}" if after else start, end, "BYLEX", "LIMIT", 0, count,
            priority=Priority.BACKGROUND, expected=32 * count,
        )  # fmt: skip
        return Answer(reply, lambda reply: [text(agent) for agent in items(reply)])

    async def index_pages(
        self, shard: int, after: str, count: int, tenant: str
    ) -> AsyncGenerator[tuple[list[str], int, str]]:
        """Read the index of a tenant from `shard` on, after the name `after`. Each page is the agent ids, ordered by
        shard and name, at most `count` and `NAMES_AT_ONCE`, and the shard and name after which the next page begins.

        In a small fleet each shard has few agents or none, so several shards are read in one batch: if the connection
        to Redis is slow, a list must not take one round trip per shard.
        """
        ahead, count = 1, min(count, NAMES_AT_ONCE)
        while shard < SHARDS:
            stop = min(shard + ahead, SHARDS)
            names: list[str] = []
            for answer in [self.index_page(s, after if s == shard else "", count, tenant) for s in range(shard, stop)]:
                found = await answer
                names += found
                if len(found) == count or len(names) >= count:
                    names = names[:count]
                    shard, after = agent_shard(names[-1]), names[-1]
                    break
            else:
                shard, after = stop, ""
            yield names, shard, after
            ahead = max(ahead // 2, 1) if 2 * len(names) >= count else min(2 * ahead, SHARDS_AT_ONCE)

    def mark_absent(self, agent: str, dead_lease: str) -> asyncio.Future[Reply]:
        """Count the agent as absent from now on: the node of `dead_lease` died, so no node saw the agent's link end."""
        return self._store.run(lua.MARK_ABSENT, (schema.agent_key(agent),), (dead_lease,), priority=Priority.BACKGROUND)

    async def forget(self, agent: str, seen_before: int, dead_lease: str) -> bool:
        """Remove an agent that has been absent since before `seen_before` (ms), and its entry in the index."""
        shard = agent_shard(agent)
        columns, cells = schema.columns_keys(shard)
        keys = schema.agent_key(agent), schema.open_key(agent), columns, schema.index_key(shard), cells
        reply = await self._store.run(
            lua.FORGET_AGENT, keys, (seen_before, dead_lease, agent), priority=Priority.BACKGROUND
        )  # fmt: skip
        return integer(reply) == 1


def _remove_open_call(agent: str, command: str, failure: str) -> tuple[tuple[str, str], tuple[str, str, int]]:
    """The keys and arguments of remove_open.lua."""
    line = " ".join(failure.split())  # a part of it comes from the agent and may contain a line end
    return (schema.agent_key(agent), schema.open_key(agent)), (command, line, FAILURES_KEPT)
