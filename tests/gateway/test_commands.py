"""Commands over the API: accepted, streamed, read again, cancelled and refused as documented."""

from __future__ import annotations

import asyncio
import base64
import json

import pytest

from fairlead.wire.messages import Ack, Cancel, Chunk, End, Error, Event, Rx

from support.gateway.platform_api import GatewayApi
from support.gateway.process import GatewayProcess
from support.gateway.scripted_agent import DialAgent
from support.waiting import until


async def test_a_command_runs_and_its_output_arrives_as_it_is_produced(
    gateway: GatewayProcess, api: GatewayApi, dial: DialAgent
) -> None:
    peer = await dial(gateway)
    await peer.greet()
    body = {"agent": peer.agent, "method": "work", "payload": {"x": 1}, "deadline": 30}
    async with api.http.stream("POST", "/v1/commands", json=body, headers={"accept": "application/x-ndjson"}) as r:
        assert r.status_code == 200
        lines = r.aiter_lines()
        head = json.loads(await anext(lines))
        assert head["presence"] == "online"
        cmd = await peer.command()
        assert (cmd.id, cmd.method, json.loads(cmd.payload)) == (head["id"], "work", {"x": 1})
        assert 0 < cmd.deadline <= 30_000
        await peer.send(Ack(id=cmd.id))
        for n in range(3):
            await peer.send_output(cmd.id, n, f"line {n}\n")
            line = json.loads(await anext(lines))  # it is here before the next is even sent
            assert (line["offset"], line["n"], line["text"]) == (n, n, f"line {n}\n")
        await peer.send(End(id=cmd.id, total=3, payload=b'{"exit_code":0}'))
        end = json.loads(await anext(lines))["end"]
        assert end == {
            "agent": peer.agent, "state": "ok", "payload": {"exit_code": 0}, "error": None, "total": 3,
            "truncated": False, "dropped": False,
        }  # fmt: skip
    assert (await peer.expect(Rx)).s >= 1


async def test_results_can_be_read_again_from_any_offset(
    gateway: GatewayProcess, api: GatewayApi, dial: DialAgent
) -> None:
    peer = await dial(gateway)
    await peer.greet()
    command = await api.start(peer.agent)
    await peer.command()
    await peer.send(Ack(id=command))
    for n in range(5):
        await peer.send_output(command, n, str(n))
    await peer.send(Chunk(id=command, n=5, kind="stderr", payload=b"\xff\x00"))
    await peer.send(End(id=command, total=6))
    await api.end(command)
    lines = await api.lines(command, 3, follow=False)
    assert [line.get("text") for line in lines[:2]] == ["3", "4"]
    assert (lines[2]["kind"], lines[2]["base64"]) == ("stderr", "/wA=")
    assert lines[3]["end"]["state"] == "ok"
    assert [line for line in await api.lines(command, 6, follow=False) if "end" not in line] == []
    seen = await api.get(command)
    assert (seen["state"], seen["results"], seen["counts"]) == ("ok", 6, {"ok": 1})


async def test_refused_and_failed_commands_have_their_error(
    gateway: GatewayProcess, api: GatewayApi, dial: DialAgent
) -> None:
    peer = await dial(gateway)
    await peer.greet()
    refused, failed = await api.start(peer.agent), await api.start(peer.agent)
    assert {(await peer.command()).id for _ in range(2)} == {refused, failed}
    await peer.send(Ack(id=refused, state="refused", error=Error(code="unknown_method", message="no such method")))
    await peer.send(Ack(id=failed))
    await peer.send(End(id=failed, total=0, state="error", error=Error(code="boom", details={"line": 3})))
    first, second = await api.end(refused), await api.end(failed)
    assert (first["state"], first["error"]["code"]) == ("failed", "unknown_method")
    assert (second["state"], second["error"]["code"], second["error"]["details"]) == ("failed", "boom", {"line": 3})


@pytest.mark.parametrize(
    ("body", "status", "field"),
    [
        (b"not json", 400, None),
        (b'{"agent":"a","method":"m","agent":"b"}', 400, None),
        (b'{"agent":"a","method":"m","\\u0061gent":"b"}', 400, None),
        (b'{"agent":"a","method":"m","on_offline":{"queue":1,"queue":2}}', 400, None),
        (b'{"agent":"a","method":"m","payload":' + b"[" * 100_000 + b"]" * 100_000 + b"}", 400, None),
        (b"{}", 422, "agent"),
        (b'{"agent":"a"}', 422, "method"),
        (b'{"agent":"a b","method":"m"}', 422, "agent"),
        (b'{"agent":"a","method":""}', 422, "method"),
        (b'{"agent":"a","method":"m","deadline":0}', 422, "deadline"),
        (b'{"agent":"a","method":"m","deadline":"1"}', 422, "deadline"),
        (b'{"agent":"a","method":"m","lane":"control"}', 422, "lane"),
        (b'{"agent":"a","method":"m","color":"red"}', 422, "color"),
        (b'{"agent":"a","method":"m","on_offline":{"queue":-1}}', 422, "on_offline.queue"),
        (b'{"agent":"a","method":"m","payload":"' + b"x" * (513 << 10) + b'"}', 422, "payload"),
        (b'{"agent":"a","method":"m","payload":"' + b"x" * (1 << 20) + b'"}', 413, None),
    ],
)
async def test_an_invalid_body_names_the_field(api: GatewayApi, body: bytes, status: int, field: str | None) -> None:
    answer = await api.http.post("/v1/commands", content=body)
    problem = answer.json()
    assert answer.status_code == status, problem
    assert answer.headers["content-type"] == "application/problem+json"
    assert problem["status"] == status
    assert problem["code"] in ("invalid_request", "malformed_body", "body_too_large")
    if field is not None:
        assert problem["field"] == field


@pytest.mark.parametrize(
    ("member", "detail"),
    [
        ({"lane": "control"}, 'invalid lane "control": expected "interactive" or "bulk"'),
        ({"on_offline": "wait"}, 'invalid on_offline "wait": expected "fail" or an object with queue'),
        ({"on_offline": {"queue": -1}}, "invalid on_offline.queue -1: expected a number > 0 and <= 604800"),
        ({"on_offline": {}}, "missing member queue of on_offline"),
        ({"deadline": "1"}, 'invalid deadline "1": expected a number >= 0.1 and <= 86400'),
        (
            {"method": "m m"},
            'invalid method "m m": expected a method\'s name (1 to 64 characters of A-Z a-z 0-9 . _ -,',
        ),
        ({"agent": "a b"}, 'invalid agent "a b": expected an agent\'s id (1 to 128 characters of A-Z a-z 0-9 . _ -,'),
        ({"color": "red"}, 'unknown member "color" of the body: expected agent, method, payload, deadline, lane,'),
    ],
)
async def test_the_rule_for_an_invalid_member_is_stated_in_words(
    api: GatewayApi, member: dict[str, object], detail: str
) -> None:
    answer = await api.post({"agent": "a", "method": "m", **member})
    assert (answer.status_code, detail in answer.json()["detail"]) == (422, True), answer.text


async def test_the_api_requires_the_platform_token(gateway: GatewayProcess, api: GatewayApi) -> None:
    for header in ("", "Bearer development-agent-token", "Bearer x"):
        answer = await api.http.get("/v1/agents", headers={"authorization": header})
        assert answer.status_code == 401
        assert answer.json()["code"] == "unauthorized"


async def test_unknown_agents_and_commands_are_404(api: GatewayApi) -> None:
    unknown = "01890a5d-ac96-774b-bcce-b302099a8057"
    answers = [
        await api.post({"agent": "never-seen", "method": "m"}),
        await api.http.get("/v1/agents/never-seen"),
        await api.http.get(f"/v1/commands/{unknown}"),
        await api.http.get(f"/v1/commands/{unknown}/results"),
        await api.http.delete(f"/v1/commands/{unknown}"),
        await api.http.post(f"/v1/commands/{unknown}/input?n=0", content=b"x"),
    ]
    assert [a.status_code for a in answers] == [404] * 6
    assert [a.json()["code"] for a in answers] == ["agent_unknown"] * 2 + ["command_unknown"] * 4
    bad = await api.http.get("/v1/commands/not-a-uuid")
    assert (bad.status_code, bad.json()["field"]) == (422, "id")


async def test_the_same_idempotency_key_is_the_same_command(
    gateway: GatewayProcess, api: GatewayApi, dial: DialAgent
) -> None:
    peer = await dial(gateway)
    await peer.greet()
    body = {"agent": peer.agent, "method": "once"}
    first = await api.post(body, **{"idempotency-key": f"k-{peer.agent}"})
    again = await api.post(body, **{"idempotency-key": f"k-{peer.agent}"})
    other = await api.post({**body, "method": "twice"}, **{"idempotency-key": f"k-{peer.agent}"})
    assert first.json()["id"] == again.json()["id"]
    assert again.headers["idempotency-replayed"] == "true"
    assert (other.status_code, other.json()["code"]) == (422, "idempotency_conflict")
    cmd = await peer.command()
    await peer.send(Ack(id=cmd.id), End(id=cmd.id, total=0))
    assert (await api.end(first.json()["id"]))["state"] == "ok"
    marker = await api.start(peer.agent, "marker")
    assert (await peer.command()).id == marker  # nothing came in between: it was sent once


async def test_cancel_reaches_the_agent(gateway: GatewayProcess, api: GatewayApi, dial: DialAgent) -> None:
    peer = await dial(gateway)
    await peer.greet()
    command = await api.start(peer.agent)
    await peer.command()
    await peer.send(Ack(id=command))
    answer = await api.http.delete(f"/v1/commands/{command}")
    assert answer.status_code == 202
    assert (await peer.expect(Cancel)).id == command
    await peer.send(End(id=command, total=0, state="cancelled"))
    assert (await api.end(command))["state"] == "cancelled"
    assert (await api.http.delete(f"/v1/commands/{command}")).json()["state"] == "cancelled"


async def test_an_unconfirmed_cancel_ends_the_command_all_the_same(
    gateway: GatewayProcess, api: GatewayApi, dial: DialAgent
) -> None:
    peer = await dial(gateway)
    await peer.greet()
    command = await api.start(peer.agent)
    await peer.command()
    await peer.send(Ack(id=command))
    await api.http.delete(f"/v1/commands/{command}")
    end = await api.end(command)
    assert (end["state"], end["error"]["code"]) == ("cancelled", "cancel_unconfirmed")


async def test_a_command_to_an_agent_that_never_answers_ends_at_its_deadline(
    gateway: GatewayProcess, api: GatewayApi, dial: DialAgent
) -> None:
    peer = await dial(gateway)
    await peer.greet()
    command = await api.start(peer.agent, deadline=1)
    await peer.command()
    end = await api.end(command)
    assert (end["state"], end["error"]["code"]) == ("timeout", "deadline")
    assert (await peer.expect(Cancel)).id == command
    # A late answer changes nothing, and is receipted: the agent need not keep it.
    await peer.send_output(command, 0, "late")
    await peer.send(End(id=command, total=1))
    while (await peer.expect(Rx)).s < 2:
        pass
    assert (await api.get(command))["state"] == "timeout"
    assert (await api.agent(peer.agent))["open_commands"] == []


async def test_input_reaches_the_agent_in_order_and_once(
    gateway: GatewayProcess, api: GatewayApi, dial: DialAgent
) -> None:
    peer = await dial(gateway)
    await peer.greet()
    command = await api.start(peer.agent)
    await peer.command()
    await peer.send(Ack(id=command))
    path = f"/v1/commands/{command}/input"
    assert (await api.http.post(f"{path}?n=0", content=b"one ")).status_code == 204
    assert (await api.http.post(f"{path}?n=0", content=b"one ")).status_code == 204  # repeated: stored once
    other = await api.http.post(f"{path}?n=0", content=b"two ")
    assert (other.status_code, other.json()["code"]) == (409, "input_conflict")
    assert (await api.http.post(f"{path}?n=0&end=true", content=b"")).status_code == 409
    gap = await api.http.post(f"{path}?n=5", content=b"x")
    assert (gap.status_code, gap.json()["expected"]) == (422, 1)
    assert (await api.http.post(f"{path}?n=1&end=true", content=b"two")).status_code == 204
    first, second, end = await peer.expect(Chunk), await peer.expect(Chunk), await peer.expect(End)
    assert [(c.n, c.kind, c.payload) for c in (first, second)] == [(0, "stdin", b"one "), (1, "stdin", b"two")]
    assert end.total == 2
    late = await api.http.post(f"{path}?n=3", content=b"x")
    assert late.status_code == 422
    assert (await api.http.post(f"{path}?n=9", content=bytes((64 << 10) + 1))).status_code == 413


async def test_an_offline_agent_and_one_that_is_away_are_distinguished(
    gateway: GatewayProcess, api: GatewayApi, dial: DialAgent
) -> None:
    peer = await dial(gateway)
    await peer.greet()
    await peer.socket.close()

    async def is_away() -> bool:
        return bool((await api.agent(peer.agent))["state"] == "away")

    await until(is_away)
    away = await api.post({"agent": peer.agent, "method": "m"})
    assert (away.status_code, away.json()["presence"]) == (202, "away")
    assert "closed with 1000" in away.json()["why"]
    # It comes back within the time that an away agent is waited for, and finds the command.
    again = await dial(gateway, peer.agent)
    await again.greet(boot="boot-2")
    cmd = await again.command()
    assert cmd.id == away.json()["id"]
    await again.send(Ack(id=cmd.id), End(id=cmd.id, total=0))
    assert (await api.end(cmd.id))["state"] == "ok"


async def test_a_command_may_wait_for_an_absent_agent(
    gateway: GatewayProcess, api: GatewayApi, dial: DialAgent
) -> None:
    peer = await dial(gateway)
    await peer.greet()
    await peer.socket.close()
    command = await api.start(peer.agent, on_offline={"queue": 60}, deadline=5)
    short = await api.start(peer.agent, on_offline={"queue": 1}, deadline=1)
    end = await api.end(short)
    assert (end["state"], end["error"]["code"]) == ("offline", "agent_offline")
    again = await dial(gateway, peer.agent)
    await again.greet(boot="boot-2")
    assert (await again.command()).id == command


@pytest.mark.parametrize("octets", [b"\xff\xfe", b'{"a":1} {"b":2}', b"[" * 100_000, b"NaN"])
async def test_a_result_that_is_not_json_is_delivered_as_base64(
    gateway: GatewayProcess, api: GatewayApi, dial: DialAgent, octets: bytes
) -> None:
    peer = await dial(gateway)
    await peer.greet()
    await api.start(peer.agent)
    cmd = await peer.command()
    await peer.send(Ack(id=cmd.id), End(id=cmd.id, total=0, payload=octets))
    end = await api.end(cmd.id)
    assert (end["state"], end["payload"]) == ("ok", None)
    assert base64.b64decode(end["payload_base64"]) == octets
    await api.start(peer.agent)
    cmd = await peer.command()
    await peer.send(Ack(id=cmd.id), End(id=cmd.id, total=0, payload=b"null"))
    assert "payload_base64" not in await api.end(cmd.id)


async def test_agents_are_listed_page_by_page(gateway: GatewayProcess, api: GatewayApi, dial: DialAgent) -> None:
    peers = [await dial(gateway) for _ in range(8)]
    await asyncio.gather(*(peer.greet(facts={"os": "plan9"}) for peer in peers))
    seen: list[str] = []
    cursor = None
    while True:
        page = (await api.http.get("/v1/agents", params={"limit": 3, **({"cursor": cursor} if cursor else {})})).json()
        assert len(page["agents"]) <= 3
        seen += [agent["id"] for agent in page["agents"]]
        cursor = page["cursor"]
        if cursor is None:
            break
    assert len(seen) == len(set(seen))
    assert {peer.agent for peer in peers} <= set(seen)
    one = await api.agent(peers[0].agent)
    assert (one["state"], one["node"], one["facts"]) == ("online", "node-1", {"os": "plan9"})
    for cursor in ("x", "64:", "1:a b", "-1:a"):
        assert (await api.http.get("/v1/agents", params={"cursor": cursor})).status_code == 422


async def test_events_get_their_receipt_once_stored(gateway: GatewayProcess, dial: DialAgent) -> None:
    peer = await dial(gateway)
    await peer.greet()
    await peer.send(Event(id="e1", type="disk.full", payload=b"{}"), Event(id="e2", type="noise", qos=0))
    assert (await peer.expect(Rx)).s == 1


async def test_metrics_and_health_are_served_on_the_admin_port(gateway: GatewayProcess, api: GatewayApi) -> None:
    metrics = await api.http.get(f"{gateway.admin}/metrics")
    assert metrics.status_code == 200
    assert "fairlead_links " in metrics.text
    assert (await api.http.get(f"{gateway.admin}/livez")).text == "ok\n"
    assert (await api.http.get(f"{gateway.admin}/readyz")).text == "ok\n"
