"""Attacks of a caller who has a role: more agents, methods and answers than the role allows, and what needs a second
person without one."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from fairlead.agent import Agent, Command

from abuse.attempts import Attempt, Site, at_rate
from abuse.http_attacks import AttackScale
from abuse.trust.honest import Honest
from abuse.victim import AGENT_TOKEN
from support.gateway.role_escapes import METHODS, SELECTORS, agent_lists
from support.waiting import until

OWN, OTHER = "own-agent", "agent-of-others"
SECRET = "what-others-may-not-read"


class RoleSite:
    """A caller with the role `deploy`: `exec` and `file.*` on `env=dev`. One agent has this label; the other has it
    not, says that it has, and counts what reaches it."""

    def __init__(self, honest: Honest, caller: Any) -> None:
        self.honest, self.http = honest, caller
        self.reached: list[str] = []
        self.commands: list[str] = []

    @classmethod
    async def found(cls, honest: Honest) -> RoleSite:
        site = cls(honest, await honest.service_caller("ci"))
        for id, env in ((OWN, "dev"), (OTHER, "prod")):
            claims = {"env": "dev", "label.env": "dev"}
            agent = Agent(honest.link, id, AGENT_TOKEN, facts=claims)
            for method in ("exec", "shell", "file.get"):
                agent.command(method)(site._handler(id))
            await honest.serve(id, agent=agent)
            answer = await honest.http.patch(f"/v1/agents/{id}", json={"labels": {"env": env}})
            assert answer.status_code == 200, answer.text
            if id == OTHER:
                agent.emit("others", SECRET)
        for method in ("exec", "shell"):
            made = await honest.http.post("/v1/commands", json={"agent": OTHER, "method": method, "unchecked": True})
            site.commands.append(made.json()["id"])
            await until(partial(site._ended, site.commands[-1]))
        assert len(site.reached) == 2
        site.reached.clear()
        return site

    def _handler(self, id: str) -> Callable[[Command], Awaitable[str]]:
        async def run(command: Command) -> str:
            if id == OTHER:
                self.reached.append(command.id)
            return SECRET

        return run

    async def _ended(self, command: str) -> bool:
        return bool((await self.honest.http.get(f"/v1/commands/{command}")).json()["state"] == "ok")

    async def asked(self, method: str, path: str, **options: Any) -> str:
        """ "own agents only" for an answer that has nothing of the other agent in it, else its status."""
        answer = await self.http.request(method, path, **options)
        if answer.status_code != 200:
            return str(answer.status_code)
        return "own agents only" if OTHER not in answer.text and SECRET not in answer.text else "200 with others"


def _of_selectors(site: RoleSite) -> list[tuple[str, Attempt]]:
    attempts: list[tuple[str, Attempt]] = []
    for selector in SELECTORS:
        run = {"method": "exec", "selector": selector, "dry_run": True}
        attempts.append(("selector, run", partial(site.asked, "POST", "/v1/runs", json=run)))
        attempts += [
            (f"selector, {path}", partial(site.asked, "GET", path, params={"selector": selector}))
            for path in ("/v1/agents", "/v1/events")
        ]
    return attempts


def _of_methods(site: RoleSite) -> list[tuple[str, Attempt]]:
    attempts: list[tuple[str, Attempt]] = []
    for method in ("exec", "file.get", *METHODS):
        one = {"agent": OTHER, "method": method, "unchecked": True}
        several = {"agents": [OWN, OTHER], "method": method, "dry_run": True}
        attempts.append(("alias of a method", partial(site.asked, "POST", "/v1/commands", json=one)))
        attempts.append(("alias, several agents", partial(site.asked, "POST", "/v1/runs", json=several)))
    for names in agent_lists(OWN, OTHER):
        run = {"method": "exec", "agents": names, "unchecked": True}
        attempts.append(("fan-out", partial(site.asked, "POST", "/v1/runs", json=run)))
    return attempts


def _of_others(site: RoleSite) -> list[tuple[str, Attempt]]:
    """What another agent has: its labels, results, events, files and terminals."""
    exec, shell = site.commands
    file = {"agent": OTHER, "method": "file.get", "payload": {"path": "/etc/passwd"}}
    requests: list[tuple[str, str, str, dict[str, Any]]] = [
        ("its own label", "POST", "/v1/commands", {"json": {"agent": OTHER, "method": "exec", "unchecked": True}}),
        ("its own label, run", "POST", "/v1/runs",
         {"json": {"method": "exec", "selector": "fact.env=dev", "dry_run": True}}),
        ("label by the caller", "PATCH", f"/v1/agents/{OTHER}", {"json": {"labels": {"env": "dev"}}}),
        ("another's agent", "GET", f"/v1/agents/{OTHER}", {}),
        ("another's agents", "GET", "/v1/agents", {}),
        ("another's command", "GET", f"/v1/commands/{exec}", {}),
        ("another's results", "GET", f"/v1/commands/{exec}/results", {"params": {"follow": "false"}}),
        ("another's command, cancel", "DELETE", f"/v1/commands/{exec}", {}),
        ("another's command, input", "POST", f"/v1/commands/{exec}/input?n=0", {"content": b"x"}),
        ("another's events", "GET", "/v1/events", {"params": {"agent": OTHER}}),
        ("another's events, all", "GET", "/v1/events", {}),
        ("another's files", "POST", "/v1/commands", {"json": file}),
        ("another's recording", "GET", f"/v1/commands/{shell}/results", {"params": {"follow": "false"}}),
        ("another's recording, path", "GET", f"/v1/commands/..%2f..%2fterminals%2f{shell}", {}),
        ("another's link", "DELETE", f"/v1/agents/{OTHER}/link", {}),
    ]  # fmt: skip
    return [(kind, partial(site.asked, method, path, **options)) for kind, method, path, options in requests]


async def role_escapes(site: Site, scale: AttackScale) -> Counter[str]:
    """Selectors, spellings of methods, lists of agents, the label that an agent gives itself, and everything of another
    agent that can be read."""
    tried: Counter[str] = Counter()
    async with Honest(site) as honest:
        roles = await RoleSite.found(honest)
        attempts = [*_of_selectors(roles), *_of_methods(roles), *_of_others(roles) * 8]
        await at_rate(scale, tried, itertools.cycle(attempts))
        own = await roles.http.post("/v1/commands", json={"agent": OWN, "method": "exec", "unchecked": True})
        tried[f"then its own: {own.status_code}"] += 1
        if roles.reached:
            tried["at the agent of others: has run"] = len(roles.reached)
        await roles.http.aclose()
    return tried


async def approval_escapes(site: Site, scale: AttackScale) -> Counter[str]:
    """A command that needs a second person: without one, approved by oneself, with what another has been given, with
    an approval for something else, and with one that was used."""
    tried: Counter[str] = Counter()
    async with Honest(site) as honest:
        reached: list[str] = []
        agent = Agent(honest.link, OTHER, AGENT_TOKEN)

        @agent.command("exec")
        async def run(command: Command, argv: list[str]) -> None:
            reached.append(command.id)

        await honest.serve(OTHER, agent=agent)
        labelled = await honest.http.patch(f"/v1/agents/{OTHER}", json={"labels": {"env": "prod"}})
        assert labelled.status_code == 200, labelled.text
        ci, second, guard, both = [await honest.service_caller(name) for name in ("ci", "other-ci", "guard", "both")]

        async def post(caller: Any, approval: str = "", payload: str = "reboot") -> Any:
            order = {"agent": OTHER, "method": "exec", "payload": {"argv": [payload]}}
            return await caller.post("/v1/commands", json=order, params={"approval": approval} if approval else {})

        async def asked(caller: Any, payload: str = "reboot") -> str:
            return str((await post(caller, payload=payload)).json()["approval"])

        async def approve(caller: Any, approval: str) -> int:
            return int((await caller.post(f"/v1/approvals/{approval}/approve")).status_code)

        used, given, of_another = await asked(ci), await asked(ci, "given"), await asked(second)
        own = await asked(both)
        for approval in (used, given, of_another):
            assert await approve(guard, approval) == 204
        right = await post(ci, used)
        await until(lambda: reached)
        waits = await asked(ci, "waits")
        orders: list[tuple[str, Any, str, str]] = [
            ("no approval", ci, "", "reboot"), ("not decided yet", ci, waits, "waits"),
            ("used before", ci, used, "reboot"), ("for another payload", ci, given, "another"),
            ("of another caller", ci, of_another, "reboot"), ("invented", ci, "0123456789abcdef", "reboot"),
            ("own, not approved", both, own, "reboot"),
        ]  # fmt: skip

        async def outcome(caller: Any, approval: str, payload: str) -> str:
            answer = await post(caller, approval, payload)
            replayed = "idempotency-replayed" in answer.headers  # what has used the approval, and not a second one
            return "the same command" if replayed else str(answer.status_code)

        async def by_oneself(caller: Any, approval: str) -> str:
            return str(await approve(caller, approval))

        attempts: list[tuple[str, Attempt]] = [
            (kind, partial(outcome, caller, approval, payload)) for kind, caller, approval, payload in orders
        ]
        attempts += [("approved by oneself", partial(by_oneself, both, own)),
                     ("approved without the role", partial(by_oneself, ci, waits))]  # fmt: skip
        await at_rate(scale, tried, itertools.cycle(attempts), rate=100.0)
        tried[f"then approved: {right.status_code}"] += 1
        if len(reached) != 1:
            tried["at the agent: has run"] = len(reached)
        for caller in (ci, second, guard, both):
            await caller.aclose()
    return tried
