"""A node of somebody else's in the fleet, and whoever writes to the bus: agents that pin a key run nothing for them,
and the other nodes go on.

The malicious node is a real one with tokens of its own on the same Redis, as an attacker starts it who has captured a
node or the password of Redis.
"""

from __future__ import annotations

import asyncio
import base64
import os
import random
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from fairlead.agent import Agent, Command
from fairlead.agent.verification.trusted_keys import TrustedKeys
from fairlead.bus import doorbell
from fairlead.bus.inbox import inbox_key
from fairlead.fleet import schema
from fairlead.signing.keys import generate
from fairlead.store.embedded_valkey.server import EmbeddedValkey
from fairlead.store.reply import text

from support.fixtures import RedisOf
from support.gateway.platform_api import GatewayApi, MakeGatewayApi
from support.gateway.process import GatewayProcess, MakeGateway
from support.plain_http import plain_client
from support.signing import signed
from support.waiting import until

AGENT = "pinned-and-besieged"
KEY, OTHER = generate(), generate()
TOKEN = "the-token-of-an-attacker"
ROUNDS = 10
FAR_MS = 1 << 52
"""A time that does not come."""


class Siege:
    """An honest node with an agent that pins a key, which counts what it has run."""

    def __init__(self, node: GatewayProcess, api: GatewayApi, folder: Path) -> None:
        self.node, self.api, self.ran = node, api, list[str]()
        self.agent = Agent(
            node.link, AGENT, "development-agent-token", journal=folder, trusted_keys=TrustedKeys([KEY.public])
        )

        @self.agent.command("work")
        async def work(command: Command, target: str = "") -> None:
            self.ran.append(command.id)

    async def online(self) -> bool:
        answer = await self.api.http.get(f"/v1/agents/{AGENT}")
        return bool(answer.status_code == 200 and answer.json()["state"] == "online")

    def body(
        self, payload: bytes = b"{}", *, key: object = KEY, agent: str = AGENT, **more: object
    ) -> dict[str, object]:
        cmd = signed(key, "work", payload, agent=agent, **more)  # type: ignore[arg-type]
        return {
            "agent": AGENT, "method": "work", "id": cmd.id, "payload": msgspec.Raw(payload), "deadline": 30,
            "signature": base64.b64encode(cmd.sig).decode(),
        }  # fmt: skip

    async def honest(self) -> str:
        """Post a command that is signed as it has to be, and wait until it has run."""
        body = self.body()
        answer = await self.api.http.post("/v1/commands", content=msgspec.json.encode(body))
        assert answer.status_code == 202, answer.text
        id = str(answer.json()["id"])
        assert (await self.api.end(id))["state"] == "ok"
        return id


@pytest.fixture
async def siege(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, api_of: MakeGatewayApi, tmp_path: Path
) -> AsyncIterator[Siege]:
    node = make_gateway(own_valkey.url, name="honest")
    made = Siege(node, api_of(node), tmp_path / "journal")
    serving = asyncio.create_task(made.agent.serve())
    await until(made.online)
    yield made
    made.agent.stop()
    await serving


async def test_a_malicious_node_makes_a_pinned_agent_run_nothing(
    siege: Siege, own_valkey: EmbeddedValkey, make_gateway: MakeGateway
) -> None:
    rogue = make_gateway(own_valkey.url, name="rogue", within=("env", f"FAIRLEAD_PLATFORM_TOKEN={TOKEN}"))
    good = await siege.honest()
    replayed = siege.body()
    first = await siege.api.http.post("/v1/commands", content=msgspec.json.encode(replayed))
    assert (await siege.api.end(str(first.json()["id"])))["state"] == "ok"
    codes: list[str] = []
    async with plain_client(base_url=rogue.api, headers={"authorization": f"Bearer {TOKEN}"}, timeout=60) as api:
        assert (await api.get(f"/v1/agents/{AGENT}")).json()["state"] == "online", "the rogue is in the fleet"
        for n in range(ROUNDS):
            stolen = siege.body(b'{"target":"a"}')
            bodies: list[dict[str, object]] = [
                {"agent": AGENT, "method": "work"},
                siege.body(key=OTHER),
                siege.body(agent=f"{AGENT}-{n}"),
                {**stolen, "payload": {"target": "everything"}},
                {**stolen, "id": siege.body()["id"]},
                {**stolen, "method": "exec"},
                siege.body(valid=1, issued=1_700_000_000_000),
            ]
            for body in bodies:
                answer = await api.post("/v1/commands", content=msgspec.json.encode(body))
                if answer.status_code == 422:  # the id is of another agent: its own API does not take it
                    codes.append("refused by the API")
                    continue
                assert answer.status_code == 202, answer.text
                codes.append(await _end(api, str(answer.json()["id"])))
    assert len(codes) == 7 * ROUNDS
    assert set(codes) <= {
        "signature_missing", "signature_key_unknown", "signature_invalid", "signature_expired", "signature_replayed",
        "refused by the API",
    }  # fmt: skip
    assert codes.count("signature_missing") == ROUNDS
    last = await siege.honest()
    assert siege.ran == [good, str(replayed["id"]), last]


async def _end(api: object, command: str) -> str:
    found: dict[str, str] = {}

    async def over() -> bool:
        answer = (await api.get(f"/v1/commands/{command}")).json()  # type: ignore[attr-defined]
        found["code"] = (((answer["targets"][0].get("end") or {}).get("error")) or {}).get("code", answer["state"])
        return answer["state"] not in ("queued", "sent", "running")

    await until(over)
    return found["code"]


async def test_forged_doorbells_and_garbage_run_nothing_and_end_no_node(
    siege: Siege, own_valkey: EmbeddedValkey, redis_of: RedisOf
) -> None:
    """Each kind of doorbell, for commands that do not exist, for one that Redis says are others' and for one that has
    run; and octets that are none."""
    store, rng = await redis_of(own_valkey), random.Random(1)
    done = await siege.honest()
    row = await siege.api.agent(AGENT)
    lease = text(await store.submit("HGET", schema.agent_key(AGENT), "lease"))
    gen = int(text(await store.submit("HGET", schema.agent_key(AGENT), "gen")))
    strange, forged = signed(OTHER, "work", agent=AGENT).id, signed(OTHER, "work", agent=AGENT).sig
    bells: list[doorbell.Doorbell] = []
    for command in (done, strange, "x" * 64, ""):
        bells += [
            doorbell.CommandOffered(
                AGENT, command, gen, FAR_MS, FAR_MS, "work", b"{}", "bulk", "never", 0, signature=forged
            ),
            doorbell.CommandQueued(AGENT, command), doorbell.ResultsAdded(command), doorbell.InputAdded(AGENT, command),
            doorbell.CancelRequested(AGENT, command, "deadline"), doorbell.ResultsConsumed(AGENT, command),
            doorbell.ResultsStored(command, os.urandom(50)), doorbell.TargetEnded(command, "ok", "", "digest"),
        ]  # fmt: skip
    bells += [
        doorbell.LinkSuperseded(AGENT, 1, 4507), doorbell.LinkSuperseded("nobody", 1 << 52, 4507),
        doorbell.LinkStatsRequested(AGENT, "nobody#1"), doorbell.LinkStatsWritten(AGENT), doorbell.MembershipChanged(),
        doorbell.WorstLinksRequested("nobody#1", "rtt"), doorbell.WorstLinksWritten("nobody#1", "rtt"),
    ]  # fmt: skip
    for _ in range(ROUNDS):
        for bell in bells:
            await store.submit("XADD", inbox_key(lease), "*", "d", doorbell.encode([bell]))
        for size in (0, 1, 100, 10_000):
            field = rng.choice(("d", "x"))
            await store.submit("XADD", inbox_key(lease), "*", field, rng.randbytes(size))
        last = await siege.honest()
    assert siege.ran.count(done) == 1
    assert len(siege.ran) == 1 + ROUNDS
    assert last in siege.ran
    assert (await siege.api.agent(AGENT))["since"] == row["since"], "its link has stayed"
    assert "Traceback" not in siege.node.log(), siege.node.log()[-3000:]
