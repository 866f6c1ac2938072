"""Client certificates in the header of a proxy, forged by whoever is not one of the listed proxies."""

from __future__ import annotations

import itertools
from collections import Counter

from abuse.attempts import Site, at_rate, sent
from abuse.http_attacks import AttackScale
from abuse.trust.honest import Honest
from abuse.trust.stages import PROXY
from abuse.victim import AGENT_TOKEN, status_of, upgrade_request
from support.carrier.authority import Authority
from support.gateway.forwarded_headers import nginx

VICTIM = "victim"


async def forged_proxy_headers(site: Site, scale: AttackScale) -> Counter[str]:
    """The header with the victim's certificate from an address that is not listed: alone, with the shared token, and
    with the headers in which proxies say for whom they speak."""
    tried: Counter[str] = Counter()
    async with Honest(site) as honest:
        header = nginx(Authority(honest.folder).issue(VICTIM)[0])
        await honest.serve(VICTIM)
        more = {
            "alone": {},
            "with X-Forwarded-For": {"x_forwarded_for": PROXY},
            "with X-Forwarded-For of two": {"x_forwarded_for": f"203.0.113.7, {PROXY}"},
            "with Forwarded": {"forwarded": f"for={PROXY};proto=https"},
            "with X-Real-IP": {"x_real_ip": PROXY},
        }
        attempts = []
        for what, others in more.items():
            for name, token in (("", ""), (", shared token", AGENT_TOKEN)):
                request = upgrade_request("127.0.0.1", token, **header, **others)
                attempts.append((what + name, sent(site.link, request)))
        await at_rate(scale, tried, itertools.cycle(attempts))
        # From the proxy the same header is an agent's identity.
        behind = upgrade_request("127.0.0.1", "", **header)
        tried[f"then from the proxy: {await status_of(site.link, behind, PROXY)}"] += 1
        tried[f"then the real agent: {await honest.stayed(VICTIM)}"] += 1
    return tried
