"""Attacks of one tenant on another, generated from the OpenAPI document: every operation, with every id of the victim.

Each attack has a twin, the same request with an id of the same form that never was: both answers must be the same. An
operation, or a parameter of one, for which no attack is known raises an AssertionError.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, unquote

from fairlead.shards import of_agent

from support.gateway.tenant_fleets import ATTACKER, HEADER, VICTIM, TenantFleet, shown

NEVER = {
    "agent": "never-was", "command": "0192f1b0-0000-7000-8000-0000000000aa",
    "run": "0192f1b0-0000-7000-8000-0000000000bb", "token": "0123456789ab", "approval": "fedcba9876543210",
    "digest": "0" * 64, "schedule": "0192f1b0-0000-7000-8000-0000000000cc", "group": "never-group",
    "sink": "never-sink", "letter": "5-5",
}  # fmt: skip
HARMLESS = {"by", "limit", "state", "count", "follow", "output", "progress", "from", "n", "end", "type", "since",
            "agents", "method", "verb", "traceparent", "window", "ack_within"}  # fmt: skip
"""Parameters that name nothing which anybody has."""
SECRET_CONTENT = b"secret-payload of a script"
SECRET_DIGEST = hashlib.sha256(SECRET_CONTENT).hexdigest()
ABOUT_ONESELF = {"whoami", "getOpenapi"}


@dataclass(frozen=True)
class Attack:
    """One request, with the victim's id in it or none; `twin` is the same request with an id that never was."""

    method: str
    path: str
    body: Any = None
    headers: tuple[tuple[str, str], ...] = ()
    id: str = ""
    twin: Attack | None = None


def _ids_of(victim: TenantFleet, path: str) -> dict[str, list[str]]:
    """What an attacker puts in place of each parameter of a path."""
    tokens = victim.enrolment_tokens if "enrolment" in path else victim.tokens
    agents = [waiting for waiting, _ in victim.pending] if "pending" in path else [*victim.agents, "waits-here"]
    tricks = [
        f"/{VICTIM}/only-here",
        f"{VICTIM}/only-here",
        f"../{VICTIM}/only-here",
        f"/{ATTACKER}/../{VICTIM}/only-here",
    ]
    return {
        "agent": [agent for agent in agents if agent != "web-1"] + tricks,
        "command": victim.commands + victim.runs, "run": victim.runs + victim.commands, "token": tokens,
        "approval": victim.approvals, "digest": [SECRET_DIGEST], "group": ["secret-group"],
        "sink": ["secret-sink"], "letter": victim.letters[:1] or ["6-6"],
        "schedule": victim.schedules,
    }  # fmt: skip


def _queries_of(victim: TenantFleet, position: str) -> dict[str, list[str]]:
    return {
        "agent": ["only-here", f"/{VICTIM}/only-here"], "selector": ["secret-label=secret-value", "secret-label"],
        "cursor": [*(f"{shard}:{agent}" for shard in (0, 31, 63) for agent in ("only-here", "web-1")),
                   f"0:/{VICTIM}/", *victim.runs],
        "after": [position, "0-0"], "Last-Event-ID": [position], "Idempotency-Key": ["secret-key"],
        "approval": victim.approvals, "group": ["readers"],
    }  # fmt: skip


def _bodies_of(victim: TenantFleet, operation: str, agent: str) -> list[Any]:
    """Bodies that name what the victim has, or `agent`."""
    match operation:
        case "postCommand":
            chosen = victim.commands[0][:14] + "4" + victim.commands[0][15:]
            signed = {"id": of_agent(chosen, agent), "signature": "AAAA"}
            return [{"agent": agent, "method": "work"}, {"agent": agent, "method": "exec", **signed}]
        case "postRun":
            work = {"method": "work"}
            return [{**work, "agents": [agent]}, {**work, "agents": [agent], "dry_run": True},
                    {**work, "selector": "secret-label", "dry_run": True}, {**work, "selector": "secret-label"},
                    {**work, "selector": "*", "dry_run": True}]  # fmt: skip
        case "retryRun":
            return [{"states": ["failed"]}, {}]
        case "labelAgent":
            return [{"labels": {"secret-label": "stolen"}}]
        case "createToken":
            return [{"name": "secret-token-name"}]
        case "createEnrolmentToken":
            return [{"agents": agent.replace("/", "-").strip("-."), "tenant": VICTIM}]
        case "approveAgent" | "denyAgent":
            return [victim.pending[0][1]]
        case "postInput":
            return [b"stolen input"]
        case "createSchedule":
            run = {"method": "work", "selector": "no-such-label"}
            name = "stolen" if agent == "only-here" else "never-made"  # a caller has one schedule of a name
            return [{"name": name, "cron": "0 0 1 1 *", "run": run}]
        case "putContent":
            return [b"another content"]
        case "acknowledgeEvents":
            return [{"offsets": victim.offsets}]
        case "retryDeadLetters":
            return [{"ids": victim.letters or ["6-6"]}]
    raise AssertionError(f"no attack is known with the body of {operation}: add one")


def tenant_attacks(document: dict[str, Any], victim: TenantFleet, position: str) -> Iterator[tuple[str, Attack]]:
    """Every attack, with the operation that it is made on."""
    for path, methods in document["paths"].items():
        ids = _ids_of(victim, path)
        for method, operation in methods.items():
            name = operation["operationId"]
            names = re.findall(r"{(\w+)}", path)
            assert set(names) <= NEVER.keys(), f"no attack is known with a parameter of {path}: add one"
            filled = list(itertools.product(*(ids[one] for one in names)))
            assert filled, path
            for values in filled:
                bodies = _bodies_of(victim, name, "only-here") if "requestBody" in operation else [None]
                twins = _bodies_of(victim, name, NEVER["agent"]) if "requestBody" in operation else [None]
                for body, twin_body in zip(bodies, twins, strict=True):
                    never = dict(zip(names, (NEVER[one] for one in names), strict=True))
                    for query, headers in _parameters(operation, victim, position):
                        twin_query = query.replace("agent=only-here", f"agent={NEVER['agent']}")
                        twin_headers = tuple((one, value.replace("secret", "never")) for one, value in headers)
                        twin = Attack(method, _path(path, never) + twin_query, twin_body, twin_headers)
                        one = _path(path, dict(zip(names, values, strict=True))) + query
                        yield name, Attack(method, one, body, headers, values[0] if values else "only-here", twin)


def _path(path: str, values: dict[str, str]) -> str:
    for name, value in values.items():
        path = path.replace(f"{{{name}}}", quote(value, safe=""))
    return path


def _parameters(
    operation: dict[str, Any], victim: TenantFleet, position: str
) -> Iterator[tuple[str, tuple[tuple[str, str], ...]]]:
    """Queries and headers: none, and each parameter that can name something with each of its values."""
    base = "?n=0" if operation["operationId"] == "postInput" else ""
    if operation["operationId"] == "canI":
        base = "?verb=results"
    yield base, ()
    yield base, ((HEADER, VICTIM),)
    yield base, ((HEADER, "default"),)
    queries = _queries_of(victim, position)
    for parameter in operation.get("parameters", ()):
        if parameter["in"] == "path" or parameter["name"] in HARMLESS:
            continue
        name = parameter["name"]
        assert name in queries, f"no attack is known with {name} of {operation['operationId']}: add one"
        for value in queries[name]:
            if parameter["in"] == "header":
                yield base, ((name, value),)
            else:
                yield f"{base}{'&' if base else '?'}{name}={quote(value, safe='-')}", ()


async def _answer_to(attacker: TenantFleet, attack: Attack) -> tuple[int, str]:
    body = {"content": attack.body} if isinstance(attack.body, bytes) else {"json": attack.body}
    answer = await attacker.boss.http.request(
        attack.method.upper(), attack.path, headers=dict(attack.headers), **(body if attack.body is not None else {})
    )
    return answer.status_code, shown(answer)


async def play_attack(attacker: TenantFleet, victim: TenantFleet, name: str, attack: Attack) -> int:
    """Play one attack and its twin; returns the number of requests. Raises AssertionError if an answer has something
    of the victim in it, or says whether an id is the victim's."""
    status, text = await _answer_to(attacker, attack)
    assert status < 500, (name, attack, text)
    if name not in ABOUT_ONESELF:
        given = f"{unquote(attack.path)} {attack.body!r} {attack.headers}"  # errors repeat what was asked for
        leaked = {secret for secret in victim.secrets if secret in text and secret not in given}
        assert not leaked, (name, attack, leaked, text)
    assert "secret-output" not in text, (name, attack)
    assert "secret-payload" not in text, (name, attack)
    assert "secret-result" not in text, (name, attack)
    if "%2F" in attack.path.partition("?")[0]:
        assert status in (400, 404), (name, attack, text)  # of an encoded slash no path is made
        return 1
    if (HEADER, VICTIM) in attack.headers:
        assert status == 403, (name, attack, text)
        nowhere = Attack(attack.method, attack.path, attack.body, ((HEADER, "nowhere"),))
        assert await _answer_to(attacker, nowhere) == (403, text.replace(VICTIM, "nowhere")), (name, attack)
        return 2
    if attack.twin is not None:
        twin = await _answer_to(attacker, attack.twin)
        assert _without(twin, attack.twin) == _without((status, text), attack), (name, attack)
        return 2
    return 1


_VARYING = re.compile(
    r'"(?:id|token|created|expires|digest|date|content-length|location|offset|since|used|last_used)": ?"?[^",}]*"?'
)


def _without(answer: tuple[int, str], attack: Attack) -> tuple[int, str]:
    """An answer without the ids that its request names, and without what is new in each."""
    status, text = answer
    made_up = "only-here", "waits-here", "stolen", "never-made"
    named = (*NEVER.values(), *re.findall(r"[\w.-]{5,}", attack.path), *made_up)
    for name in sorted(named, key=len, reverse=True):  # a short one may be a part of another
        if name not in ("agents", "commands", "tokens", "events", "links", "nodes", "results", "input"):
            text = text.replace(name, "ID")
    return status, _VARYING.sub("", text)
