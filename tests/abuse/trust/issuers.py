"""Attacks with JWTs on a node that trusts an issuer for links. The issuer is in this process: it signs what a thief
would have, publishes its keys, rotates them and goes away."""

from __future__ import annotations

import asyncio
import itertools
import secrets
import time
import tomllib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from fairlead.agent.settings.token_file import TokenFile
from fairlead.oidc.issuer_keys import MIN_INTERVAL
from fairlead.wire.messages import Hello

from abuse.attempts import Attempt, Site, at_rate, hello_outcome, sent
from abuse.http_attacks import OTHERS, SOURCE, AttackScale
from abuse.trust.honest import Honest
from abuse.trust.stages import LINK_ISSUERS
from abuse.victim import status_of, upgrade_request
from support.oidc.agent_jwts import agent_claims, agent_jwt, write_link_issuers
from support.oidc.agent_jwts import forged_jwts as forgeries
from support.oidc.issuer import Issuer, new_key, sign
from support.waiting import until

VICTIM = "web-1"
STRANGERS = 16
"""Different ids of unknown keys: each is a reason to look for new keys."""


@contextmanager
def trusted_issuer(site: Site) -> Iterator[Issuer]:
    """At the address that the node's file names."""
    url = tomllib.loads((Path(site.folder) / LINK_ISSUERS).read_text())["issuers"]["cluster"]["url"]
    issuer = Issuer(int(url.rpartition(":")[2]))
    try:
        yield issuer
    finally:
        issuer.close()


async def accepted(site: Site, jwt: str) -> str:
    """The status of an upgrade with this JWT from an address that has done nothing wrong, as soon as it is 101."""
    found = {"status": 0}

    async def opened() -> bool:
        found["status"] = await status_of(site.link, upgrade_request("127.0.0.1", jwt), OTHERS)
        return found["status"] == 101

    try:
        await until(opened, MIN_INTERVAL * 6)
    except TimeoutError:
        pass
    return str(found["status"])


async def serve_with_jwt(honest: Honest, issuer: Issuer, agent: str = VICTIM) -> None:
    """A real agent with a JWT; the node fetches the issuer's keys for it."""
    file = honest.folder / f"{agent}.jwt"
    file.touch(0o600)
    file.write_text(agent_jwt(issuer, agent))
    await accepted(honest.site, agent_jwt(issuer, "the-first"))
    await honest.serve(agent, TokenFile(file))


async def forged_jwts(site: Site, scale: AttackScale) -> Counter[str]:
    """Upgrades with JWTs that are forged in 20 ways, and hellos of an agent with a JWT of its own and another's id."""
    tried: Counter[str] = Counter()
    async with Honest(site) as honest:
        with trusted_issuer(site) as issuer:
            await serve_with_jwt(honest, issuer)
            forged = [(kind, upgrade_request("127.0.0.1", text)) for kind, text, _ in forgeries(issuer, VICTIM)]
            hello = Hello(agent=VICTIM, boot=secrets.token_hex(8), conn=1)
            attempts: list[tuple[str, Attempt]] = [(kind, sent(site.link, request)) for kind, request in forged]
            attempts.append(("another's id", partial(hello_outcome, site, hello, agent_jwt(issuer, "attacker"))))
            await at_rate(scale, tried, itertools.cycle(attempts))
            right = upgrade_request("127.0.0.1", agent_jwt(issuer, "web-2"))
            tried[f"then another agent: {await status_of(site.link, right, SOURCE)}"] += 1
            tried[f"then the real agent: {await honest.stayed(VICTIM)}"] += 1
    return tried


async def rotated_issuer_keys(site: Site, scale: AttackScale) -> Counter[str]:
    """JWTs of unknown keys all the time, each a reason to fetch the issuer's keys, while the issuer rotates its key,
    goes away, comes back and has its first key refused."""
    tried: Counter[str] = Counter()
    async with Honest(site) as honest:
        with trusted_issuer(site) as issuer:
            await serve_with_jwt(honest, issuer)
            first, since = issuer.key, issuer.asked["/keys"]
            strangers = [new_key(f"unknown-{n}", "EC") for n in range(STRANGERS)]
            unknown = [sign(key, agent_claims(issuer, VICTIM), "ES256") for key in strangers]
            attempts = [("unknown key", sent(site.link, upgrade_request("127.0.0.1", one))) for one in unknown]

            async def rotate() -> None:
                await asyncio.sleep(scale.seconds / 4)
                issuer.rotate("second", keep=True)
                tried[f"then a key that was rotated in: {await accepted(site, agent_jwt(issuer, 'web-2'))}"] += 1
                issuer.away = True
                await asyncio.sleep(scale.seconds / 4)
                tried[f"then the issuer away: {await accepted(site, agent_jwt(issuer, 'web-3'))}"] += 1
                issuer.away = False

            began = time.monotonic()
            async with asyncio.TaskGroup() as group:
                group.create_task(at_rate(scale, tried, itertools.cycle(attempts)))
                group.create_task(rotate())
            fetched, seconds = issuer.asked["/keys"] - since, time.monotonic() - began
            tried["keys fetched"] = fetched
            assert fetched <= seconds / MIN_INTERVAL + 2, f"{fetched} times in {seconds:.0f} s"
            tried[f"then the real agent: {await honest.stayed(VICTIM)}"] += 1
            await _refuse(honest, issuer, first.kid or "", tried)
    return tried


async def _refuse(honest: Honest, issuer: Issuer, kid: str, tried: Counter[str]) -> None:
    """Refuse a key: its links are closed and open no more."""
    old = sign(issuer.published[0], agent_claims(issuer, "web-9"))
    write_link_issuers(issuer.url, honest.folder / LINK_ISSUERS, refused=f'"{kid}"')

    async def closed() -> bool:
        return await honest.stayed(VICTIM) != "has stayed"

    await until(closed)
    tried["then its link: closed"] += 1
    tried[f"then a refused key: {await status_of(honest.site.link, upgrade_request('127.0.0.1', old), OTHERS)}"] += 1
