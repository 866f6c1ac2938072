"""The audit log of what runs for callers who are not there: starts of schedules, also those that are refused, and
agents that join a run."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from fairlead.audit.records import JOINED, ROLES_CHANGED, SCHEDULED, AuditLine
from fairlead.audit.verification import read_lines, verify_folder
from fairlead.fleet.schema import SCHEDULES_DUE
from fairlead.store.embedded_valkey.server import EmbeddedValkey
from fairlead.wire.messages import Cmd

from support.fixtures import RedisOf
from support.gateway.platform_api import FITTING, MakeGatewayApi
from support.gateway.process import GatewayProcess, MakeGateway
from support.gateway.roles import ROLES, as_caller, write_roles
from support.gateway.scripted_agent import DialAgent
from support.waiting import until

RUN = {"method": "exec", "payload": FITTING["exec"], "selector": "label.env=dev"}


def audited(make: MakeGateway, redis: str, folder: Path) -> GatewayProcess:
    write_roles(folder / "roles.yaml")
    return make(redis, "--roles", str(folder / "roles.yaml"), "--audit-log", str(folder / "audit"))


def written(folder: Path, *actions: str) -> list[AuditLine]:
    return [line for line in read_lines(folder / "audit") if line.action in actions]


async def has_lines(folder: Path, action: str, count: int) -> bool:
    return len(await asyncio.to_thread(written, folder, action)) >= count


@pytest.mark.parametrize("lost", ["token", "role"])
async def test_a_schedule_can_be_followed_from_its_post_to_its_refusal(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, api_of: MakeGatewayApi, dial: DialAgent, redis_of: RedisOf,
    tmp_path: Path, lost: str,
) -> None:  # fmt: skip
    gateway, redis = audited(make_gateway, own_valkey.url, tmp_path), await redis_of(own_valkey)
    admin, agent = api_of(gateway), await dial(gateway)
    await agent.greet()
    await admin.http.patch(f"/v1/agents/{agent.agent}", json={"labels": {"env": "dev"}})
    token = (await admin.http.post("/v1/tokens", json={"name": "ci"})).json()
    ci = as_caller(api_of, gateway, token["token"])
    body: dict[str, Any] = {"name": "nightly", "cron": "0 3 1 1 *", "zone": "Europe/Berlin", "run": RUN}
    id = (await ci.http.post("/v1/schedules", json=body)).json()["id"]
    (created,) = written(tmp_path, "createSchedule")
    assert (created.subject, created.method, created.selector) == ("token:ci", "exec", RUN["selector"])
    assert created.detail == f"{id} nightly: 0 3 1 1 * Europe/Berlin"
    for count in (1, 2):
        await redis.submit("ZADD", SCHEDULES_DUE, int(time.time() * 1000) - 500, id)
        await until(lambda: has_lines(tmp_path, SCHEDULED, count))  # noqa: B023  # it is awaited here
        if count == 1:
            await agent.expect(Cmd)
            if lost == "token":
                assert (await admin.http.delete(f"/v1/tokens/{token['id']}")).status_code == 204
            else:
                write_roles(tmp_path / "roles.yaml", ROLES.replace("- methods: [exec, file.*]", "- methods: [file.*]"))
                await until(lambda: has_lines(tmp_path, ROLES_CHANGED, 1))
    started, refused = written(tmp_path, SCHEDULED)
    for line in (started, refused):
        assert (line.subject, line.credential, line.method, line.detail) == (
            "token:ci", token["id"], "exec", f"{id} nightly",
        )  # fmt: skip
        assert line.digest == created.digest
    assert (started.outcome, started.count, bool(started.run)) == ("allowed", 1, True)
    assert (refused.outcome, refused.count, refused.run) == ("denied", None, "")
    assert "may not run method exec any more" in refused.reason
    assert [fault for report in verify_folder(tmp_path / "audit") for fault in report.faults] == []


async def test_agents_that_join_a_run_are_in_the_log_before_they_get_anything(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, api_of: MakeGatewayApi, dial: DialAgent, tmp_path: Path
) -> None:
    gateway = audited(make_gateway, own_valkey.url, tmp_path)
    admin = api_of(gateway)
    body = {"method": "work", "selector": "*", "late": True, "run_deadline": 600}
    run = (await admin.http.post("/v1/runs", json=body)).json()["id"]
    agent = await dial(gateway)
    await agent.greet()
    await agent.expect(Cmd)
    (joined,) = written(tmp_path, JOINED)
    assert (joined.subject, joined.run, joined.method, joined.selector) == ("shared-token", run, "work", "*")
    assert (joined.outcome, joined.count, joined.detail) == ("allowed", 1, agent.agent)
