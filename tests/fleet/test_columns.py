"""Selections by columns: after any history they are those of a reading of all rows, and they read few rows.

Every test runs on a single server and on a one-node cluster. With the small limits, columns have few codes, soon
outgrow their room, and soon refuse keys.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

import msgspec
import pytest

from fairlead.errors import BusUnavailable
from fairlead.fleet import lua, schema
from fairlead.fleet.columns import agent_columns, column_builder
from fairlead.fleet.columns.facts_change import FactsChange
from fairlead.fleet.directory_replies import Claimed
from fairlead.fleet.reports.fact_history import FactHistory
from fairlead.fleet.selector import parse
from fairlead.shards import SHARDS, agent_shard
from fairlead.store.reply import items, octets, table, text
from fairlead.store.script import Script

from support.fleet.column_history import SOME, TENANTS, ColumnHistory, random_selector
from support.fleet.script_server import FAR_MS, ScriptServer

SEEDS = range(int(os.environ.get("FAIRLEAD_MODEL_EXAMPLES") or 4))
COLUMNS = 64
"""Those of labels that a shard may have, as in columns.lua."""
LIMITS = "LEAST, CODES, OTHER, COLUMNS, LENGTH = 64, 254, 255, 64, 128"
SMALL = "LEAST, CODES, OTHER, COLUMNS, LENGTH = 2, 3, 255, 4, 12"
SCRIPTS = ("CLAIM_AGENT", "SET_LABELS", "FORGET_AGENT", "INDEX_AGENT", "CHANGE_FACTS")


@pytest.fixture(scope="module", params=["server", "cluster"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScriptServer]:
    made = ScriptServer(tmp_path_factory.mktemp("valkey"), cluster=request.param == "cluster")
    yield made
    made.close()


@pytest.fixture(params=["limits", "small limits"])
def limits(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(column_builder, "PAUSE", 0)
    if request.param == "small limits":
        monkeypatch.setattr(agent_columns, "NAMES_AT_ONCE", 2)
        for name in SCRIPTS:
            source = getattr(lua, name).source
            assert LIMITS in source
            monkeypatch.setattr(lua, name, Script(name.lower(), source.replace(LIMITS, SMALL)))


def history(server: ScriptServer, seed: int) -> ColumnHistory:
    server.submit("FLUSHALL")
    return ColumnHistory(server.store, seed, server.run(server.time()) + FAR_MS)


@pytest.mark.usefixtures("limits")
@pytest.mark.parametrize("seed", SEEDS)
def test_a_selection_is_that_of_a_reading_of_all_rows(server: ScriptServer, seed: int) -> None:
    played = history(server, seed)

    async def play() -> None:
        for step in range(120):
            await played.step()
            if step % 10 == 9:
                await compare(played)
            if step % 60 == 40:
                await played.build_all()
                await compare(played)

    server.run(play())


async def compare(played: ColumnHistory) -> None:
    for _ in range(4):
        tenant, wanted = played.rng.choice(TENANTS), random_selector(played.rng)
        found, undecided, _ = await played.selected(tenant, wanted)
        assert (found, undecided) == await played.scanned(tenant, wanted), wanted
        if not played.rows_lost:
            assert await played.counted(tenant, wanted) == len(found), wanted
    assert await empty_columns(played) == []


async def empty_columns(played: ColumnHistory) -> list[bytes]:
    """The columns of facts and labels in which no agent has a value, unless keys were refused."""
    found: list[bytes] = []
    for shard in SOME:
        columns, cells = schema.columns_keys(shard)
        types = [await played.store.submit("TYPE", key) for key in (columns, cells)]
        if types != [b"hash", b"string"]:
            continue
        fields = table(await played.store.submit("HGETALL", columns))
        written = octets(await played.store.submit("GET", cells))
        if not written.startswith(fields.get(b"gen", b"-")):
            continue  # these are not the cells of these columns, which are built again
        names = {name for name in fields if name[:2] in (b"f.", b"l.") and name[-1:] != b"#"}
        room = int(fields.get(b"room", 0))
        slots = {name: 16 + int(fields[name][:3]) * room for name in names}
        assert len(set(slots.values())) == len(names), fields
        filled = {name for name, first in slots.items() if written[first : first + room].strip(b"\0")}
        for kind in (b"f", b"l"):
            some = {name for name in names if name[:1] == kind}
            assert len(some) == int(fields.get(kind + b"+", 0)), fields
            found += () if kind + b"!" in fields else some - filled
    return found


async def fill(played: ColumnHistory, count: int, far: int, **more: str) -> None:
    for n in range(count):
        facts = msgspec.json.encode({"os": "linux", "os.version": str(9 + n % 4), "host": f"h{n}", **more})
        claimed = await played.directory.claim(f"agent-{n}", "n#1", "boot", 1, f"sid {n}", facts, far)
        assert isinstance(claimed, Claimed)


def test_few_rows_are_read_of_many(server: ScriptServer) -> None:
    """A selector reads the rows of those that match, and of hardly any other."""
    played = history(server, 1)
    count, far = 2_000, server.run(server.time()) + FAR_MS

    async def play() -> None:
        await played.build_all()
        await fill(played, count, far)
        await played.directory.label("agent-7", {"drained": "", "env": "prod"})
        for selector, expected, most in (
            ("host=h77", 1, 1),
            ("os.version=12,host in (h3,h5,h6)", 1, 1),
            ("drained", 1, 1),
            ("env=prod,os=linux", 1, 1),
            ("os=windows", 0, 0),
            ("missing", 0, 0),
            ("os.version<10,host!=h4", 499, 499),
            ("!drained,os.version>=12", 499, 499),
            ("os!=linux", 0, 0),
        ):
            found, _, read = await played.selected("", parse(selector))
            assert len(found) == expected, selector
            assert read <= most, selector
            assert await played.parts("", parse(selector)) == (expected, []), selector
        assert len((await played.selected("other", parse("os=linux")))[0]) == 0

    server.run(play())


def test_the_cells_of_a_shard_outgrow_their_room_again_and_again(server: ScriptServer) -> None:
    """With values beyond the codes of a column, and with a column that came late. Each column is read in one call."""
    played = history(server, 1)
    shard, far = SOME[0], server.run(server.time()) + FAR_MS
    names = [name for name in (f"agent-{n}" for n in range(40_000)) if agent_shard(name) == shard][:400]

    async def getranges() -> int:
        stats = text(await server.store.submit("INFO", "commandstats"))
        return sum(int(line.split("calls=")[1].split(",")[0]) for line in stats.splitlines() if "_getrange:" in line)

    async def play() -> None:
        await played.build_all()
        for n, name in enumerate(names):
            facts = msgspec.json.encode({"os": "linux", "host": f"h{n}"} | ({"late": str(n % 2)} if n >= 300 else {}))
            assert isinstance(await played.directory.claim(name, "n#1", "boot", 1, f"sid {n}", facts, far), Claimed)
        for selector, expected in (("os=linux", 400), ("host=h1", 1), ("host=h399", 1), ("late=1", 50), ("!late", 300)):
            assert await played.counted("", parse(selector)) == expected, selector
        await server.store.submit("CONFIG", "RESETSTAT")
        assert await played.parts("", parse("os=linux,late=0")) == (50, [])
        assert await getranges() == SHARDS + 3, "what cells begin with, then tenants and two facts"

    server.run(play())


def test_labels_that_nobody_has_any_more_take_no_columns(server: ScriptServer) -> None:
    """More labels come and go than there may be columns, and a later one is still found without reading rows."""
    played = history(server, 1)
    far = server.run(server.time()) + FAR_MS

    async def play() -> None:
        await played.build_all()
        await fill(played, 1_000, far)
        for n in range(3 * COLUMNS):
            await played.directory.label("agent-7", {f"ticket-{n}": "open", f"ticket-{n - 1}": None})
        await played.directory.label("agent-8", {"late": "yes"})
        found, _, read = await played.selected("", parse("late=yes"))
        assert (found, read) == (["agent-8"], 1)
        assert await played.parts("", parse("!late")) == (999, [])

    server.run(play())


def test_values_without_codes_are_found_by_their_hash(server: ScriptServer, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in SCRIPTS:
        source = getattr(lua, name).source.replace(LIMITS, LIMITS.replace("254, 255", "2, 255"))
        monkeypatch.setattr(lua, name, Script(name.lower(), source))
    played = history(server, 1)
    count, far = 1_000, server.run(server.time()) + FAR_MS

    async def play() -> None:
        await played.build_all()
        await fill(played, count, far)
        for selector, expected, most in (("host=h777", 1, 3), ("host=h1,os=linux", 1, 3), ("host!=h5", 999, 1_000)):
            found, _, read = await played.selected("", parse(selector))
            assert (len(found), read <= most) == (expected, True), (selector, read)

    server.run(play())


def test_the_same_facts_leave_row_and_columns_as_they_are(server: ScriptServer) -> None:
    played = history(server, 1)
    far = server.run(server.time()) + FAR_MS

    async def writes() -> int:
        stats = text(await server.store.submit("INFO", "commandstats"))
        return sum(int(line.split("calls=")[1].split(",")[0]) for line in stats.splitlines() if "cmdstat_hset" in line)

    async def play() -> None:
        await fill(played, 1, far)
        columns = await server.store.submit("HGETALL", schema.columns_key(agent_shard("agent-0")))
        facts, pos = items(await server.store.submit("HMGET", schema.agent_key("agent-0"), "facts", "pos"))
        await server.store.submit("CONFIG", "RESETSTAT")
        await fill(played, 1, far)
        assert await writes() == 1, "lease, generation and times"
        assert await server.store.submit("HGETALL", schema.columns_key(agent_shard("agent-0"))) == columns
        assert items(await server.store.submit("HMGET", schema.agent_key("agent-0"), "facts", "pos")) == [facts, pos]
        await fill(played, 1, far, os="bsd")
        assert await server.store.submit("HGETALL", schema.columns_key(agent_shard("agent-0"))) != columns

    server.run(play())


def test_a_told_fact_whose_value_is_known_takes_four_calls(server: ScriptServer) -> None:
    """Row and columns are read once each, and a cell and the row are written."""
    played = history(server, 1)
    far = server.run(server.time()) + FAR_MS

    async def calls() -> dict[str, int]:
        stats = text(await server.store.submit("INFO", "commandstats"))
        return {
            name: int(count) for name, count in re.findall(r"cmdstat_(h\w+|\w+range|bit\w+|time):calls=(\d+)", stats)
        }

    async def play() -> None:
        await played.build_all()
        await fill(played, 1, far, zone="eu-1")
        told = [
            msgspec.json.encode({"os": "linux", "os.version": "9", "host": "h0", "zone": f"eu-{n}"}) for n in (1, 2)
        ]
        for before, facts in (told, told[::-1]):
            await server.store.submit("CONFIG", "RESETSTAT")
            change = FactsChange("agent-0", "sid 0", before, facts, far)
            assert await played.directory.change_facts([change]) == [None]
        assert await calls() == {"hmget": 2, "setrange": 1, "hset": 1}
        assert await played.parts("", parse("zone=eu-1")) == (1, [])

    server.run(play())


def test_what_a_stalled_connection_brings_late_undoes_no_newer_facts(server: ScriptServer) -> None:
    played = history(server, 1)
    far = server.run(server.time()) + FAR_MS
    one, two, three = (b'{"os":"%d"}' % n for n in (1, 2, 3))

    async def play() -> None:
        await played.build_all()
        await played.directory.claim("agent-0", "n1#a", "boot 0", 1, "sid 0", one, far, known=False)
        newest = FactsChange("agent-0", "sid 0", one, three, far + 2)
        assert await played.directory.change_facts([newest]) == [None]
        (late,) = await played.directory.change_facts([FactsChange("agent-0", "sid 0", one, two, far + 1)])
        assert isinstance(late, BusUnavailable), "its node tells again what the session has by then"
        row = await played.directory.look_up("agent-0")
        assert row is not None
        assert row.facts.encode() == three
        assert await played.parts("", parse("os=3")) == (1, [])
        assert await played.directory.change_facts([newest]) == [None], "an answer that was lost"

    server.run(play())


def test_the_same_facts_in_another_order_are_no_change_of_the_history(server: ScriptServer) -> None:
    played = history(server, 1)
    far = server.run(server.time()) + FAR_MS
    facts, turned = b'{"os":"1","zone":"2"}', b'{"zone":"2","os":"1"}'

    async def play() -> None:
        for at, one in enumerate((facts, turned)):
            await played.directory.claim("agent-0", "n1#a", f"boot {at}", 1, f"sid {at}", one, far, known=bool(at))
        change = FactsChange("agent-0", "sid 1", turned, facts, far)
        assert await played.directory.change_facts([change]) == [None]
        assert await FactHistory(server.store).read("agent-0") == []

    server.run(play())


def test_keys_beyond_the_most_common_are_read_from_rows(server: ScriptServer) -> None:
    """An agent with more keys than there are columns costs the others of its shard their speed, and no answer."""
    played = history(server, 1)
    far = server.run(server.time()) + FAR_MS

    async def play() -> None:
        await played.build_all()
        facts = msgspec.json.encode({f"k{n}": "v" for n in range(COLUMNS + 1)})
        await played.directory.claim("hostile", "n#1", "boot", 1, "sid", facts, far)
        await fill(played, 200, far, late="yes")
        assert len((await played.selected("", parse("late=yes")))[0]) == 200
        assert len((await played.selected("", parse("!late")))[0]) == 1
        assert (await played.counted("", parse("late=yes"))) == 200

    server.run(play())


def test_columns_that_refused_keys_are_built_again_after_a_day(
    server: ScriptServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(column_builder, "PAUSE", 0)
    played = history(server, 1)
    far = server.run(server.time()) + FAR_MS

    async def play() -> None:
        await played.build_all()
        facts = msgspec.json.encode({f"k{n}": "v" for n in range(COLUMNS + 1)})
        await played.directory.claim("hostile", "n#1", "boot", 1, "sid", facts, far)
        await fill(played, 300, far, late="yes")
        before = await played.parts("", parse("late=yes"))
        assert before[1] != []
        await played.build_all()
        assert await played.parts("", parse("late=yes")) == before
        monkeypatch.setattr(column_builder, "FULL_MS", 0)
        await played.build_all()
        assert await played.parts("", parse("late=yes")) == (300, [])

    server.run(play())


def test_rows_of_before_are_built_into_columns(server: ScriptServer) -> None:
    played = history(server, 1)
    far = server.run(server.time()) + FAR_MS

    async def play() -> None:
        await fill(played, 300, far)
        for shard in range(SHARDS):
            await server.store.submit("DEL", schema.columns_key(shard))
        assert len((await played.parts("", parse("os.version=12")))[1]) == 300
        assert (await played.selected("", parse("os.version=12")))[2] == 300
        await played.build_all()
        assert await played.parts("", parse("os.version=12")) == (75, [])

    server.run(play())


def test_an_agent_that_comes_back_after_the_index_was_lost_is_selected_again(server: ScriptServer) -> None:
    """Somebody wrote another type there, which was removed, and columns were built meanwhile."""
    played = history(server, 1)

    async def play() -> list[str]:
        await played.claim("a1", new_facts=True, known=False)
        shard = agent_shard("a1")
        await played.store.submit("DEL", schema.index_key(shard), schema.columns_key(shard))
        await played.build_all()
        await played.claim("a1", new_facts=False, known=True)
        found, _, _ = await played.selected("", parse("!missing"))
        assert [name async for names, _, _ in played.directory.index_pages(0, "", 10, "") for name in names] == ["a1"]
        return found

    assert server.run(play()) == ["a1"]
