"""Enrolment on a real server: who gets a credential, how often, and for which key; and attacks with what was stolen."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import cast

import msgspec
import pytest

from fairlead.audit.log_writer import AuditLogWriter, AuditUnavailable
from fairlead.audit.verification import read_lines
from fairlead.errors import (
    ApprovalPending,
    EnrolmentDenied,
    FairleadError,
    InvalidRequest,
    Throttled,
    Unauthorized,
)
from fairlead.fleet.tenants.tenant_use import TenantUse
from fairlead.fleet.tokens.agent_keys import AgentKeys
from fairlead.fleet.tokens.enrolment_tokens import EnrolmentTokens
from fairlead.fleet.tokens.pending_enrolments import PENDING_LIMIT, TOKEN_LIMIT, PendingEnrolments
from fairlead.identity.agent_key import AgentKey, base64url, thumbprint
from fairlead.identity.credential import LIFETIME_LIMIT, CredentialIssuer, CredentialVerifier
from fairlead.identity.enrolment_token import ID_BYTES, SECRET_BYTES, EnrolmentToken, new_token, split_token
from fairlead.identity.proof import enrolment_statement, prove, renewal_statement
from fairlead.routing.agents.enrolment import Enrolment, EnrolmentRequest, EnrolmentStore
from fairlead.routing.tenant_limits import TenantLimits
from fairlead.store.embedded_valkey.server import EmbeddedValkey
from fairlead.store.pipeliner import Pipeliner
from fairlead.store.reply import integer, items

START = 1_900_000_000_000
"""A time far in the future, because the server removes keys by its own clock."""
LIFETIME = 3600
ISSUER = CredentialIssuer(b"i" * 32, "fleet-1")
VERIFIER = CredentialVerifier([ISSUER.public], "fleet-1")


class EnrolmentSite:
    """An `Enrolment` on a server, the clock that it reads, and what an administrator does."""

    def __init__(self, store: Pipeliner) -> None:
        self.now, self.store = START, store
        self.tokens, self.keys, self.pending = EnrolmentTokens(store), AgentKeys(store), PendingEnrolments(store)
        self.revoked: set[str] = set()
        self.enrolment = Enrolment(
            ISSUER,
            VERIFIER,
            EnrolmentStore(self.tokens, self.keys, self.pending),
            lambda: self.now,
            lambda: secrets.token_hex(8),
            LIFETIME,
            lambda thumbprint: thumbprint in self.revoked,
            TenantLimits(TenantUse(store)),
        )

    async def token(
        self, *, agents: str = "*", uses: int = 1, minutes: int = 60, rate: int = 0, approval: bool = False
    ) -> str:
        id, digest, text = new_token(os.urandom(ID_BYTES + SECRET_BYTES))
        expires = START + minutes * 60_000
        token = EnrolmentToken(id, digest, START, expires, agents, uses, rate=rate, approval=approval)
        await self.tokens.add(id, msgspec.json.encode(token), expires)
        return text

    async def decide(self, token: str, agent: str, key: AgentKey, *, approved: bool) -> bool:
        id, _ = split_token(token) or ("", "")
        return await self.pending.decide(agent, thumbprint(key.public), id, approved=approved)

    async def enrol(self, token: str, agent: str, key: AgentKey) -> str:
        return await self.enrolment.enrol(request(token, agent, key))

    async def refusal(self, call: Awaitable[str]) -> object:
        with pytest.raises(Unauthorized) as refused:
            await call
        return refused.value.details["reason"]


def request(token: str, agent: str, key: AgentKey) -> EnrolmentRequest:
    id, _ = split_token(token) or ("none", "")
    proof = prove(key, enrolment_statement(id, agent, key.public))
    return EnrolmentRequest(token, agent, base64url(key.public), proof)


def new_key() -> AgentKey:
    return AgentKey(os.urandom(32))


@pytest.fixture
async def site(own_valkey: EmbeddedValkey, connect: Callable[[str], Awaitable[Pipeliner]]) -> EnrolmentSite:
    return EnrolmentSite(await connect(own_valkey.url))


async def test_an_agent_enrols_and_its_credential_names_its_key(site: EnrolmentSite) -> None:
    key = new_key()
    credential = VERIFIER.verify(await site.enrol(await site.token(), "web-1", key), START // 1000)
    assert (credential.agent, credential.public) == ("web-1", key.public)
    assert credential.expires - credential.issued == LIFETIME
    assert await site.keys.bound("web-1") == thumbprint(key.public)


async def test_who_enrols_is_in_the_audit_log_or_gets_no_credential(site: EnrolmentSite, tmp_path: Path) -> None:
    site.enrolment.log = log = AuditLogWriter(tmp_path, "node-1", "no", 1 << 20)
    log.open()
    key, token = new_key(), await site.token()
    writer = asyncio.create_task(log.run())
    await site.enrol(token, "web-1", key)
    (line,) = read_lines(tmp_path)
    assert (line.subject, line.action, line.agent, line.outcome) == ("agent:web-1", "enrolAgent", "web-1", "allowed")
    assert line.detail == f"key {thumbprint(key.public)} by token {token.split('_')[2]}"
    log.close()
    with pytest.raises(AuditUnavailable):
        await site.enrol(token, "web-1", key)
    writer.cancel()
    await asyncio.gather(writer, return_exceptions=True)


async def test_an_agent_whose_answer_was_lost_repeats_its_enrolment(site: EnrolmentSite) -> None:
    key, token = new_key(), await site.token(uses=1)
    for _ in range(3):
        await site.enrol(token, "web-1", key)
    assert await site.refusal(site.enrol(token, "web-2", key)) == "used"
    assert await site.refusal(site.enrol(token, "web-1", new_key())) == "used"


async def test_agents_that_enrol_at_once_do_not_exceed_the_uses(site: EnrolmentSite) -> None:
    token = await site.token(uses=5)
    calls = (site.enrol(token, f"web-{n}", new_key()) for n in range(40))
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    refused = [one for one in outcomes if isinstance(one, Unauthorized)]
    assert len(refused) == 35
    assert {one.details["reason"] for one in refused} == {"used"}
    bound = [await site.keys.bound(f"web-{n}") for n in range(40)]
    assert sum(map(bool, bound)) == 5


async def test_another_key_cannot_take_an_id(site: EnrolmentSite) -> None:
    """Whoever steals a token that is still valid gets new ids at most, and no agent that exists."""
    token, key = await site.token(uses=10), new_key()
    credential = await site.enrol(token, "web-1", key)
    for _ in range(3):
        assert await site.refusal(site.enrol(token, "web-1", new_key())) == "key"
    assert await site.keys.bound("web-1") == thumbprint(key.public)
    await site.enrolment.renew(credential, prove(key, renewal_statement("web-1", credential)))


async def test_of_two_keys_that_take_an_id_at_once_one_gets_it(site: EnrolmentSite) -> None:
    token = await site.token(uses=50)
    calls = (site.enrol(token, "web-1", new_key()) for _ in range(20))
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert sum(isinstance(one, str) for one in outcomes) == 1
    assert sum(isinstance(one, Unauthorized) and one.details["reason"] == "key" for one in outcomes) == 19


async def test_a_stolen_token_is_limited(site: EnrolmentSite) -> None:
    token = await site.token(agents="web-*", uses=1, minutes=10)
    assert await site.refusal(site.enrol(token, "db-1", new_key())) == "agent"
    site.now = START + 10 * 60_000
    assert await site.refusal(site.enrol(token, "web-1", new_key())) == "expired"
    site.now = START
    split = split_token(token)
    assert split is not None
    assert await site.tokens.remove(split[0], "")
    assert await site.refusal(site.enrol(token, "web-1", new_key())) == "secret"


async def test_guesses_enrol_nobody_and_count_no_use(site: EnrolmentSite) -> None:
    token = await site.token(uses=1)
    wrong = (token[:-43] + "A" * 43, token.replace("enrol_", "enrol_0", 1), f"fl_enrol_{'0' * 12}_{'A' * 43}")
    for guess in (*wrong, "", "x" * 10_000):
        assert await site.refusal(site.enrol(guess, "web-1", new_key())) == "secret"
    assert await site.keys.bound("web-1") == ""
    await site.enrol(token, "web-1", new_key())


async def test_a_key_that_is_not_the_callers_is_not_bound(site: EnrolmentSite) -> None:
    """The victim's public key and credential are no secrets. Its key is needed for every request."""
    token, victim, attacker = await site.token(uses=9), new_key(), new_key()
    wanted = request(token, "web-2", attacker)
    stolen = EnrolmentRequest(token, "web-2", base64url(victim.public), wanted.proof)
    assert await site.refusal(site.enrolment.enrol(stolen)) == "proof"
    overheard = request(token, "web-1", victim)
    await site.enrolment.enrol(overheard)
    moved = EnrolmentRequest(token, "web-3", overheard.key, overheard.proof)
    assert await site.refusal(site.enrolment.enrol(moved)) == "proof"
    repeated = VERIFIER.verify(await site.enrolment.enrol(overheard), START // 1000)
    assert repeated.public == victim.public  # the repetition gives the attacker a credential for a key it does not have


async def test_a_renewal_needs_the_key_and_cannot_be_continued_by_who_overheard_it(site: EnrolmentSite) -> None:
    key = new_key()
    first = await site.enrol(await site.token(), "web-1", key)
    proof = prove(key, renewal_statement("web-1", first))
    assert (
        await site.refusal(site.enrolment.renew(first, prove(new_key(), renewal_statement("web-1", first)))) == "proof"
    )
    site.now += 1_800_000
    second = await site.enrolment.renew(first, proof)
    assert VERIFIER.verify(second, START // 1000 + 1_800).expires == START // 1000 + 1_800 + LIFETIME
    replayed = await site.enrolment.renew(first, proof)
    assert await site.refusal(site.enrolment.renew(replayed, proof)) == "proof"
    site.now = START + 1_000 * LIFETIME * 1000
    with pytest.raises(Unauthorized, match="has expired"):
        VERIFIER.verify(first, site.now // 1000)
    late = await site.enrolment.renew(first, proof)  # an agent that was away for long still has its key
    assert VERIFIER.verify(late, site.now // 1000).agent == "web-1"
    assert await site.keys.release("web-1", LIFETIME_LIMIT)
    assert await site.refusal(site.enrolment.renew(late, prove(key, renewal_statement("web-1", late)))) == "key"


async def test_an_id_that_is_released_belongs_to_the_next_key_and_no_more_to_the_last(site: EnrolmentSite) -> None:
    token, old, new = await site.token(uses=2), new_key(), new_key()
    credential = await site.enrol(token, "web-1", old)
    assert await site.keys.release("web-1", LIFETIME_LIMIT)
    assert not await site.keys.release("web-2", LIFETIME_LIMIT)
    proof = prove(old, renewal_statement("web-1", credential))
    assert await site.refusal(site.enrolment.renew(credential, proof)) == "key"
    await site.enrol(token, "web-1", new)
    assert await site.refusal(site.enrolment.renew(credential, proof)) == "key"


@pytest.mark.parametrize(("agent", "key"), [("web 1", "A" * 43), ("", "A" * 43), ("web-1", "A" * 42), ("web-1", "é")])
async def test_what_is_no_id_or_no_key_is_an_invalid_request(site: EnrolmentSite, agent: str, key: str) -> None:
    with pytest.raises(FairleadError) as refused:
        await site.enrolment.enrol(EnrolmentRequest(await site.token(), agent, key, ""))
    assert type(refused.value) is InvalidRequest


async def test_who_waits_is_let_in_by_the_approval_of_its_own_key(site: EnrolmentSite) -> None:
    token, key, other = await site.token(uses=3, approval=True), new_key(), new_key()
    for _ in range(2):
        with pytest.raises(ApprovalPending) as waits:
            await site.enrol(token, "web-1", key)
    assert waits.value.details["key"] == thumbprint(key.public)
    with pytest.raises(ApprovalPending):
        await site.enrol(token, "web-1", other)
    waiting = await site.pending.all(await redis_now(site), "")
    assert {(one.agent, one.thumbprint, one.state) for one in waiting} == {
        ("web-1", thumbprint(key.public), "pending"), ("web-1", thumbprint(other.public), "pending"),
    }  # fmt: skip
    assert await site.keys.bound("web-1") == ""
    assert await site.decide(token, "web-1", other, approved=True)
    with pytest.raises(ApprovalPending):
        await site.enrol(token, "web-1", key)
    await site.enrol(token, "web-1", other)
    assert await site.keys.bound("web-1") == thumbprint(other.public)
    await site.enrol(token, "web-1", other)  # a repetition asks nobody
    assert await site.decide(token, "web-1", key, approved=True)
    assert await site.refusal(site.enrol(token, "web-1", key)) == "key", "an approval takes no id from another key"


async def test_a_key_that_no_approval_could_let_in_is_refused_at_once(site: EnrolmentSite) -> None:
    token, key = await site.token(uses=9, approval=True), new_key()
    await site.enrol(await site.token(), "web-1", key)
    assert await site.refusal(site.enrol(token, "web-1", new_key())) == "key"
    stolen = new_key()
    site.revoked.add(thumbprint(stolen.public))
    assert await site.refusal(site.enrol(token, "web-2", stolen)) == "revoked"
    assert await site.pending.all(await redis_now(site), "") == []


async def test_an_approval_holds_for_the_token_that_was_shown(site: EnrolmentSite) -> None:
    """Another token may grant other labels, which give rights."""
    shown, other, key = await site.token(uses=9, approval=True), await site.token(uses=9, approval=True), new_key()
    with pytest.raises(ApprovalPending):
        await site.enrol(shown, "web-1", key)
    assert await site.decide(shown, "web-1", key, approved=True)
    with pytest.raises(ApprovalPending):
        await site.enrol(other, "web-1", key)
    assert not await site.decide(shown, "web-1", key, approved=True)
    assert await site.decide(other, "web-1", key, approved=True)
    await site.enrol(other, "web-1", key)


async def test_who_waits_with_a_revoked_token_waits_no_longer(site: EnrolmentSite) -> None:
    token, other = await site.token(uses=9, approval=True), await site.token(uses=9, approval=True)
    for name, with_token in (("web-1", token), ("web-2", token), ("db-1", other)):
        with pytest.raises(ApprovalPending):
            await site.enrol(with_token, name, new_key())
    await site.pending.remove_token((split_token(token) or ("",))[0], "")
    assert [one.agent for one in await site.pending.all(await redis_now(site), "")] == ["db-1"]


async def test_who_is_denied_is_refused_and_another_key_may_ask(site: EnrolmentSite) -> None:
    token, key = await site.token(uses=3, approval=True), new_key()
    with pytest.raises(ApprovalPending):
        await site.enrol(token, "web-1", key)
    assert await site.decide(token, "web-1", key, approved=False)
    for _ in range(2):
        with pytest.raises(EnrolmentDenied, match="an administrator has denied agent web-1"):
            await site.enrol(token, "web-1", key)
    with pytest.raises(ApprovalPending):
        await site.enrol(token, "web-1", new_key())
    assert not await site.decide(token, "web-2", key, approved=True)


async def test_a_stolen_token_asks_no_more_often_than_it_may_enrol(site: EnrolmentSite) -> None:
    few, slow = await site.token(uses=2, approval=True), await site.token(uses=100, rate=2, approval=True)
    for token in (few, slow):
        for n in range(2):
            with pytest.raises(ApprovalPending):
                await site.enrol(token, f"{token[9:13]}-{n}", new_key())
    assert await site.refusal(site.enrol(few, "few-2", new_key())) == "used"
    with pytest.raises(Throttled, match="enrols 2 agents a minute"):
        await site.enrol(slow, "slow-2", new_key())
    assert len(await site.pending.all(await redis_now(site), "")) == 4


async def test_a_full_list_is_told_and_denials_make_room(site: EnrolmentSite) -> None:
    """One token takes half of the list at most, however many agents it may enrol."""
    stolen, token, third = [await site.token(uses=2 * PENDING_LIMIT, approval=True) for _ in range(3)]
    keys = [new_key() for _ in range(TOKEN_LIMIT + 100)]

    async def all_ask(with_token: str) -> list[type]:
        calls = (site.enrol(with_token, f"{with_token[9:13]}-{n}", key) for n, key in enumerate(keys))
        return [type(one) for one in await asyncio.gather(*calls, return_exceptions=True)]

    for asks in (stolen, token):
        outcomes = await all_ask(asks)
        assert (outcomes.count(ApprovalPending), outcomes.count(Throttled)) == (TOKEN_LIMIT, 100)
    late = new_key()
    with pytest.raises(Throttled, match="too many agents wait for an approval"):
        await site.enrol(third, "late", late)
    shown = (await site.pending.all(await redis_now(site), ""))[7]
    assert await site.pending.decide(shown.agent, shown.thumbprint, shown.token, approved=False)
    with pytest.raises(ApprovalPending):
        await site.enrol(third, "late", late)
    assert len(await site.pending.all(await redis_now(site), "")) == PENDING_LIMIT
    await site.pending.remove_token((split_token(stolen) or ("",))[0], "")
    assert len(await site.pending.all(await redis_now(site), "")) < TOKEN_LIMIT + 2, "revocation makes room at once"


async def redis_now(site: EnrolmentSite) -> int:
    seconds, _ = items(await site.store.submit("TIME"))
    return integer(seconds) * 1000


async def test_a_token_enrols_at_its_rate(site: EnrolmentSite) -> None:
    """A minute's worth at once, then one after the other; a repetition costs nothing."""
    token = await site.token(uses=50, rate=3)
    keys = [new_key() for _ in range(3)]
    for n, key in enumerate(keys):
        await site.enrol(token, f"web-{n}", key)
    with pytest.raises(Throttled) as throttled:
        await site.enrol(token, "web-9", new_key())
    assert 15 <= cast("int", throttled.value.details["retry_after"]) <= 20
    assert await site.keys.bound("web-9") == "", "a refused enrolment binds no key"
    for n, key in enumerate(keys):
        await site.enrol(token, f"web-{n}", key)
    split = split_token(token)
    assert split is not None
    stored = await site.tokens.read(split[0])
    assert stored is not None
    assert stored.used == 3, "the bucket is no agent"


async def test_agents_that_enrol_at_once_do_not_exceed_the_rate(site: EnrolmentSite) -> None:
    token = await site.token(uses=100, rate=5)
    outcomes = await asyncio.gather(
        *(site.enrol(token, f"web-{n}", new_key()) for n in range(40)), return_exceptions=True
    )
    assert sum(isinstance(one, Throttled) for one in outcomes) == 35
    assert sum(isinstance(one, str) for one in outcomes) == 5
