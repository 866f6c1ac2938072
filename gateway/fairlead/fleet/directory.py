"""Agent → node: who holds which agent, and since which generation.

Called by `routing` when links come and go, and by the API when it looks an agent up. Every method sends its
commands at the call and returns an awaitable of the answer, so that a caller who needs two of them in one batch
calls both before it awaits. Raises BusUnavailable when Redis is away. It never judges whether a node is alive:
that is `NodeTable`'s.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from functools import partial

from fairlead.errors import FairleadError
from fairlead.fleet import directory_replies, lua, schema
from fairlead.fleet.directory_replies import AgentOwner, Claimed, LastSeen, LimitReached, Overtaken
from fairlead.fleet.schema import AgentRow
from fairlead.store.answer import Answer, AnswerOrError, map_bounded
from fairlead.store.backlog import Priority
from fairlead.store.pipeliner import Pipeliner
from fairlead.store.reply import Reply, integer, items, octets, text

ROW_BYTES = 1_024
"""That the row of an agent has as a rule: a dozen facts, some labels, a failure or two."""
RANKED_BYTES = 20_000
"""That the hundred worst links of a node have."""
AT_ONCE = 32
"""Rows that are asked for at once when many are wanted: two batches, so that one is under way while the other is
dealt with."""
IN_ONE_CALL = 16
"""Rows that are asked for in one call: what one batch takes of the background."""
NAMES_AT_ONCE = 256
"""Agent ids that are asked for at once: some 8 KB, and a fraction of a millisecond of the loop's time."""
SHARDS_AT_ONCE = 16
"""Shards of the index that are asked at once when they have few agents: what one batch takes of the background."""


class Directory:
    def __init__(self, store: Pipeliner) -> None:
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
    ) -> Answer[Claimed | Overtaken]:
        """Make `lease` the owner of `agent`. With `own_gen` again, and only if no newer generation stands there.

        `facts` are JSON. `known`: the agent had a row before, so that one which is not there has been lost with its
        labels.
        """
        # Before the claim: one that is answered is surely in the index.
        self._store.submit("ZADD", schema.index_key(schema.index_shard(agent)), 0, agent, priority=Priority.BACKGROUND)
        reply = self._store.run(
            lua.CLAIM_AGENT,
            (schema.agent_key(agent), schema.open_key(agent)),
            (
                lease,
                boot,
                conn,
                sid,
                facts,
                valid_until,
                "" if own_gen is None else own_gen,
                "1" if known else "",
                schema.ORDERED_MS,
            ),
            priority=Priority.BACKGROUND,
        )
        return Answer(reply, directory_replies.parse_claim)

    def release(self, agent: str, sid: str, close: int, drained: bool, reason: str) -> Answer[bool]:
        """Give the lease up, if it is still that session's."""
        ending = sid, int(close), "1" if drained else "0", reason
        reply = self._store.run(lua.RELEASE_AGENT, (schema.agent_key(agent),), ending, priority=Priority.BACKGROUND)
        return Answer(reply, lambda reply: integer(reply) == 1)

    def dispatch(
        self, agent: str, command: str, expires: int, valid_until: int
    ) -> Answer[AgentRow | LimitReached | None]:
        """Add `command` to the agent's open ones and read its row. None: no such agent was ever seen."""
        keys = schema.agent_key(agent), schema.open_key(agent)
        reply = self._store.run(lua.DISPATCH_COMMAND, keys, (command, expires, schema.OPEN_LIMIT, valid_until))
        return Answer(reply, partial(directory_replies.parse_dispatch, agent))

    def remove_open(self, agent: str, command: str, failure: str = "") -> Answer[str]:
        """The command is over: it is no longer open for its agent. `failure`, what went wrong with it, is kept for
        whoever asks why; then the answer is the lease that holds the agent, else ""."""
        if not failure:
            reply = self._store.submit("HDEL", schema.open_key(agent), command, priority=Priority.RESULTS)
            return Answer(reply, lambda _: "")
        keys, args = _remove_open_call(agent, command, failure)
        return Answer(self._store.run(lua.REMOVE_OPEN, keys, args, priority=Priority.RESULTS), text)

    def remove_open_each(self, settled: Sequence[tuple[str, str, str]]) -> Answer[Sequence[str | FairleadError]]:
        """Call `remove_open` for each (agent, command, failure) of `settled`, which must fit into one batch.

        The answer has the lease of each agent, or the error of that one call. These calls have the priority of the
        calls that callers wait for, and do not go before them.
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

    async def owners(self, agents: Sequence[str]) -> list[AgentOwner | Exception]:
        """The newest owner of each, or what reading its row raised."""
        return [
            found async for _, found in map_bounded(lambda agent: AnswerOrError(self.owner(agent)), agents, AT_ONCE)
        ]

    def owner(self, agent: str) -> Answer[AgentOwner]:
        """The newest owner."""
        key = schema.agent_key(agent)
        return Answer(
            self._store.submit("HMGET", key, "lease", "gen", "boot", priority=Priority.BACKGROUND),
            directory_replies.parse_owner,
        )

    def last_seen(self, agents: Sequence[str]) -> AsyncGenerator[tuple[str, LastSeen | Exception | None]]:
        """Each of `agents` with what its row says of that, None when it has none, and what reading it raised."""
        return map_bounded(lambda agent: AnswerOrError(self._last_seen(agent)), agents, AT_ONCE)

    def _last_seen(self, agent: str) -> Answer[LastSeen | None]:
        key = schema.agent_key(agent)
        return Answer(
            self._store.submit("HMGET", key, "gen", "lease", "up", "seen", priority=Priority.BACKGROUND),
            directory_replies.parse_last_seen,
        )

    async def look_up_all(self, agents: Sequence[str]) -> list[AgentRow]:
        """The rows of those that exist, in the order of `agents`."""
        parts = [agents[at : at + IN_ONE_CALL] for at in range(0, len(agents), IN_ONE_CALL)]
        return [row async for _, rows in map_bounded(self._look_up_each, parts, AT_ONCE // IN_ONE_CALL) for row in rows]

    def _look_up_each(self, agents: Sequence[str]) -> Answer[list[AgentRow]]:
        commands = [("HMGET", schema.agent_key(agent), *schema.AGENT_FIELDS) for agent in agents]
        replies = self._store.submit_each(commands, priority=Priority.BACKGROUND, expected=ROW_BYTES)
        return Answer(replies, partial(directory_replies.parse_rows, agents))

    def label(self, agent: str, changes: Mapping[str, str | None]) -> Answer[dict[str, str] | LimitReached | None]:
        """Set labels, or remove those that are None; all of them afterwards. None: no such agent was ever seen."""
        flat = [item for key, value in changes.items() for item in (key, "" if value is None else "1", value or "")]
        reply = self._store.run(lua.SET_LABELS, (schema.agent_key(agent),), (schema.LABEL_LIMIT, *flat))
        return Answer(reply, directory_replies.parse_labels)

    def write_link_stats(self, agent: str, state: bytes) -> asyncio.Future[Reply]:
        """Write down how the agent's link is doing, for whoever has asked."""
        return self._store.submit("SET", schema.link_stats_key(agent), state, "PX", schema.LINK_STATS_MS)

    def read_link_stats(self, agent: str) -> Answer[bytes]:
        """What `tell` wrote a moment ago; b"" when that was not."""
        reply = self._store.submit("GET", schema.link_stats_key(agent))
        return Answer(reply, lambda reply: b"" if reply is None else octets(reply))

    def write_worst_links(self, lease: str, by: str, links: bytes) -> asyncio.Future[Reply]:
        """Write down the worst links of this node, for whoever has asked."""
        return self._store.submit("SET", schema.worst_links_key(lease, by), links, "PX", schema.LINK_STATS_MS)

    def read_worst_links(self, lease: str, by: str) -> Answer[bytes]:
        """What `rank` wrote a moment ago on that node; b"" when that was not."""
        reply = self._store.submit("GET", schema.worst_links_key(lease, by), expected=RANKED_BYTES)
        return Answer(reply, lambda reply: b"" if reply is None else octets(reply))

    def index_page(self, shard: int, after: str, count: int) -> Answer[list[str]]:
        """Up to `count` agent ids of one shard of the index, by name, after `after` ("" for the first)."""
        start = f"({after}" if after else "-"
        reply = self._store.submit(
            "ZRANGE", schema.index_key(shard), start, "+", "BYLEX", "LIMIT", 0, count,
            priority=Priority.BACKGROUND, expected=32 * count,
        )  # fmt: skip
        return Answer(reply, lambda reply: [text(agent) for agent in items(reply)])

    async def index_pages(self, shard: int, after: str, count: int) -> AsyncGenerator[tuple[list[str], int, str]]:
        """The index from `shard` on, behind `after`: agent ids, up to `count` and `NAMES_AT_ONCE` at once, by shard and
        name, and the shard and name behind which the next ones are.

        Of a small fleet each shard has few agents or none, so that several are asked in one batch: a list must not take
        as many turns as there are shards when the way to Redis is slow.
        """
        ahead, count = 1, min(count, NAMES_AT_ONCE)
        while shard < schema.INDEX_SHARDS:
            stop = min(shard + ahead, schema.INDEX_SHARDS)
            names: list[str] = []
            for answer in [self.index_page(s, after if s == shard else "", count) for s in range(shard, stop)]:
                found = await answer
                names += found
                if len(found) == count or len(names) >= count:
                    names = names[:count]
                    shard, after = schema.index_shard(names[-1]), names[-1]
                    break
            else:
                shard, after = stop, ""
            yield names, shard, after
            ahead = max(ahead // 2, 1) if 2 * len(names) >= count else min(2 * ahead, SHARDS_AT_ONCE)

    def mark_absent(self, agent: str, dead_lease: str) -> asyncio.Future[Reply]:
        """Nobody saw this agent leave, since the node of `dead_lease` died: from now on it counts as absent."""
        return self._store.run(lua.MARK_ABSENT, (schema.agent_key(agent),), (dead_lease,), priority=Priority.BACKGROUND)

    async def forget(self, agent: str, seen_before: int, dead_lease: str) -> bool:
        """Remove an agent that was absent since before `seen_before` (ms), and its place in the index."""
        reply = await self._store.run(
            lua.FORGET_AGENT, (schema.agent_key(agent), schema.open_key(agent)), (seen_before, dead_lease),
            priority=Priority.BACKGROUND,
        )  # fmt: skip
        if not integer(reply):
            return False
        index = schema.index_key(schema.index_shard(agent))
        await self._store.submit("ZREM", index, agent)
        if await self.look_up(agent) is not None:  # it came back between the two
            await self._store.submit("ZADD", index, 0, agent)
        return True


def _remove_open_call(agent: str, command: str, failure: str) -> tuple[tuple[str, str], tuple[str, str, int]]:
    """Keys and arguments of settle.lua."""
    line = " ".join(failure.split())  # a part of it is the agent's own word, which may hold a line end
    return (schema.agent_key(agent), schema.open_key(agent)), (command, line, schema.FAILURES_KEPT)
