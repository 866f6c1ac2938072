"""Attacks on agents that trust a key, by a captured gateway and by a node of somebody else's on the bus."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from fairlead.bus import doorbell
from fairlead.bus.inbox import inbox_key
from fairlead.fleet import schema
from fairlead.signing.keys import generate
from fairlead.store.reply import text
from fairlead.wire.messages import Ack, Cmd

from abuse.attempts import Attempt, Site, at_rate
from abuse.http_attacks import AttackScale
from abuse.trust.honest import Honest
from abuse.trust.siege import AGENT, Siege, Usage, besieged, count_runs, outcome, pinned_agent
from support.agent.forged_commands import CommandForger
from support.agent.scripted_gateway import Gateway
from support.agent.scripted_link import Link
from support.gateway.process import GatewayProcess
from support.signing import signed

ROGUE_TOKEN = "the-token-of-an-attacker"


async def captured_gateway(site: Site, scale: AttackScale) -> Counter[str]:
    """A gateway that the attacker holds sends its agent forged commands of 20 kinds, and those that have run before."""
    tried: Counter[str] = Counter()
    key, gateway = generate(), Gateway()
    await gateway.start()
    async with pinned_agent(site, gateway.url, key) as agent:
        link = await gateway.linked()
        forger = CommandForger(key, generate(), AGENT, "exec", agent.payload("signed"))
        right = [forger.right(valid=600_000) for _ in range(5)]
        for cmd in right:
            tried[f"then signed: {await _sent(link, cmd)}"] += 1
            await link.end(cmd.id)

        async def attempt(make: Callable[[], Cmd]) -> str:
            return await _sent(link, make())

        forged = forger.forgeries("shell", agent.payload("forged"))
        attempts: list[tuple[str, Attempt]] = [(kind, partial(attempt, make)) for kind, (make, _) in forged.items()]
        attempts += [("run before", partial(_sent, link, cmd)) for cmd in right]
        usage = Usage(agent.pid)
        await at_rate(scale, tried, itertools.cycle(attempts))
        usage.tell(tried)
        count_runs(agent, len(right), tried)
    await gateway.stop()
    return tried


async def _sent(link: Link, cmd: Cmd) -> str:
    """What the agent says to a command: the code of its refusal, or the state of its ack."""
    if link.state.stream(cmd.id) is None:
        link.state.opened(cmd.id)
    before = len(link.heard)
    await link.send(cmd)

    def answers() -> list[Ack]:
        return [one for _, one in link.heard[before:] if isinstance(one, Ack) and one.id == cmd.id]

    await link.until(lambda: bool(answers()))
    answer = answers()[0]
    return answer.error.code if answer.state == "refused" and answer.error is not None else answer.state


async def malicious_node(site: Site, scale: AttackScale) -> Counter[str]:
    """A node with a token of its own on the same Redis posts forged commands, and writes forged doorbells and garbage
    into the inbox of the node that has the agent."""
    tried: Counter[str] = Counter()
    within = ("env", f"FAIRLEAD_PLATFORM_TOKEN={ROGUE_TOKEN}")
    rogue = GatewayProcess(Path(site.folder), site.redis, name="rogue", within=within)
    await asyncio.to_thread(rogue.start)
    try:
        async with Honest(site) as honest, besieged(honest) as siege:
            api = honest.caller(ROGUE_TOKEN, rogue.api)
            lease = text(await honest.store.submit("HGET", schema.agent_key(AGENT), "lease"))
            attempts = [*_forged_posts(siege, api), *_forged_bells(honest, inbox_key(lease))]
            first = await siege.sign_and_run()
            usage = Usage(siege.agent.pid)
            await at_rate(scale, tried, itertools.cycle(attempts), rate=100.0)
            usage.tell(tried)
            for end in (first, await siege.sign_and_run()):
                tried[f"then signed: {end}"] += 1
            tried[f"then the real agent: {await honest.stayed(AGENT)}"] += 1
            count_runs(siege.agent, siege.right, tried)
            await api.aclose()
    finally:
        await asyncio.to_thread(rogue.stop)
    return tried


def _forged_posts(siege: Siege, api: Any) -> list[tuple[str, Attempt]]:
    other, stolen = generate(), siege.body("stolen")
    forged: dict[str, Callable[[], dict[str, Any]]] = {
        "not signed": lambda: {"agent": AGENT, "method": "exec", "payload": msgspec.Raw(siege.agent.payload("forged"))},
        "another key": lambda: siege.body("forged", key=other),
        "moved to another agent": lambda: siege.body("forged", agent=f"{AGENT}-2"),
        "another payload": lambda: {**siege.body("forged"), "payload": msgspec.Raw(siege.agent.payload("changed"))},
        "another id": lambda: {**stolen, "id": siege.body()["id"]},
        "another method": lambda: {**siege.body("forged"), "method": "shell"},
        "after its deadline": lambda: siege.body("forged", issued=1_700_000_000_000, valid=1_000),
    }

    async def attempt(make: Callable[[], dict[str, Any]]) -> str:
        return await outcome(api, make())

    return [(kind, partial(attempt, make)) for kind, make in forged.items()]


def _forged_bells(honest: Honest, inbox: str) -> list[tuple[str, Attempt]]:
    """What they do is seen at the end: nothing has run, and the link has stayed."""
    rng, strange = random.Random(1), signed(generate(), "exec", agent=AGENT).id
    bells: list[doorbell.Doorbell] = [
        doorbell.CommandQueued(AGENT, strange), doorbell.InputAdded(AGENT, strange),
        doorbell.CancelRequested(AGENT, strange, "deadline"), doorbell.ResultsConsumed(AGENT, strange),
        doorbell.LinkSuperseded(AGENT, 1, 4507), doorbell.MembershipChanged(),
    ]  # fmt: skip

    async def ring(octets: Callable[[], bytes]) -> str:
        await honest.store.submit("XADD", inbox, "*", "d", octets())
        return "ignored"

    made: list[Attempt] = [partial(ring, partial(doorbell.encode, [bell])) for bell in bells]
    made.append(partial(ring, lambda: rng.randbytes(rng.randint(0, 1_000))))
    return [("doorbell" if n < len(bells) else "garbage", attempt) for n, attempt in enumerate(made)]
