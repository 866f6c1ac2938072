"""Attacks on the enrolment of agents, by somebody who has no token, or one for other ids.

Run by `attacker.py` in a process of its own, as those of `http_attacks`, from the same address.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import time
from collections import Counter

import httpx2

from fairlead.identity.agent_key import AgentKey, base64url
from fairlead.identity.enrolment_token import split_token
from fairlead.identity.proof import enrolment_statement, prove

from abuse.http_attacks import GUESSERS, SOURCE, AttackScale, Ports
from abuse.victim import PLATFORM_TOKEN, status_of

RATE = 200.0
"""Wrong enrolments a second."""


def enrolment(token: str, agent: str, *, right: bool = True) -> bytes:
    """A request to enrol `agent` with a new key; if not `right`, its proof is for another id."""
    key = AgentKey(os.urandom(32))
    id, _ = split_token(token) or ("", "")
    proof = prove(key, enrolment_statement(id, agent if right else f"{agent}-else", key.public))
    order = {"token": token, "agent": agent, "key": base64url(key.public), "proof": proof}
    body = json.dumps(order).encode()
    head = f"POST /v1/enrolments HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


async def wrong_enrolments(ports: Ports, scale: AttackScale) -> Counter[str]:
    """200 wrong enrolments a second for a minute: a guessed secret of a token that exists, a token that does not, an id
    that the token is not for, and a key that the attacker does not have. Then a right one from the same address."""
    tried: Counter[str] = Counter()
    async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{ports.api}", trust_env=False) as http:
        made = await http.post(
            "/v1/enrolment-tokens",
            json={"agents": "new-*", "uses": 5},
            headers={"authorization": f"Bearer {PLATFORM_TOKEN}"},
        )
    token = str(made.json()["token"])
    requests = itertools.cycle(
        (
            ("secret", enrolment(token[:-43] + "A" * 43, "new-1")),
            ("unknown", enrolment(f"fl_enrol_{'0' * 12}_{'A' * 43}", "new-1")),
            ("pattern", enrolment(token, "old-1")),
            ("proof", enrolment(token, "new-1", right=False)),
        )
    )
    free = asyncio.Semaphore(GUESSERS)

    async def one(kind: str, request: bytes) -> None:
        async with free:
            tried[f"{kind}: {await status_of(ports.link, request, SOURCE) or 'lost'}"] += 1

    began = time.monotonic()
    async with asyncio.TaskGroup() as group:
        for n in range(scale.count(int(RATE * 60))):
            await asyncio.sleep(max(0.0, began + n / RATE - time.monotonic()))
            if time.monotonic() - began > scale.seconds:
                break
            group.create_task(one(*next(requests)))
    tried[f"then right: {await status_of(ports.link, enrolment(token, 'new-1'), SOURCE)}"] += 1
    return tried
