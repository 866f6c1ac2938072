"""Attacks on the ids of agents, by an agent that has enrolled and by whoever has stolen a token, a credential or what
was overheard. The key of an agent is never stolen: whoever has it is that agent."""

from __future__ import annotations

import itertools
import os
import secrets
import time
from collections import Counter
from functools import partial
from http import HTTPStatus

import msgspec

from fairlead.identity.agent_key import AgentKey
from fairlead.identity.enrolment_token import ID_BYTES, SECRET_BYTES, EnrolmentToken, new_token
from fairlead.identity.proof import link_statement, prove, renewal_statement
from fairlead.wire.messages import Hello

from abuse.attempts import Attempt, Site, at_rate, hello_outcome, sent
from abuse.enrolment_attacks import enrolment
from abuse.http_attacks import SOURCE, AttackScale
from abuse.trust.honest import Honest
from abuse.victim import AGENT_TOKEN, status_of

VICTIM, ATTACKER = "victim", "attacker"


def hello(agent: str, credential: str, key: AgentKey | None, nonce: str, proof: str = "") -> Hello:
    """Of an agent that proves, for this nonce, to have the key; or with this proof."""
    if key is not None:
        proof = prove(key, link_statement(nonce, agent, credential))
    return Hello(agent=agent, boot=secrets.token_hex(8), conn=1, proof=proof)


async def taken_ids(site: Site, scale: AttackScale) -> Counter[str]:
    """Hellos with the id of an agent that has enrolled: with the shared token, with a credential and key of one's own,
    and with the victim's credential and another key, a proof that was overheard, or none."""
    tried: Counter[str] = Counter()
    async with Honest(site) as honest:
        victim_key, stolen = await honest.serve_enrolled(VICTIM)
        key, own = await honest.enrolled(ATTACKER)
        overheard = prove(victim_key, link_statement("the-nonce-of-another-link", VICTIM, stolen))
        kinds = {
            "shared token": (AGENT_TOKEN, None, ""),
            "own credential": (own, key, ""),
            "stolen credential, own key": (stolen, key, ""),
            "stolen credential, overheard proof": (stolen, None, overheard),
            "stolen credential, no proof": (stolen, None, ""),
        }

        def attempt(credential: str, with_key: AgentKey | None, proof: str) -> Attempt:
            made = partial(hello, VICTIM, credential, with_key, proof=proof)
            return partial(hello_outcome, site, made, credential)

        await at_rate(scale, tried, itertools.cycle([(kind, attempt(*has)) for kind, has in kinds.items()]))
        tried[f"then its own id: {await hello_outcome(site, partial(hello, ATTACKER, own, key), own)}"] += 1
        tried[f"then the real agent: {await honest.stayed(VICTIM)}"] += 1
    return tried


async def stolen_enrolment_tokens(site: Site, scale: AttackScale) -> Counter[str]:
    """Enrolments with tokens that are used up, expired, revoked, for other ids, and for an id that another key has."""
    tried: Counter[str] = Counter()
    async with Honest(site) as honest:
        await honest.serve_enrolled(VICTIM)
        used, revoked = await honest.enrolment_token(uses=1), await honest.enrolment_token()
        assert await status_of(site.link, enrolment(used, "first"), SOURCE) == HTTPStatus.CREATED
        gone = await honest.http.delete(f"/v1/enrolment-tokens/{revoked.split('_')[2]}")
        assert gone.status_code == HTTPStatus.NO_CONTENT, gone.text
        valid, web = await honest.enrolment_token(), await honest.enrolment_token("web-*")
        kinds = {
            "used up": (used, "second"),
            "expired": (await _expired(honest), "late"),
            "revoked": (revoked, "revoked"),
            "for other ids": (web, "db-1"),
            "an id that has a key": (valid, VICTIM),
        }
        attempts = [(kind, sent(site.link, enrolment(*chosen))) for kind, chosen in kinds.items()]
        await at_rate(scale, tried, itertools.cycle(attempts))
        tried[f"then right: {await status_of(site.link, enrolment(web, 'web-1'), SOURCE)}"] += 1
        tried[f"then the real agent: {await honest.stayed(VICTIM)}"] += 1
    return tried


async def _expired(honest: Honest) -> str:
    """A token that has expired a minute ago and is still in Redis."""
    now = int(time.time() * 1000)
    id, digest, text = new_token(os.urandom(ID_BYTES + SECRET_BYTES))
    token = EnrolmentToken(id, digest, now - 120_000, now - 60_000, "*", 100)
    await honest.tokens.add(id, msgspec.json.encode(token), now + 600_000)
    return text


async def replayed_renewals(site: Site, scale: AttackScale) -> Counter[str]:
    """A renewal that was overheard, repeated: its answer is a credential again, which opens no link without the key.
    With the same proof for the next credential, and with another key, there is no answer."""
    tried: Counter[str] = Counter()
    async with Honest(site) as honest:
        victim_key, stolen = await honest.serve_enrolled(VICTIM)
        overheard = {"credential": stolen, "proof": prove(victim_key, renewal_statement(VICTIM, stolen))}
        own = AgentKey(os.urandom(32))

        async def renew(order: dict[str, str]) -> tuple[str, str]:
            """The status, and the credential if there is one."""
            answer = await honest.public.post("/v1/renewals", json=order)
            return str(answer.status_code), str(answer.json().get("credential", ""))

        async def link_with_the_answer() -> str:
            status, credential = await renew(overheard)
            if not credential:
                return status
            return await hello_outcome(site, partial(hello, VICTIM, credential, own), credential)

        async def continue_with_the_answer() -> str:
            status, credential = await renew(overheard)
            return (await renew({**overheard, "credential": credential}))[0] if credential else status

        async def with_another_key() -> str:
            return (await renew({"credential": stolen, "proof": prove(own, renewal_statement(VICTIM, stolen))}))[0]

        kinds: list[tuple[str, Attempt]] = [
            ("repeated, then a link", link_with_the_answer),
            ("repeated, then the next renewal", continue_with_the_answer),
            ("another key", with_another_key),
        ]
        await at_rate(scale, tried, itertools.cycle(kinds))
        tried[f"then the real agent: {await honest.stayed(VICTIM)}"] += 1
    return tried
