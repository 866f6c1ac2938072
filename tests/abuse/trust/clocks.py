"""A node whose clock is ten minutes wrong, and callers whose clocks are: what has expired opens nothing, what is not
yet valid neither, and whoever is honest notices nothing."""

from __future__ import annotations

import itertools
import os
import secrets
import time
from collections import Counter
from functools import partial
from pathlib import Path

import msgspec

from fairlead.identity.agent_key import AgentKey, seed_of_pem
from fairlead.identity.credential import CredentialIssuer
from fairlead.identity.enrolment_token import ID_BYTES, SECRET_BYTES, EnrolmentToken, new_token
from fairlead.identity.proof import link_statement, prove
from fairlead.signing.keys import generate
from fairlead.wire.messages import Hello

from abuse.attempts import Attempt, Site, at_rate, hello_outcome, sent
from abuse.enrolment_attacks import enrolment
from abuse.http_attacks import OTHERS, AttackScale
from abuse.trust.honest import Honest
from abuse.trust.issuers import accepted, trusted_issuer
from abuse.trust.siege import AGENT, Siege, outcome, pinned_agent
from abuse.victim import status_of, upgrade_request
from support.oidc.agent_jwts import agent_jwt
from support.oidc.issuer import Issuer
from support.waiting import until

MINUTES = 60
TEN_MINUTES = 600


async def clock_behind(site: Site, scale: AttackScale) -> Counter[str]:
    """A node ten minutes behind, to which everything that has expired meanwhile would still be valid."""
    return await _wrong_clock(site, scale)


async def clock_ahead(site: Site, scale: AttackScale) -> Counter[str]:
    """A node ten minutes ahead, to which everything that is not valid yet would be."""
    return await _wrong_clock(site, scale)


async def _wrong_clock(site: Site, scale: AttackScale) -> Counter[str]:
    tried: Counter[str] = Counter()
    signer = generate()
    async with Honest(site) as honest, pinned_agent(site, honest.link, signer) as agent:
        with trusted_issuer(site) as issuer:
            await accepted(site, agent_jwt(issuer, "the-first"))
            await until(lambda: honest.watch(AGENT))
            siege = Siege(honest, agent, signer)
            attempts = [*await _expired(site, honest, issuer), *_signed_by_wrong_clocks(siege)]
            await at_rate(scale, tried, itertools.cycle(attempts), rate=100.0)
            right = enrolment(await honest.enrolment_token(), "in-time")
            tried[f"then enrolled: {await status_of(site.link, right, OTHERS)}"] += 1
            tried[f"then with a JWT: {await accepted(site, agent_jwt(issuer, 'in-time-2'))}"] += 1
            tried[f"then signed: {await siege.sign_and_run()}"] += 1
            if agent.marks != ["signed"]:
                tried["at the agent: has run"] = len(agent.marks)
    return tried


async def _expired(site: Site, honest: Honest, issuer: Issuer) -> list[tuple[str, Attempt]]:
    """What the clocks of issuer and Redis say is over, or not valid yet."""
    now = int(time.time())
    id, digest, text = new_token(os.urandom(ID_BYTES + SECRET_BYTES))
    token = EnrolmentToken(id, digest, (now - TEN_MINUTES) * 1000, (now - 3 * MINUTES) * 1000, "*", 100)
    await honest.tokens.add(id, msgspec.json.encode(token), (now + TEN_MINUTES) * 1000)
    seed, key = seed_of_pem((Path(site.folder) / "issuer.pem").read_bytes(), "issuer.pem"), AgentKey(os.urandom(32))
    credentials = CredentialIssuer(seed, "fairlead")
    stolen = {
        "credential that has expired": credentials.issue("a", "old", key.public, now - TEN_MINUTES, TEN_MINUTES // 2),
        "credential that is not valid yet": credentials.issue("b", "new", key.public, now + TEN_MINUTES // 2, 3600),
    }

    def hello(agent: str, credential: str, nonce: str) -> Hello:
        proof = prove(key, link_statement(nonce, agent, credential))
        return Hello(agent=agent, boot=secrets.token_hex(8), conn=1, proof=proof)

    jwts = {
        "JWT that has expired": agent_jwt(issuer, iat=now - TEN_MINUTES, exp=now - TEN_MINUTES // 2),
        "JWT that is not valid yet": agent_jwt(issuer, nbf=now + TEN_MINUTES // 2),
        "JWT of an issuer ten minutes ahead": agent_jwt(issuer, iat=now + TEN_MINUTES, exp=now + 2 * TEN_MINUTES),
    }
    attempts: list[tuple[str, Attempt]] = [
        (kind, sent(site.link, upgrade_request("127.0.0.1", jwt))) for kind, jwt in jwts.items()
    ]
    for (kind, credential), agent in zip(stolen.items(), ("old", "new"), strict=True):
        attempts.append((kind, partial(hello_outcome, site, partial(hello, agent, credential), credential)))
    return [*attempts, ("enrolment token that has expired", sent(site.link, enrolment(text, "late")))]


def _signed_by_wrong_clocks(siege: Siege) -> list[tuple[str, Attempt]]:
    async def attempt(seconds: int) -> str:
        issued = int((time.time() + seconds) * 1000)
        return await outcome(siege.honest.http, siege.body("forged", issued=issued))

    return [("signed ten minutes ahead", partial(attempt, TEN_MINUTES)),
            ("signed ten minutes behind", partial(attempt, -TEN_MINUTES))]  # fmt: skip
