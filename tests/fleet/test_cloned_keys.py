"""The sessions by which the claim of a link tells two copies of an agent apart, on a real server.

A `Holder` is a machine with the key: it stores the session of a welcome or crashes before it does, and it is copied or
restored from a backup.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Awaitable, Callable

import pytest

from fairlead.fleet.directory import UNTOLD_MS, Directory, ProvedKey
from fairlead.fleet.directory_replies import Claimed, Overtaken
from fairlead.fleet.schema import agent_key, bound_key
from fairlead.store.embedded_valkey.server import EmbeddedValkey
from fairlead.store.pipeliner import Pipeliner
from fairlead.store.reply import octets

FAR = 1 << 52
KEY, OTHER = "k" * 43, "o" * 43


class Holder:
    def __init__(self, site: Site, stored: str = "", key: str = KEY) -> None:
        self.site, self.stored, self.key = site, stored, key
        self.boot, self.conn = site.new("boot"), 0

    def copy(self) -> Holder:
        return Holder(self.site, self.stored, self.key)

    def restart(self) -> None:
        self.boot, self.conn = self.site.new("boot"), 0

    async def link(self, *, stores: bool = True) -> str:
        """Open a link, and store its session if the machine does not crash before. Returns what the claim noticed, or
        why it was refused."""
        self.conn += 1
        sid = self.site.new("sid")
        found = await self.site.claim(self, sid)
        if isinstance(found, Overtaken):
            return found.why
        if stores:
            self.stored = sid
        return found.notice


class Site:
    def __init__(self, store: Pipeliner) -> None:
        self.store, self.directory = store, Directory(store)
        self._serial = itertools.count(1)
        self.revokes = False
        self.last: Claimed | Overtaken | None = None

    @property
    def noticed(self) -> bool:
        """Whether the last claim has found two holders that were not known before."""
        if isinstance(self.last, Claimed):
            return self.last.notice == "cloned"
        return self.last is not None and self.last.noticed

    def new(self, what: str) -> str:
        return f"{what}-{next(self._serial)}"

    async def claim(self, by: Holder, sid: str) -> Claimed | Overtaken:
        self.last = await self.directory.claim(
            "web-1", "n1#a", by.boot, by.conn, sid, b"{}", FAR,
            key=ProvedKey(by.key, session=by.stored), revoke_cloned=self.revokes,
        )  # fmt: skip
        return self.last

    async def pass_minutes(self, minutes: float) -> None:
        """Let the claim and the notice of the row be older."""
        for field in ("up", "cloned"):
            value = await self.store.submit("HGET", agent_key("web-1"), field)
            if isinstance(value, bytes):
                await self.store.submit("HSET", agent_key("web-1"), field, int(value) - int(minutes * 60_000))

    async def tell(self) -> None:
        await self.directory.copies_told("web-1")

    async def leave_untold(self) -> None:
        """As if the node that was given the notice had died minutes ago."""
        await self.store.submit("HINCRBY", agent_key("web-1"), "untold", -UNTOLD_MS - 1)

    async def cloned(self) -> int:
        row = await self.directory.look_up("web-1")
        assert row is not None
        return row.cloned


@pytest.fixture
async def site(own_valkey: EmbeddedValkey, connect: Callable[[str], Awaitable[Pipeliner]]) -> Site:
    return Site(await connect(own_valkey.url))


@pytest.mark.parametrize("seed", range(10))
async def test_one_agent_is_never_taken_for_two(site: Site, seed: int) -> None:
    """It restarts and crashes before it stores its session, as often as it likes, and its claims are repeated."""
    rng, agent = random.Random(seed), Holder(site)
    for _ in range(40):
        if rng.random() < 0.4:
            agent.restart()
        before = agent.stored
        assert await agent.link(stores=rng.random() < 0.6) == ""
        if rng.random() < 0.2:  # the answer was lost: the node claims again for the same link
            session, agent.stored = agent.stored, before
            assert isinstance(site.last, Claimed)
            sid = session if session != before else "unstored"
            if sid != "unstored":
                repeated = await site.claim(agent, sid)
                assert isinstance(repeated, Claimed)
                assert repeated.notice == ""
            agent.stored = session
    assert await site.cloned() == 0


@pytest.mark.parametrize("copied", ["before its first link", "while it is linked", "from a snapshot"])
async def test_two_copies_are_found_when_they_take_turns(site: Site, copied: str) -> None:
    original = Holder(site)
    if copied != "before its first link":
        assert await original.link() == ""
    copy = original.copy()
    if copied == "from a snapshot":
        assert await original.link() == ""
    noticed = []
    for turn in range(6):
        holder = (copy, original)[turn % 2]
        holder.restart()
        noticed.append(await holder.link())
        if site.noticed:
            break
    assert site.noticed, noticed
    assert len(noticed) <= 4, noticed
    assert noticed[-1] == "contested", "the other one has been linked for less than a minute"
    assert await site.cloned() > 0


async def take_turns(site: Site) -> tuple[Holder, Holder]:
    """Two copies, until the claim has noticed them."""
    original = Holder(site)
    await original.link()
    copy = original.copy()
    for turn in range(4):
        holder = (copy, original)[turn % 2]
        holder.restart()
        await holder.link()
        if site.noticed:
            return original, copy
    raise AssertionError("two copies were not noticed")


async def test_a_notice_that_nobody_has_told_is_given_again(site: Site) -> None:
    """Whoever claims next is given it, whichever of the two it is, and until it was told."""
    original, copy = await take_turns(site)
    for holder in (original, copy):
        await holder.link()
        assert not site.noticed, "the node that was given it has some time to tell it"
    for holder in (original, copy):
        await site.leave_untold()
        await holder.link()
        assert site.noticed
    await site.tell()
    for holder in (original, copy):
        await holder.link()
        assert not site.noticed


async def test_a_revoked_key_is_told_again_until_it_was_told(site: Site) -> None:
    site.revokes = True
    original, copy = await take_turns(site)
    assert await original.link() == await copy.link() == "key"
    await site.leave_untold()
    for holder in (original, copy):
        assert (await holder.link(), site.noticed) == (("cloned", True) if holder is original else ("key", False))
    await site.leave_untold()
    await site.tell()
    assert await original.link() == await copy.link() == "key"


async def test_a_restored_backup_is_told_once_and_is_no_copy(site: Site) -> None:
    agent = Holder(site)
    for _ in range(3):
        await agent.link()
    backup = agent.stored
    for _ in range(3):
        await agent.link()
    agent.stored = backup
    agent.restart()
    assert await agent.link() == "broken"
    for _ in range(5):
        assert await agent.link() == ""
    agent.stored = ""  # the file was lost, and the key was not
    assert await agent.link() == "broken"
    assert await agent.link() == ""
    assert await site.cloned() == 0


async def test_a_redis_that_has_lost_its_data_finds_no_copies(site: Site) -> None:
    agent = Holder(site)
    for _ in range(3):
        await agent.link()
    await site.store.submit("FLUSHALL")
    assert await agent.link() == ""
    old = octets(await site.store.submit("DUMP", agent_key("web-1")))
    for _ in range(3):
        await agent.link()
    await site.store.submit("RESTORE", agent_key("web-1"), 0, old, "REPLACE")  # a replica that was behind
    assert await agent.link() == "broken"
    assert [await agent.link() for _ in range(3)] == ["", "", ""]


async def two_copies(site: Site) -> tuple[Holder, Holder]:
    """Two copies that were found; the second one is linked."""
    one = Holder(site)
    await one.link()
    two = one.copy()
    notices = [await holder.link() for holder in (two, one, two, one)]
    assert notices == ["", "", "broken", "contested"]
    assert site.noticed
    return one, two


async def test_two_copies_take_turns_once_a_minute(site: Site) -> None:
    other, linked = await two_copies(site)
    for _ in range(50):
        other.restart()
        assert await other.link() == "contested"
    assert isinstance(site.last, Overtaken)
    assert 0 < site.last.wait_ms <= 60_000
    assert not site.noticed, "it was told when it was found"
    for _ in range(3):  # the one that is linked comes back as it likes
        linked.restart()
        assert await linked.link() == ""
    await site.pass_minutes(1.1)
    assert await other.link() == ""
    linked.restart()
    assert await linked.link() == "contested"
    # The one that has the link goes away: nobody is kept out for it.
    assert await site.directory.release("web-1", other.stored, 1000, False, "")
    assert await linked.link() == ""
    assert not site.noticed


async def test_an_agent_whose_copy_is_gone_is_forgiven_after_a_day(site: Site) -> None:
    _, linked = await two_copies(site)
    await site.pass_minutes(23 * 60)
    assert await linked.link() == ""
    assert await site.cloned() > 0
    await site.pass_minutes(61)
    assert await linked.link() == ""
    assert await site.cloned() == 0


async def test_a_key_with_two_holders_is_revoked_if_it_shall_be(site: Site) -> None:
    one = Holder(site)
    await one.link()
    site.revokes, two = True, one.copy()
    assert [await holder.link() for holder in (two, one, two)] == ["", "", "broken"]
    assert await one.link() == "cloned"
    assert isinstance(site.last, Overtaken)
    assert site.last.noticed
    assert await site.store.submit("GET", bound_key("web-1")) == f"revoked {KEY}".encode()
    for holder in (one, two) * 3:
        assert await holder.link() == "key"
    await site.store.submit("SET", bound_key("web-1"), OTHER)  # released, and enrolled anew
    assert await site.cloned() > 0
    anew = Holder(site, key=OTHER)
    assert await anew.link() == ""
    assert await site.cloned() == 0
    assert await one.link() == "key"


async def test_a_claim_that_has_a_key_revoked_is_answered_alike_when_it_is_repeated(site: Site) -> None:
    """The first answer was lost. Only who learns of the revocation closes the link of the other copy."""
    other, linked = await two_copies(site)
    site.revokes, sid = True, site.new("sid")
    for _ in range(2):
        found = await site.claim(other, sid)
        assert isinstance(found, Overtaken)
        assert (found.why, found.noticed) == ("cloned", True)
    assert [await holder.link() for holder in (other, linked)] == ["key", "key"]


async def test_a_policy_that_changes_to_hold_revokes_a_key_that_was_told_before(site: Site) -> None:
    other, linked = await two_copies(site)
    site.revokes = True
    assert await other.link() == "cloned"
    assert site.noticed, "the links of the other one have to be closed"
    assert await linked.link() == "key"


async def test_agents_that_store_no_session_are_served(site: Site) -> None:
    agent = Holder(site)
    for _ in range(5):
        assert await agent.link(stores=False) == ""
        agent.restart()
    assert await site.cloned() == 0
