"""Attacks on the identity of agents: by somebody who has no enrolment token or one for other ids, and by an enrolled
agent that changes its credential.

Run by `attacker.py` in a process of its own, as those of `http_attacks`, from the same address.
"""

from __future__ import annotations

import base64
import hmac
import itertools
import json
import os
from collections import Counter

import httpx2

from fairlead.identity.agent_key import AgentKey, base64url
from fairlead.identity.enrolment_token import split_token
from fairlead.identity.proof import enrolment_statement, prove

from abuse.attempts import at_rate, sent
from abuse.http_attacks import SOURCE, AttackScale, Ports
from abuse.victim import PLATFORM_TOKEN, status_of, upgrade_request


def enrolment(token: str, agent: str, *, right: bool = True) -> bytes:
    """A request to enrol `agent` with a new key; if not `right`, its proof is for another id."""
    key = AgentKey(os.urandom(32))
    id, _ = split_token(token) or ("", "")
    proof = prove(key, enrolment_statement(id, agent if right else f"{agent}-else", key.public))
    order = {"token": token, "agent": agent, "key": base64url(key.public), "proof": proof}
    body = json.dumps(order).encode()
    head = f"POST /v1/enrolments HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


async def forged_credentials(ports: Ports, scale: AttackScale) -> Counter[str]:
    """200 links a second for a minute with the credential of an agent that has enrolled, changed: another id in it,
    another signature, `alg` none, or signed with a secret that is guessed. Then the credential as it is."""
    tried: Counter[str] = Counter()
    async with httpx2.AsyncClient(trust_env=False) as http:
        made = await http.post(
            f"http://127.0.0.1:{ports.api}/v1/enrolment-tokens",
            json={"agents": "mine-*", "uses": 1},
            headers={"authorization": f"Bearer {PLATFORM_TOKEN}"},
        )
        order = enrolment(str(made.json()["token"]), "mine-1").partition(b"\r\n\r\n")[2]
        enrolled = await http.post(f"http://127.0.0.1:{ports.link}/v1/enrolments", content=order)
    credential = str(enrolled.json()["credential"])
    requests = itertools.cycle(
        [(kind, sent(ports.link, upgrade_request("127.0.0.1", one))) for kind, one in forgeries(credential).items()]
    )
    await at_rate(scale, tried, requests)
    tried[f"then right: {await status_of(ports.link, upgrade_request('127.0.0.1', credential), SOURCE)}"] += 1
    return tried


def forgeries(credential: str) -> dict[str, str]:
    """The credential, changed in ways that must make it worth nothing."""
    head, claims, signature = credential.split(".")
    body = json.loads(base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4)))
    victim = base64url(json.dumps({**body, "sub": "healthy-1"}).encode())
    none = base64url(json.dumps({"alg": "none", "typ": "JWT"}).encode())
    shared = f"{base64url(json.dumps({'alg': 'HS256', 'typ': 'fairlead-agent+jwt'}).encode())}.{victim}"
    mac = hmac.new(b"secret", shared.encode(), "sha256").digest()
    return {
        "another id": f"{head}.{victim}.{signature}",
        "signature": f"{head}.{claims}.{base64url(os.urandom(64))}",
        "none": f"{none}.{victim}.",
        "secret": f"{shared}.{base64url(mac)}",
    }


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
            ("secret", sent(ports.link, enrolment(token[:-43] + "A" * 43, "new-1"))),
            ("unknown", sent(ports.link, enrolment(f"fl_enrol_{'0' * 12}_{'A' * 43}", "new-1"))),
            ("pattern", sent(ports.link, enrolment(token, "old-1"))),
            ("proof", sent(ports.link, enrolment(token, "new-1", right=False))),
        )
    )
    await at_rate(scale, tried, requests)
    tried[f"then right: {await status_of(ports.link, enrolment(token, 'new-1'), SOURCE)}"] += 1
    return tried
