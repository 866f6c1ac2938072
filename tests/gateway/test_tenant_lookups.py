"""A command, run, token or agent of another tenant is looked up exactly as one that never was: with the same calls of
Redis, so that an answer takes as long. Times themselves would depend on a quiet machine; the calls do not."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from redis.asyncio import Redis

from fairlead.store.embedded_valkey.server import EmbeddedValkey
from fairlead.wire.messages import End

from support.fixtures import RedisOf
from support.gateway.identity_site import make_issuer_key
from support.gateway.platform_api import MakeGatewayApi
from support.gateway.process import MakeGateway
from support.gateway.tenant_fleets import ATTACKER, VICTIM, TenantFleet, fill, found_fleet, write_tenants
from support.waiting import until

NEVER = {"command": "0192f1b0-0000-7000-8000-0000000000aa", "run": "0192f1b0-0000-7000-8000-0000000000bb",
         "token": "0123456789ab", "agent": "never-was"}  # fmt: skip
REQUESTS = (
    ("command", "GET", "/v1/commands/{}"), ("command", "GET", "/v1/commands/{}/results"),
    ("command", "DELETE", "/v1/commands/{}"), ("command", "POST", "/v1/commands/{}/input?n=0"),
    ("run", "GET", "/v1/runs/{}"), ("run", "GET", "/v1/runs/{}/results"), ("run", "DELETE", "/v1/runs/{}"),
    ("run", "POST", "/v1/runs/{}/pause"), ("run", "POST", "/v1/runs/{}/resume"),
    ("token", "DELETE", "/v1/tokens/{}"), ("token", "DELETE", "/v1/enrolment-tokens/{}"),
    ("agent", "GET", "/v1/agents/{}"), ("agent", "GET", "/v1/agents/{}/link"), ("agent", "DELETE", "/v1/agents/{}"),
    ("agent", "DELETE", "/v1/agents/{}/key"), ("agent", "POST", "/v1/agents/{}/key/revocation"),
)  # fmt: skip


class CallLog:
    """What a server executes, as MONITOR tells it."""

    def __init__(self, client: Redis) -> None:
        self._client = client

    async def calls_with(self, fleet: TenantFleet, method: str, path: str, id: str, name: str) -> tuple[int, list[str]]:
        """The status of a request for `id`, and the calls that named it as `name` meanwhile, without the name."""
        calls: list[str] = []
        async with self._client.monitor() as monitor:
            answer = await fleet.boss.http.request(method, path.format(id))
            mark = secrets.token_hex(8)
            await self._client.echo(mark)
            while mark not in (call := (await monitor.next_command())["command"]):
                if name in call:
                    words = call.split()
                    calls.append(f"{words[0].upper()} {len(words)}")
        return answer.status_code, calls


@pytest.fixture
async def log(own_valkey: EmbeddedValkey) -> AsyncIterator[CallLog]:
    async with Redis(unix_socket_path=own_valkey.url.removeprefix("unix://"), decode_responses=True) as client:
        yield CallLog(client)


async def test_what_another_tenant_has_is_looked_up_like_what_never_was(
    tmp_path: Path, own_valkey: EmbeddedValkey, make_gateway: MakeGateway, redis_of: RedisOf, api_of: MakeGatewayApi,
    log: CallLog, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    flags = ("--roles", str(write_tenants(tmp_path / "roles.yaml")), "--issuer-key", str(make_issuer_key(tmp_path)))
    node, store = make_gateway(own_valkey.url, *flags), await redis_of(own_valkey)
    attacker, victim = [await found_fleet(tenant, node, store, api_of) for tenant in (ATTACKER, VICTIM)]
    await fill(victim)
    target = victim.commands[-1]
    await victim.agents["only-here"].send(End(id=target, total=0))

    async def run_ended() -> bool:
        return bool((await victim.boss.http.get(f"/v1/runs/{victim.runs[0]}")).json()["ended"])

    await until(run_ended)
    await victim.boss.get(victim.commands[0])  # this node has it in its memory
    compared = 0
    for kind, method, path in REQUESTS:
        enrolment = "enrolment" in path
        theirs = {"command": victim.commands[0], "run": victim.runs[0], "agent": "only-here",
                  "token": victim.enrolment_tokens[0] if enrolment else victim.tokens[0]}[kind]  # fmt: skip
        for _ in range(2):  # also once something of the first attempt could be remembered
            found = await log.calls_with(attacker, method, path, theirs, _named(kind, theirs))
            never = await log.calls_with(attacker, method, path, NEVER[kind], _named(kind, NEVER[kind]))
            assert found == never, (method, path)
            assert found[0] == 404, (method, path)
            assert found[1], (method, path)
            compared += 1
    with capsys.disabled():
        print(f"\n{compared} pairs of look-ups are the same")
    for fleet in (attacker, victim):
        await fleet.site.aclose()


def _named(kind: str, id: str) -> str:
    """How the attacker's request names it in Redis."""
    return f"/{ATTACKER}/{id}" if kind == "agent" else id
