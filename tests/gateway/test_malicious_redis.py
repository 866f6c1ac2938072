"""Whoever may write to Redis changes commands that wait there: an agent that pins a key runs none of them.

A real node and a real Valkey, and an agent in this process that counts what it has run. The commands are posted while
it is offline, so they wait in Redis.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from fairlead.agent import Agent, Command
from fairlead.agent.verification.trusted_keys import TrustedKeys
from fairlead.fleet import schema
from fairlead.fleet.command_record import CommandMetadata
from fairlead.signing.keys import PrivateKey, generate
from fairlead.store.embedded_valkey.server import EmbeddedValkey
from fairlead.store.pipeliner import Pipeliner
from fairlead.store.reply import table

from support.fixtures import RedisOf
from support.gateway.platform_api import GatewayApi
from support.gateway.process import GatewayProcess
from support.signing import signed
from support.waiting import until

PINNED = "pinned-and-robbed"
KEY = generate()


@asynccontextmanager
async def serving(gateway: GatewayProcess, api: GatewayApi, journal: Path, ran: list[str]) -> AsyncIterator[None]:
    """An agent with a link; afterwards it is known and offline."""
    agent = Agent(
        gateway.link, PINNED, "development-agent-token", journal=journal, trusted_keys=TrustedKeys([KEY.public])
    )

    @agent.command("work")
    async def work(command: Command, target: str = "") -> None:
        ran.append(f"{command.id} work {target}")

    @agent.command("wipe")
    async def wipe(command: Command) -> None:
        ran.append(f"{command.id} wipe")

    async def state() -> str:
        answer = await api.http.get(f"/v1/agents/{PINNED}")
        return str(answer.json()["state"]) if answer.status_code == 200 else "unknown"

    async def online() -> bool:
        return await state() == "online"

    async def offline() -> bool:
        return await state() != "online"

    task = asyncio.create_task(agent.serve())
    try:
        await until(online)
        yield
    finally:
        agent.stop()
        await task
    await until(offline)


async def posted(api: GatewayApi, payload: bytes = b"{}", key: PrivateKey = KEY) -> str:
    """The id of a new signed command, which waits for the agent."""
    cmd = signed(key, "work", payload, agent=PINNED, valid=600_000)
    body = {
        "agent": PINNED, "method": "work", "id": cmd.id, "signature": base64.b64encode(cmd.sig).decode(),
        "payload": msgspec.Raw(payload), "on_offline": {"queue": 300}, "deadline": 60,
    }  # fmt: skip
    answer = await api.http.post("/v1/commands", content=msgspec.json.encode(body))
    assert (answer.status_code, answer.json()["state"]) == (202, "queued"), answer.text
    return cmd.id


async def change(store: Pipeliner, command: str, **members: object) -> None:
    """Change what Redis has of a command beside its payload."""
    record = table(await store.submit("HGETALL", schema.cmd_key(command)))
    about = msgspec.msgpack.decode(bytes(record[b"about"]), type=CommandMetadata)
    assert all(hasattr(about, name) for name in members)
    changed = msgspec.msgpack.encode(msgspec.structs.replace(about, **members))
    await store.submit("HSET", schema.cmd_key(command), "about", changed)


async def ended(api: GatewayApi, command: str) -> str:
    """How the command has ended: "ok", or the code of its error."""
    found: dict[str, str] = {}

    async def over() -> bool:
        answer = (await api.http.get(f"/v1/commands/{command}")).json()
        found["state"] = answer["state"]
        end = answer["targets"][0].get("end")
        found["code"] = ((end or {}).get("error") or {}).get("code", "")
        return answer["state"] not in ("queued", "sent", "running")

    await until(over)
    return found["code"] or found["state"]


async def test_a_command_that_was_changed_in_redis_does_not_run(
    gateway: GatewayProcess, api: GatewayApi, shared_valkey: EmbeddedValkey, redis_of: RedisOf, tmp_path: Path
) -> None:
    ran: list[str] = []
    store = await redis_of(shared_valkey)
    async with serving(gateway, api, tmp_path / "journal", ran):
        pass
    good = await posted(api, b'{"target":"a"}')
    payload, method, exchanged, stripped, strange = [await posted(api) for _ in range(5)]
    await store.submit("HSET", schema.cmd_key(payload), "payload", b'{"target":"everything"}')
    await change(store, method, method="wipe")
    await change(store, exchanged, signature=signed(KEY, "work", agent=PINNED).sig)
    await change(store, stripped, signature=b"")
    await change(store, strange, signature=signed(generate(), "work", agent=PINNED, id=strange).sig)
    async with serving(gateway, api, tmp_path / "journal", ran):
        told = [await ended(api, one) for one in (good, payload, method, exchanged, stripped, strange)]
    assert told == [
        "ok", "signature_invalid", "signature_invalid", "signature_invalid", "signature_missing",
        "signature_key_unknown",
    ]  # fmt: skip
    assert ran == [f"{good} work a"]


async def test_a_record_that_redis_brings_back_does_not_run_again(
    gateway: GatewayProcess, api: GatewayApi, shared_valkey: EmbeddedValkey, redis_of: RedisOf, tmp_path: Path
) -> None:
    """As a Redis does that was restored from an old copy, or that somebody else controls."""
    ran: list[str] = []
    store = await redis_of(shared_valkey)
    async with serving(gateway, api, tmp_path / "journal", ran):
        pass
    command = await posted(api)
    kept = {key: await store.submit("DUMP", key) for key in (schema.cmd_key(command), schema.open_key(PINNED))}
    for _ in range(3):
        async with serving(gateway, api, tmp_path / "journal", ran):
            await until(lambda: delivered(api, command))
            after = await posted_online(api)
            assert await ended(api, after) == "ok"
        for key, dump in kept.items():
            assert isinstance(dump, bytes)
            await store.submit("RESTORE", key, 0, dump, "REPLACE")
    assert [one for one in ran if one.startswith(command)] == [f"{command} work "]
    assert len(ran) == 4


async def delivered(api: GatewayApi, command: str) -> bool:
    return bool((await api.http.get(f"/v1/commands/{command}")).json()["state"] != "queued")


async def posted_online(api: GatewayApi) -> str:
    """The id of a new signed command for the agent, which is online."""
    cmd = signed(KEY, "work", agent=PINNED)
    body = {"agent": PINNED, "method": "work", "id": cmd.id, "signature": base64.b64encode(cmd.sig).decode()}
    answer = await api.http.post("/v1/commands", content=msgspec.json.encode({**body, "payload": {}}))
    assert answer.status_code == 202, answer.text
    return cmd.id
