"""What people do with a fleet of two nodes, from the first enrolment to the removal of the last agent.

Used to see what nodes need: `tests/gateway/test_redis_acl.py` plays it with the least rights in Redis.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import subprocess
from pathlib import Path

from fairlead.agent import Agent

from support.gateway.enrolled_agent import CLI, EnrolledAgent, cli, new_token
from support.gateway.platform_api import GatewayApi
from support.gateway.process import GatewayProcess
from support.gateway.scripted_agent import AGENT_TOKEN
from support.waiting import until


class MainRoad:
    """Two nodes and what people do with them, from the first enrolment to the removal of the last agent."""

    def __init__(self, nodes: list[GatewayProcess], api: GatewayApi, agents: list[EnrolledAgent], folder: Path) -> None:
        self.nodes, self.api, self.agents, self.folder = nodes, api, agents, folder

    async def online(self, agent: str, within: bool = True) -> None:
        async def reached() -> bool:
            answer = await self.api.http.get(f"/v1/agents/{agent}")
            return (answer.status_code == 200 and answer.json()["state"] == "online") is within

        await until(reached)

    async def enrol(self) -> None:
        """web-1 by a token, web-2 by an approval; web-3 is denied."""
        tokens = [await new_token(self.nodes[0], "web-*", "--uses", "2", *more) for more in ((), ("--approval",))]
        self.agents.append(EnrolledAgent(self.nodes[0], self.folder / "web-1", "web-1", tokens[0]))
        for name in ("web-2", "web-3"):
            self.agents.append(EnrolledAgent(self.nodes[1], self.folder / name, name, tokens[1]))

        async def both_wait() -> bool:
            found = json.loads((await cli(self.nodes[0], "agents", "pending", "-o", "json")).stdout)["agents"]
            return len(found) == 2

        await until(both_wait)
        assert (await cli(self.nodes[0], "agents", "approve", "web-2")).returncode == 0
        assert (await cli(self.nodes[0], "agents", "deny", "web-3")).returncode == 0
        for name in ("web-1", "web-2"):
            await self.online(name)
        assert (await cli(self.nodes[0], "enrolment-tokens", "ls")).returncode == 0
        assert (await cli(self.nodes[0], "enrolment-tokens", "revoke", tokens[1].split("_")[2])).returncode == 0

    async def command(self) -> None:
        """Results, input, a cancelled command, an Idempotency-Key."""
        api = self.api
        assert await api.output(await api.start("web-2", "exec", payload={"argv": ["echo", "through"]})) == "through\n"
        once = {"idempotency-key": "once"}
        order = {"agent": "web-2", "method": "exec", "payload": {"argv": ["true"]}}
        first, again = [(await api.post(order, **once)).json()["id"] for _ in range(2)]
        assert first == again
        done = await asyncio.to_thread(
            subprocess.run, [*CLI, "exec", "--api", self.nodes[0].api, "web-2", "--", "cat"],
            input=b"typed", capture_output=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.stdout == b"typed", done.stderr
        long = await api.start("web-2", "exec", payload={"argv": ["sleep", "600"]}, deadline=600)
        assert (await api.http.delete(f"/v1/commands/{long}")).status_code in (200, 202)
        assert (await api.end(long))["state"] == "cancelled"

    async def run(self) -> None:
        answer = await self.api.http.post("/v1/runs", json={"selector": "*", "method": "sys.info"})
        run = answer.json()["id"]
        results = await self.api.http.get(f"/v1/runs/{run}/results?follow=true")
        assert json.loads(results.text.splitlines()[-1])["end"]["counts"] == {"ok": 2}
        assert (await self.api.http.get(f"/v1/runs/{run}")).status_code == 200
        assert [one["id"] for one in (await self.api.http.get("/v1/runs")).json()["runs"]] == [run]
        slow = {"agents": ["web-1", "web-2"], "method": "exec", "payload": {"argv": ["sleep", "600"]}, "concurrency": 1}
        run = (await self.api.http.post("/v1/runs", json=slow)).json()["id"]
        for wish in ("pause", "resume"):
            assert (await self.api.http.post(f"/v1/runs/{run}/{wish}")).status_code == 202
        assert (await self.api.http.delete(f"/v1/runs/{run}")).status_code == 202

        async def ended() -> bool:
            return bool((await self.api.http.get(f"/v1/runs/{run}")).json()["ended"])

        await until(ended)

    async def join(self) -> None:
        """A script that is stored once, on agents that join the run one after the other."""
        http, script = self.api.http, b"echo joined"
        digest = hashlib.sha256(script).hexdigest()
        assert (await http.put(f"/v1/contents/{digest}", content=script)).status_code == 200
        body = {
            "method": "script", "selector": "label.late=yes", "late": True, "run_deadline": 600, "content": digest,
            "payload": {"digest": digest, "size": len(script)},
        }  # fmt: skip
        run = (await http.post("/v1/runs", json=body)).json()["id"]
        for count, agent in enumerate(("web-1", "web-2"), 1):
            assert (await http.patch(f"/v1/agents/{agent}", json={"labels": {"late": "yes"}})).status_code == 200

            async def joined(count: int = count) -> bool:
                return bool((await http.get(f"/v1/runs/{run}")).json()["counts"] == {"ok": count})

            await until(joined)
        assert (await http.delete(f"/v1/runs/{run}")).status_code == 202

    async def schedule(self) -> None:
        """A schedule that begins a run within a minute, and is removed."""
        http = self.api.http
        body = {"name": "often", "cron": "* * * * *", "run": {"method": "sys.info", "selector": "*"}}
        id = (await http.post("/v1/schedules", json=body)).json()["id"]

        async def begun() -> bool:
            (one,) = (await http.get("/v1/schedules")).json()["schedules"]
            return bool(one["last"] and one["last"]["outcome"] == "started")

        await until(begun, 90)
        assert (await http.delete(f"/v1/schedules/{id}")).status_code == 204

    async def ask(self) -> None:
        """Lists, ranks, links, labels, service tokens, events."""
        http = self.api.http
        sensor = Agent(self.nodes[1].link, "sensor", AGENT_TOKEN)
        serving = asyncio.create_task(sensor.serve())
        sensor.emit("disk.full", {"free": 0})

        async def told() -> bool:
            return "disk.full" in (await http.get("/v1/events", headers={"accept": "application/x-ndjson"})).text

        await until(told)
        line = (await http.get("/v1/events?group=readers", headers={"accept": "application/x-ndjson"})).json()
        path = "/v1/event-groups/readers"
        body = {"offsets": [line["offset"]]}
        assert (await http.post(f"{path}/acknowledgements", json=body)).json() == {"acknowledged": 1}
        assert len((await http.get("/v1/event-groups")).json()["groups"]) == 1
        assert (await http.delete(path)).status_code == 204
        sensor.stop()
        await serving
        for path in ("agents", "agents?selector=label.a=b", "agents/web-2/link", "links?by=rtt", "nodes"):
            assert (await http.get(f"/v1/{path}")).status_code == 200, path
        assert (await http.patch("/v1/agents/web-2", json={"labels": {"env": "dev"}})).status_code == 200
        made = (await http.post("/v1/tokens", json={"name": "all"})).json()
        mine = {"authorization": f"Bearer {made['token']}"}
        assert (await http.get("/v1/agents", headers=mine)).status_code == 200

        async def noted() -> bool:
            (token,) = (await http.get("/v1/tokens")).json()["tokens"]
            return bool(token["used"])

        await until(noted)
        assert (await http.delete(f"/v1/tokens/{made['id']}")).status_code in (200, 204)

    async def leave(self) -> None:
        """A disconnection, a revoked key, a released one, and the removal of an agent."""
        http = self.api.http
        assert (await http.delete("/v1/agents/web-2/link")).status_code == 202
        await self.online("web-2")
        assert (await cli(self.nodes[0], "agents", "revoke", "web-1")).returncode == 0
        assert self.agents[0].wait() == 3
        assert (await cli(self.nodes[0], "agents", "release", "web-1")).returncode == 0
        self.agents[1].stop()
        for agent in ("web-2", "sensor"):
            await self.online(agent, within=False)
            assert (await http.delete(f"/v1/agents/{agent}")).status_code == 200
