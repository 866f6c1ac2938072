"""Attacks on agents that trust a key, by whoever writes to Redis, where commands wait."""

from __future__ import annotations

import time
from collections import Counter
from functools import partial
from typing import Any

import msgspec

from fairlead.fleet import schema
from fairlead.fleet.command_record import CommandMetadata
from fairlead.signing.keys import generate
from fairlead.store.reply import table

from abuse.attempts import Site
from abuse.http_attacks import AttackScale
from abuse.trust.honest import Honest
from abuse.trust.siege import AGENT, Siege, count_runs, pinned_agent
from support.signing import signed
from support.waiting import until

ROUND = 25
"""Commands that wait in Redis while they are changed."""


async def malicious_redis(site: Site, scale: AttackScale) -> Counter[str]:
    """Signed commands that wait in Redis for an agent are changed there, and brought back when they have run; again and
    again, with the agent away and back."""
    tried: Counter[str] = Counter()
    key, end, right = generate(), time.monotonic() + scale.seconds, 0
    async with Honest(site) as honest:
        while True:
            async with pinned_agent(site, honest.link, key) as agent:
                await until(lambda: honest.watch(AGENT))
            siege = Siege(honest, agent, key)
            await until(partial(_away, honest))
            waiting = [await _wait(siege) for _ in range(ROUND)]
            kept = waiting[:5]
            dumps = {one: await honest.store.submit("DUMP", one) for one in _keys_of(kept)}
            kinds = [await _change(honest, siege, n, command) for n, command in enumerate(waiting[5:])]
            async with pinned_agent(site, honest.link, key) as agent:
                for command in kept:
                    tried[f"then signed: {await _end(honest, command)}"] += 1
                for kind, command in zip(kinds, waiting[5:], strict=True):
                    tried[f"{kind}: {await _end(honest, command)}"] += 1
            right += len(kept)
            await until(partial(_away, honest))
            for one, dump in dumps.items():
                await honest.store.submit("RESTORE", one, 0, dump if isinstance(dump, bytes) else b"", "REPLACE")
            async with pinned_agent(site, honest.link, key) as agent:
                await until(partial(_all_over, honest, kept))
                again = agent.marks.count("signed") - right
                tried["brought back: has run again" if again > 0 else "brought back: not run again"] += len(kept)
            count_runs(agent, right, tried)
            if time.monotonic() > end:
                return tried
            await until(partial(_away, honest))


async def _away(honest: Honest) -> bool:
    return not await honest.watch(AGENT)


async def _all_over(honest: Honest, commands: list[str]) -> bool:
    states = [(await honest.http.get(f"/v1/commands/{one}")).json()["state"] for one in commands]
    return "queued" not in states


def _keys_of(commands: list[str]) -> list[str]:
    return [*(schema.cmd_key(command) for command in commands), schema.open_key(AGENT)]


async def _wait(siege: Siege) -> str:
    """The id of a signed command that waits for the agent."""
    body = {**siege.body(valid=600_000), "on_offline": {"queue": 300}}
    answer = await siege.honest.http.post("/v1/commands", content=msgspec.json.encode(body))
    assert (answer.status_code, answer.json()["state"]) == (202, "queued"), answer.text
    return str(body["id"])


async def _change(honest: Honest, siege: Siege, n: int, command: str) -> str:
    """Change what Redis has of a command; returns in which way."""
    name, payload = schema.cmd_key(command), siege.agent.payload("changed")
    if n % 5 == 0:
        await honest.store.submit("HSET", name, "payload", payload)
        return "another payload"
    record = table(await honest.store.submit("HGETALL", name))
    about = msgspec.msgpack.decode(bytes(record[b"about"]), type=CommandMetadata)
    kind, members = (
        ("another method", {"method": "shell"}),
        ("signature of another command", {"signature": signed(siege.key, "exec", payload, agent=AGENT).sig}),
        ("signature removed", {"signature": b""}),
        ("another key", {"signature": signed(generate(), "exec", payload, agent=AGENT, id=command).sig}),
    )[n % 5 - 1]
    changed = msgspec.msgpack.encode(msgspec.structs.replace(about, **members))
    await honest.store.submit("HSET", name, "about", changed)
    return kind


async def _end(honest: Honest, command: str) -> str:
    """How a command ends: "ok", or the code of its error."""
    found: dict[str, Any] = {}

    async def over() -> bool:
        found.update((await honest.http.get(f"/v1/commands/{command}")).json())
        return found["state"] not in ("queued", "sent", "running")

    await until(over)
    end = found["targets"][0].get("end") or {}
    return str((end.get("error") or {}).get("code") or found["state"])
