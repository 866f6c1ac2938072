"""Random histories of a small fleet with tenants, whose selections are compared with a reading of all rows.

Called by test_columns.py. A history does what nodes and the platform do to rows (claims with the same and with other
facts, facts told on a link, moves, labels, removals) and what may happen to Redis (a row or the columns are lost, or
somebody writes another type there), on a real server.
"""

from __future__ import annotations

import random
import string

import msgspec

from fairlead.fleet import schema
from fairlead.fleet.columns.agent_columns import AgentColumns
from fairlead.fleet.columns.column_builder import ColumnBuilder
from fairlead.fleet.columns.facts_change import FactsChange
from fairlead.fleet.directory import Directory, ProvedKey
from fairlead.fleet.reports.fact_history import FactHistory, NotedChange
from fairlead.fleet.schema import AgentRow
from fairlead.fleet.selector import Selector, parse
from fairlead.shards import SHARDS, agent_shard
from fairlead.store.reply import Arg
from fairlead.store.store import Store
from fairlead.tenant import qualified

TENANTS = ("", "acme", "b")
SOME = (3, 9, 10)
"""Few shards, so that each has several agents."""
FACTS = {
    "os": ["linux", "windows", ""],
    "os.version": ["9", "10", "12", "12.1", "22.04"],
    "host": [f"h{n}" for n in range(60)],
    "note": ["x" * 130, "y" * 130, "one\x00two", "ä\x01", "short"],
    "rack": ["r1"],
    "zone": ["eu-1", "eu-2"],
    "not selectable": ["1"],
}
LABELS = {"os": ["label-os", "linux"], "env": ["prod", "dev"], "drained": [""], "zone": ["eu-1", "z"], "team/x": ["a"]}
KEYS = ["os", "os.version", "host", "note", "rack", "zone", "env", "drained", "team/x", "missing"]

_decode = msgspec.json.Decoder(dict[str, str]).decode


def _some(rng: random.Random, pool: dict[str, list[str]]) -> dict[str, str]:
    return {key: rng.choice(values) for key, values in pool.items() if rng.random() < 0.6}


def random_selector(rng: random.Random) -> Selector:
    terms = []
    for _ in range(rng.randint(1, 3)):
        key = rng.choice(KEYS)
        values = [value for value in FACTS.get(key, []) + LABELS.get(key, []) if value and value.isprintable()] or ["x"]
        one, two = rng.choice(values), rng.choice(values)
        name = rng.choice(["", "fact.", "label."]) + key
        terms.append(
            rng.choice(
                [name, f"!{name}", f"{name}={one}", f"{name}!={one}", f"{name}=", f"{name} in ({one},{two})",
                 f"{name} notin ({one},{two})", f"{name}<{one}", f"{name}>={one}", f"{name}=h{rng.randrange(60)}"]
            )
        )  # fmt: skip
    return parse(",".join(terms))


def matches(row: AgentRow, wanted: Selector) -> bool | None:
    return wanted.matches(None if row.labels_lost else _decode(row.labels), _decode(row.facts))


class ColumnHistory:
    def __init__(self, store: Store, seed: int, far: int) -> None:
        self.store, self._far = store, far
        self.rng = random.Random(seed)
        self.directory = Directory(store)
        self.columns = AgentColumns(store, self.directory)
        self.builder = ColumnBuilder(store, self.directory)
        names = (f"{a}{b}" for a in string.ascii_lowercase for b in range(40))
        local = [name for name in names if agent_shard(name) in SOME][:20]
        self._agents = [qualified(tenant, name) for tenant in TENANTS for name in local]
        self._history = FactHistory(store)
        self._facts: dict[str, bytes] = {}
        self._sids: dict[str, str] = {}
        self.rows_lost = bool(seed % 2)
        """Whether single rows are removed by hand, which leaves their positions taken: counts are too high then."""
        self._sid = 0

    async def step(self) -> None:
        agent = self.rng.choice(self._agents)
        keys = schema.columns_keys(agent_shard(agent))
        what = self.rng.random()
        if what < 0.2:
            await self.tell(agent)
        elif what < 0.5:
            await self.claim(agent, new_facts=self.rng.random() < 0.7, known=self.rng.random() < 0.5)
        elif what < 0.75:
            changes = {name: self.rng.choice([*values, None]) for name, values in LABELS.items()}
            await self.directory.label(agent, dict(self.rng.sample(sorted(changes.items()), 2)))
        elif what < 0.85:
            await self.remove(agent)
        elif what < 0.92:
            await self.store.submit("DEL", schema.agent_key(agent), *([] if self.rows_lost else keys[:1]))
        elif what < 0.94:
            await self.store.submit("DEL", self.rng.choice(keys))
        elif what < 0.945:
            await self.store.submit("SET", self.rng.choice(keys), "a note")
        elif what < 0.95:
            await self.store.submit("DEL", keys[1])
            await self.store.submit("RPUSH", keys[1], "a note")
        else:
            await self._build(agent_shard(agent))

    async def claim(self, agent: str, *, new_facts: bool, known: bool) -> None:
        if new_facts or agent not in self._facts:
            self._facts[agent] = msgspec.json.encode(_some(self.rng, FACTS))
        self._sid += 1
        self._sids[agent] = f"sid {self._sid}"
        labels = msgspec.json.encode(_some(self.rng, LABELS)) if self.rng.random() < 0.5 else b""
        await self.directory.claim(
            agent, self.rng.choice(["n1#a", "n2#b"]), f"boot {self._sid}", 1, self._sids[agent], self._facts[agent],
            self._far, known=known, key=ProvedKey("", labels),
        )  # fmt: skip

    async def tell(self, agent: str) -> None:
        """Facts that the agent's link tells, of which few differ. At times its node is wrong about those of the row."""
        row, sid = await self.directory.look_up(agent), self._sids.get(agent, "")
        told = _decode(self._facts.get(agent, b"{}"))
        told |= {key: self.rng.choice(FACTS[key]) for key in self.rng.sample(sorted(FACTS), self.rng.randint(1, 2))}
        for key in self.rng.sample(sorted(told), self.rng.randrange(2)):
            del told[key]
        known = row.facts.encode() if row is not None and self.rng.random() < 0.7 else self._facts.get(agent, b"{}")
        earlier = await self._history.read(agent)
        change = FactsChange(agent, sid, known, msgspec.json.encode(told), self._far + self._sid)
        assert await self.directory.change_facts([change]) == [None]
        if row is None or row.sid != sid:
            return
        self._facts[agent] = change.facts
        after = await self.directory.look_up(agent)
        assert after is not None
        assert after.facts == change.facts.decode()
        if row.facts != after.facts:
            old = _decode(row.facts)
            changed = {key: (old.get(key), told.get(key)) for key in old | told if old.get(key) != told.get(key)}
            newest = NotedChange(change.at, changed, 0)
            assert await self._history.read(agent) == [newest, *earlier][:5]

    async def remove(self, agent: str) -> None:
        row = await self.directory.look_up(agent)
        if row is not None:
            await self.directory.forget(agent, self._far, row.lease)

    async def _build(self, shard: int) -> None:
        key: Arg
        for key, of_type in zip(schema.columns_keys(shard), (b"hash", b"string"), strict=True):
            if await self.store.submit("TYPE", key) != of_type:
                await self.store.submit("DEL", key)  # as `KeyTypes` does
        await self.builder.build(shard)

    async def build_all(self) -> None:
        for shard in range(SHARDS):
            await self._build(shard)

    async def selected(self, tenant: str, wanted: Selector) -> tuple[list[str], list[str], int]:
        """The agents that match according to the columns and their rows, those of which lost labels decide, and how
        many rows were read."""
        found: list[str] = []
        undecided: list[str] = []
        read = 0
        shard, after = 0, ""
        while shard < SHARDS:
            count = self.rng.choice([1, 3, 100])
            async for page in self.columns.pages(shard, after, count, tenant, wanted):
                names, shard, after = page
                assert len(names) <= count
                read += len(names)
                for row in await self.directory.look_up_all(names):
                    verdict = matches(row, wanted)
                    (found if verdict else undecided if verdict is None else []).append(row.agent)
                if self.rng.random() < 0.1:
                    break  # and begin again there, as with a cursor
        return found, undecided, read

    async def scanned(self, tenant: str, wanted: Selector) -> tuple[list[str], list[str]]:
        """The same by reading all rows."""
        found: list[str] = []
        undecided: list[str] = []
        async for names, _, _ in self.directory.index_pages(0, "", 1_000, tenant):
            for row in await self.directory.look_up_all(names):
                verdict = matches(row, wanted)
                (found if verdict else undecided if verdict is None else []).append(row.agent)
        return found, undecided

    async def counted(self, tenant: str, wanted: Selector) -> int:
        sure, left = await self.parts(tenant, wanted)
        return sure + sum(matches(row, wanted) is True for row in await self.directory.look_up_all(left))

    async def parts(self, tenant: str, wanted: Selector) -> tuple[int, list[str]]:
        """How many agents match surely, and the names of those of which only the rows tell."""
        parts = [part async for part in self.columns.counts(tenant, wanted)]
        return sum(part.sure for part in parts), [name for part in parts for name in part.open]
