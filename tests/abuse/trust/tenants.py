"""One tenant against another: every operation of the OpenAPI document, with every id that the other one has."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from functools import partial
from pathlib import Path

from abuse.attempts import Attempt, Site, at_rate
from abuse.http_attacks import AttackScale
from abuse.trust.honest import Honest
from support.gateway.platform_api import GatewayApi
from support.gateway.process import GatewayProcess
from support.gateway.tenant_attacks import Attack, play_attack, tenant_attacks
from support.gateway.tenant_fleets import ATTACKER, VICTIM, TenantFleet, fill, found_fleet

RATE = 50.0
"""Attacks a second: each is two requests with all that the API can answer."""


class RunningNode(GatewayProcess):
    """The node that `run.py` has started."""

    def __init__(self, site: Site) -> None:
        super().__init__(Path(site.folder), site.redis)
        self.link, self.api = f"ws://127.0.0.1:{site.link}", f"http://127.0.0.1:{site.api}"


async def foreign_tenants(site: Site, scale: AttackScale) -> Counter[str]:
    """Each attack has a twin with an id that never was, and both must be answered alike. The short form plays a share
    of them, spread over all operations."""
    tried: Counter[str] = Counter()
    apis: list[GatewayApi] = []

    def api_of(gateway: GatewayProcess) -> GatewayApi:
        apis.append(GatewayApi(gateway))
        return apis[-1]

    async with Honest(site) as honest:
        node = RunningNode(site)
        attacker, victim = [await found_fleet(name, node, honest.store, api_of) for name in (ATTACKER, VICTIM)]
        await fill(victim)
        await attacker.link("web-1")
        document = (await attacker.boss.http.get("/v1/openapi.json")).json()
        events = [json.loads(line) for line in (await victim.boss.http.get("/v1/events")).text.splitlines()]
        before, made = await victim.state(), list(tenant_attacks(document, victim, events[-1]["offset"]))
        chosen = made[:: max(round(1 / scale.share / 2), 1)]

        alone = asyncio.Lock()

        async def play(name: str, attack: Attack) -> str:
            """One after the other: an attack changes what the attacker's own tenant has, and its twin shows it."""
            async with alone:
                try:
                    await play_attack(attacker, victim, name, attack)
                except AssertionError as e:
                    return f"differs ({str(e)[:300]})"
                return "same as nothing"

        attempts: list[tuple[str, Attempt]] = [(name, partial(play, name, attack)) for name, attack in chosen]
        await at_rate(scale, tried, iter(attempts), RATE)
        changed = await victim.state() != before
        tried[f"then the tenant: {'changed' if changed else 'unchanged'}"] += 1
        await _close(attacker, victim, apis)
    return tried


async def _close(attacker: TenantFleet, victim: TenantFleet, apis: list[GatewayApi]) -> None:
    for fleet in (attacker, victim):
        await fleet.site.aclose()
    for api in apis:
        await api.http.aclose()
