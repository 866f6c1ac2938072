"""Agents over the API: selectors, labels, disconnection, streams for browsers."""

from __future__ import annotations

import asyncio
import json
import secrets
import signal

import pytest

from fairlead.store.embedded_valkey.server import EmbeddedValkey
from fairlead.wire.close_codes import CloseCode
from fairlead.wire.messages import Ack, Chunk, End, Error, Hb, Rx

from support.gateway.platform_api import GatewayApi, MakeGatewayApi
from support.gateway.process import GatewayProcess, MakeGateway
from support.gateway.scripted_agent import DialAgent
from support.waiting import until


async def listed(api: GatewayApi, **query: str | int) -> list[str]:
    """All ids, page after page."""
    found: list[str] = []
    cursor = ""
    while True:
        answer = await api.http.get("/v1/agents", params={**query, "cursor": cursor})
        assert answer.status_code == 200, answer.text
        found += [agent["id"] for agent in answer.json()["agents"]]
        cursor = answer.json()["cursor"]
        if not cursor:
            return found


async def test_selectors_match_labels_and_facts(gateway: GatewayProcess, api: GatewayApi, dial: DialAgent) -> None:
    fleet = secrets.token_hex(4)
    peers = [await dial(gateway) for _ in range(6)]
    for n, peer in enumerate(peers):
        await peer.greet(facts={"fleet": fleet, "os": "linux" if n % 2 else "windows"})
    for peer in peers[:2]:
        answer = await api.http.patch(f"/v1/agents/{peer.agent}", json={"labels": {"env": "prod", "ring": "1"}})
        assert answer.json() == {"labels": {"env": "prod", "ring": "1"}}
    names = [peer.agent for peer in peers]
    mine = f"fleet={fleet}"
    assert sorted(await listed(api, selector=mine)) == sorted(names)
    assert sorted(await listed(api, selector=mine, limit=1)) == sorted(names)
    assert sorted(await listed(api, selector=f"{mine},os=linux")) == sorted(names[1::2])
    assert sorted(await listed(api, selector=f"{mine},env in (prod,dev)")) == sorted(names[:2])
    assert sorted(await listed(api, selector=f"{mine},env in (prod,dev),os=linux,!retired")) == [names[1]]
    assert await listed(api, selector=f"{mine},fact.env") == []
    await peers[5].socket.close()
    async with asyncio.timeout(20):
        while sorted(await listed(api, selector=mine, state="online")) != sorted(names[:5]):
            await asyncio.sleep(0.05)
    bad = await api.http.get("/v1/agents", params={"selector": "os linux"})
    assert (bad.status_code, bad.json()["field"]) == (422, "selector")
    bad = await api.http.get("/v1/agents", params={"state": "asleep"})
    assert (bad.status_code, bad.json()["field"]) == (422, "state")


async def test_a_duplicate_label_is_refused(gateway: GatewayProcess, api: GatewayApi, dial: DialAgent) -> None:
    peer = await dial(gateway)
    await peer.greet()
    body = b'{"labels":{"env":"prod","env":"dev"}}'
    answer = await api.http.patch(f"/v1/agents/{peer.agent}", content=body)
    assert (answer.status_code, answer.json()["code"]) == (400, "malformed_body")
    assert answer.json()["detail"] == 'duplicate member "env" of labels: give it once'
    assert (await api.agent(peer.agent))["labels"] == {}


async def test_a_payload_is_passed_on_unchanged(gateway: GatewayProcess, api: GatewayApi, dial: DialAgent) -> None:
    """A payload with a member twice is not changed: only its agent reads it."""
    peer = await dial(gateway)
    await peer.greet()
    payload = b'{"agent": 1, "agent":  2}'
    body = b'{"agent":"%s","method":"work","payload":%s}' % (peer.agent.encode(), payload)
    for headers in ({}, {"idempotency-key": f"twice-{peer.agent}"}):
        assert (await api.http.post("/v1/commands", content=body, headers=headers)).status_code == 202
        assert (await peer.command()).payload == payload


async def test_labels_are_set_by_the_platform_and_outlive_links(
    gateway: GatewayProcess, api: GatewayApi, dial: DialAgent
) -> None:
    peer = await dial(gateway)
    await peer.greet(facts={"env": "what the agent says"})
    url = f"/v1/agents/{peer.agent}"
    await api.http.patch(url, json={"labels": {"env": "prod", "owner": "core"}})
    assert (await api.http.patch(url, json={"labels": {"owner": None}})).json() == {"labels": {"env": "prod"}}
    again = await dial(gateway, peer.agent)
    await again.greet(conn=2, facts={"env": "still something else"})
    found = await api.agent(peer.agent)
    assert (found["labels"], found["facts"]["env"]) == ({"env": "prod"}, "still something else")


A_NAME = "expected a label's name (1 to 64 characters of A-Z a-z 0-9 . _ / -, the first a letter or digit)"
A_VALUE = "expected a label's value (1 to 256 characters of A-Z a-z 0-9 . _ : / @ + ~ -) or null"


@pytest.mark.parametrize(
    ("labels", "field", "detail"),
    [
        ({"fine": "x", "a b": "x"}, "labels", f'invalid key "a b" of labels: {A_NAME}'),
        ({"": "x"}, "labels", f'invalid key "" of labels: {A_NAME}'),
        ({"k" * 65: "x"}, "labels", f'invalid key "{"k" * 65}" of labels: {A_NAME}'),
        ({"fine": "x", "a": "x,y"}, "labels[a]", f'invalid labels[a] "x,y": {A_VALUE}'),
        ({"a": ""}, "labels[a]", f'invalid labels[a] "": {A_VALUE}'),
        ({"a": 1}, "labels[a]", f"invalid labels[a] 1: {A_VALUE}"),
        ([], "labels", "invalid labels []: expected an object of at most 64 members"),
        ({f"k{n}": "x" for n in range(65)}, "labels", "expected an object of at most 64 members"),
    ],
)
async def test_invalid_labels_are_refused(api: GatewayApi, labels: object, field: str, detail: str) -> None:
    answer = await api.http.patch("/v1/agents/anybody", json={"labels": labels})
    assert answer.status_code == 422, answer.text
    assert (answer.json()["field"], detail in answer.json()["detail"]) == (field, True), answer.text


async def test_too_many_labels_in_total_are_refused(gateway: GatewayProcess, api: GatewayApi, dial: DialAgent) -> None:
    peer = await dial(gateway)
    await peer.greet()
    url = f"/v1/agents/{peer.agent}"
    assert (await api.http.patch(url, json={"labels": {f"k{n}": "x" for n in range(64)}})).status_code == 200
    answer = await api.http.patch(url, json={"labels": {"one-more": "x"}})
    assert (answer.status_code, "exceed the maximum of 64" in answer.json()["detail"]) == (422, True)
    assert len((await api.agent(peer.agent))["labels"]) == 64


async def test_a_label_for_an_unknown_agent_is_refused(api: GatewayApi) -> None:
    answer = await api.http.patch("/v1/agents/nobody-of-that-name", json={"labels": {"a": "b"}})
    assert (answer.status_code, answer.json()["code"]) == (404, "agent_unknown")


async def test_an_agent_is_disconnected_and_asked_to_reconnect(
    gateway: GatewayProcess, api: GatewayApi, dial: DialAgent
) -> None:
    peer = await dial(gateway)
    await peer.greet()
    answer = await api.http.delete(f"/v1/agents/{peer.agent}/link")
    assert (answer.status_code, answer.json()) == (202, {"id": peer.agent, "node": "node-1"})
    assert await peer.close_code() == CloseCode.DISCONNECTED

    async def is_shown() -> bool:
        found = await api.agent(peer.agent)
        return bool(found["state"] == "away" and found["last_reason"] == "disconnected by the platform: reconnect")

    await until(is_shown)
    answer = await api.http.delete(f"/v1/agents/{peer.agent}/link")
    assert (answer.status_code, answer.json()["code"]) == (409, "agent_offline")


async def test_the_last_changes_of_facts_are_kept(gateway: GatewayProcess, api: GatewayApi, dial: DialAgent) -> None:
    peer = await dial(gateway)
    await peer.greet(facts={"os": "linux", "version": "0", "gone": "x"})
    assert (await api.agent(peer.agent))["fact_changes"] == []
    told: list[dict[str, str]] = [{"os": "linux", "version": "0", "gone": "x"}, {"os": "linux", "version": "0"}]
    told += [{"os": "linux", "version": str(n), "long": "y" * 250, "longer": f"{n:0256}"} for n in range(1, 6)]
    for conn, facts in enumerate(told, 2):
        again = await dial(gateway, agent=peer.agent)
        await again.greet(conn=conn, facts=facts)
    changes = (await api.agent(peer.agent))["fact_changes"]
    assert [change["facts"]["version"] for change in changes] == [
        {"before": str(n - 1), "after": str(n)} for n in range(5, 0, -1)
    ]
    assert changes[-1]["facts"].keys() < {"version", "long", "longer"}
    assert changes[-1]["more"] == 3 - len(changes[-1]["facts"])
    assert changes[0]["at"] > changes[-1]["at"]


async def test_an_agent_reports_its_recent_failures(gateway: GatewayProcess, api: GatewayApi, dial: DialAgent) -> None:
    peer = await dial(gateway)
    await peer.greet()
    assert (await api.agent(peer.agent))["recent_failures"] == []
    command = await api.start(peer.agent, deadline=0.2)
    await peer.command()

    async def is_shown() -> bool:
        failures = (await api.agent(peer.agent))["recent_failures"]
        return bool(failures and failures[0]["message"] == f"command {command} ended as timeout: deadline")

    await until(is_shown)


async def test_the_last_five_failures_are_listed_with_the_latest_first(
    gateway: GatewayProcess, api: GatewayApi, dial: DialAgent
) -> None:
    peer = await dial(gateway)
    await peer.greet()
    expected: list[str] = []

    async def is_shown() -> bool:
        return [one["message"] for one in (await api.agent(peer.agent))["recent_failures"]] == expected[:5]

    for n in range(6):
        command = await api.start(peer.agent)
        await peer.command()
        code = f"fault\n{n}"  # what an agent calls its error stays one line
        await peer.send(Ack(id=command), End(id=command, total=0, state="error", error=Error(code=code)))
        expected.insert(0, f"command {command} ended as failed: fault {n}")
        await until(is_shown)


@pytest.mark.parametrize(
    ("error", "code"), [(None, "refused"), (Error(code="too_busy", message="not now"), "too_busy")]
)
async def test_a_refused_command_is_listed_as_a_failure_with_its_code(
    gateway: GatewayProcess, api: GatewayApi, dial: DialAgent, error: Error | None, code: str
) -> None:
    peer = await dial(gateway)
    await peer.greet()
    command = await api.start(peer.agent)
    await peer.command()
    await peer.send(Ack(id=command, state="refused", error=error))
    assert (await api.end(command))["error"]["code"] == code

    async def is_shown() -> bool:
        failures = (await api.agent(peer.agent))["recent_failures"]
        return bool(failures and failures[0]["message"] == f"command {command} ended as failed: {code}")

    await until(is_shown)


async def test_results_are_sent_as_server_sent_events(
    gateway: GatewayProcess, api: GatewayApi, dial: DialAgent
) -> None:
    peer = await dial(gateway)
    await peer.greet()
    headers = {"accept": "text/event-stream"}
    body = {"agent": peer.agent, "method": "work"}
    call = asyncio.ensure_future(api.http.post("/v1/commands", json=body, headers=headers))
    command = (await peer.command()).id
    await peer.send(Ack(id=command))
    for n in range(3):
        await peer.send(Chunk(id=command, n=n, kind="stdout", payload=f"line\n{n}".encode()))
    await peer.send(End(id=command, total=3))
    answer = await call
    assert answer.headers["content-type"] == "text/event-stream"
    events = [_event(block) for block in answer.text.split("\n\n") if block]
    assert json.loads(events[0]["data"])["id"] == command
    assert [(e["id"], json.loads(e["data"])["text"]) for e in events[1:-1]] == [
        (str(n), f"line\n{n}") for n in range(3)
    ]
    assert json.loads(events[-1]["data"])["end"]["state"] == "ok"
    # A browser connects again by itself and says what it has.
    url = f"/v1/commands/{command}/results?follow=true"
    answer = await api.http.get(url, headers={**headers, "last-event-id": "1"})
    events = [_event(block) for block in answer.text.split("\n\n") if block]
    assert [e.get("id") for e in events] == ["2", None]
    answer = await api.http.get(url, headers={**headers, "last-event-id": "x"})
    assert (answer.status_code, answer.json()["field"]) == (422, "Last-Event-ID")


def _event(block: str) -> dict[str, str]:
    return dict(line.split(": ", 1) for line in block.split("\n"))


async def test_link_stats_are_fetched_from_the_node_of_the_agent(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, dial: DialAgent, api_of: MakeGatewayApi
) -> None:
    holder, other = make_gateway(own_valkey.url, name="node-1"), make_gateway(own_valkey.url, name="node-2")
    peer = await dial(holder)
    welcome = await peer.greet()
    await peer.send(Hb(ts=1, rtt=12.5))
    await peer.expect(Hb)
    command = await api_of(holder).start(peer.agent)
    await peer.command()
    await peer.send(Ack(id=command))
    await peer.expect(Rx)
    for api in (api_of(holder), api_of(other)):
        answer = await api.http.get(f"/v1/agents/{peer.agent}/link")
        assert answer.status_code == 200, answer.text
        found = answer.json()
        assert (found["node"], found["sid"], found["rtt"]) == ("node-1", welcome.sid, 0.0125)
        assert (found["commands"], found["messages"], found["congested"]) == (1, 1, False)
        assert found["age"] >= 0
        assert (await api.agent(peer.agent))["link"]["rtt"] == 0.0125
    holder.signal(signal.SIGSTOP)
    answer = await api_of(other).http.get(f"/v1/agents/{peer.agent}/link")
    page = await api_of(other).agent(peer.agent)
    holder.signal(signal.SIGCONT)
    assert (answer.status_code, "did not answer" in answer.json()["detail"]) == (503, True)
    assert (page["state"], page["node"], page["link"]["rtt"]) == ("online", "node-1", None)


async def test_link_stats_of_an_agent_without_a_link(gateway: GatewayProcess, api: GatewayApi, dial: DialAgent) -> None:
    peer = await dial(gateway)
    await peer.greet()
    await peer.socket.close()

    async def away() -> bool:
        return bool((await api.agent(peer.agent))["state"] == "away")

    await until(away)
    answer = await api.http.get(f"/v1/agents/{peer.agent}/link")
    assert (answer.status_code, answer.json()["code"]) == (409, "agent_offline")


async def test_a_wrong_http_method_is_refused_and_the_right_ones_are_named(api: GatewayApi) -> None:
    answer = await api.http.put("/v1/agents")
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET")
    assert answer.json()["code"] == "method_not_allowed"
