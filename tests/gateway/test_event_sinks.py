"""Webhooks against a real receiver: delivered at least once, signed, retried, bounded, owned by one node at a time."""

from __future__ import annotations

import asyncio
import base64
import json
import signal
import ssl
from pathlib import Path
from typing import Any

import httpx2
from aiohttp import web

from fairlead.audit.verification import read_lines
from fairlead.fleet.events.event_log import EventLog
from fairlead.routing.sinks.sinks_file import parse_sinks
from fairlead.routing.sinks.webhook_client import SendOutcome, WebhookClient
from fairlead.store.embedded_valkey.server import EmbeddedValkey

from support.carrier.tls_site import make_certificate
from support.fixtures import RedisOf
from support.gateway.metrics import metric
from support.gateway.platform_api import GatewayApi, MakeGatewayApi
from support.gateway.process import GatewayProcess, MakeGateway
from support.gateway.roles import as_caller, create_token, write_roles
from support.gateway.scripted_agent import DialAgent
from support.gateway.webhook_receiver import WebhookReceiver, receiving
from support.plain_http import plain_client
from support.scripted_server import scripted
from support.waiting import until

SECRETS = (b"first secret of the sink", b"second secret of the sink")
PLENTY = 1 << 26
TENANTS = "roles: {}\nbindings: []\ntenants:\n  acme: {}\n  globex: {}\n"


def text_of(secret: bytes) -> str:
    return f"whsec_{base64.b64encode(secret).decode()}"


def write_sinks(path: Path, **sinks: dict[str, Any]) -> Path:
    """Replace the file at once, as every deployment of files does."""
    fresh = path.with_suffix(".new")
    lines = []
    for name, members in sinks.items():
        table = {"secrets": [text_of(SECRETS[0])], "allow": ["127.0.0.1/32"], **members}
        lines += [f"[sinks.{name}]", *(f"{member} = {json.dumps(value)}" for member, value in table.items())]
    fresh.write_text("\n".join(lines))
    fresh.replace(path)
    return path


async def sink_of(api: GatewayApi, name: str = "siem") -> dict[str, Any]:
    answer = await api.http.get("/v1/event-sinks")
    assert answer.status_code == 200, answer.text
    return dict(next(one for one in answer.json()["sinks"] if one["name"] == name))


async def letters_of(api: GatewayApi, name: str = "siem") -> list[dict[str, Any]]:
    answer = await api.http.get(f"/v1/event-sinks/{name}/dead-letters")
    assert answer.status_code == 200, answer.text
    return list(answer.json()["dead_letters"])


async def add(log: EventLog, *ids: str, agent: str = "web-1", kind: str = "disk.full") -> None:
    for one in ids:
        await log.add(agent, kind, one, 1_767_225_600_000, b'{"free":5}', PLENTY)


async def test_events_are_delivered_signed_and_chosen(
    make_gateway: MakeGateway, own_valkey: EmbeddedValkey, api_of: MakeGatewayApi, redis_of: RedisOf, dial: DialAgent,
    tmp_path: Path,
) -> None:  # fmt: skip
    log = EventLog(await redis_of(own_valkey))
    async with receiving() as receiver:
        chosen = {"url": receiver.url, "type": "disk.*", "selector": "env=prod"}
        sinks = write_sinks(tmp_path / "sinks.toml", siem=chosen)
        node = make_gateway(own_valkey.url, "--event-sinks", str(sinks), "--audit-log", str(tmp_path / "audit"))
        agent = await dial(node, "web-1")
        await agent.greet()
        await api_of(node).http.patch("/v1/agents/web-1", json={"labels": {"env": "prod"}})
        await add(log, "e-1", "e-2")
        await add(log, "other-type", kind="net.up")
        await add(log, "other-agent", agent="web-2")
        await add(log, "e-3")
        await until(lambda: len(receiver.requests) == 3)
        first = next(one for one in receiver.requests if one.event["id"] == "e-1")  # they come in any order
        assert first.headers["content-type"] == "application/cloudevents+json"
        assert {**first.event, "offset": ""} == {
            "specversion": "1.0", "id": "e-1", "source": "/v1/agents/web-1", "type": "disk.full", "agent": "web-1",
            "offset": "", "time": "2026-01-01T00:00:00.000Z", "datacontenttype": "application/json",
            "data": {"free": 5},
        }  # fmt: skip
        assert first.signed_by(SECRETS[0])
        assert not first.signed_by(SECRETS[1])
        # A secret is replaced: for a while both sign, and a file that cannot be used changes nothing.
        write_sinks(sinks, siem={**chosen, "secrets": [text_of(SECRETS[1]), text_of(SECRETS[0])]})

        async def signed_by_both() -> bool:
            await add(log, f"more-{len(receiver.requests)}")
            return all(receiver.requests[-1].signed_by(secret) for secret in SECRETS)

        await until(signed_by_both)
        (tmp_path / "wrong.toml").write_text("[sinks.siem]\n")
        (tmp_path / "wrong.toml").replace(sinks)
        await until(lambda: "the file of sinks cannot be used" in node.log())
        before = len(receiver.accepted)
        await add(log, "still")
        await until(lambda: "still" in receiver.accepted[before:])

        async def settled() -> bool:
            one = await sink_of(api_of(node))
            return (one["pending"], one["lag"], one["dead_letters"], one["error"]) == (0, 0, 0, None)

        await until(settled)
        shown = await sink_of(api_of(node))
        assert (shown["host"], shown["node"], shown["type"]) == (f"127.0.0.1:{receiver.port}", "node-1", "disk.*")
    lines = [json.loads(line) for line in (tmp_path / "audit").glob("*.jsonl").__next__().read_text().splitlines()]
    changed = [line for line in lines if line["action"] == "sinksChanged"]
    assert [line["detail"] for line in changed] == ["siem", "siem"]
    assert changed[0]["digest"] != changed[1]["digest"]
    assert text_of(SECRETS[0]) not in node.log()


async def test_nothing_of_a_tenant_that_was_removed_is_delivered(
    make_gateway: MakeGateway, own_valkey: EmbeddedValkey, redis_of: RedisOf, tmp_path: Path
) -> None:
    """Neither what is kept of it, nor what comes from a node that has not read the file yet."""
    log, roles = EventLog(await redis_of(own_valkey)), tmp_path / "roles.yaml"
    write_roles(roles, TENANTS)
    async with receiving() as receiver:
        sinks = write_sinks(
            tmp_path / "sinks.toml",
            theirs={"url": receiver.url, "tenant": "acme"}, others={"url": receiver.url, "tenant": "globex"},
        )  # fmt: skip
        node = make_gateway(own_valkey.url, "--event-sinks", str(sinks), "--roles", str(roles))
        await add(log, "e-1", agent="/acme/web-1")
        await until(lambda: "e-1" in receiver.accepted)
        write_roles(roles, TENANTS.replace("  acme: {}\n", ""))
        await until(lambda: _owns(node, 1))
        await add(log, "e-2", agent="/acme/web-1")
        for one in ("a", "b"):  # the second one is looked for after the first was delivered
            await add(log, one, agent="/globex/web-1")
            await until(lambda: one in receiver.accepted)  # noqa: B023  # it is awaited here
        assert receiver.accepted == ["e-1", "a", "b"]
        write_roles(roles, TENANTS)
        await until(lambda: "e-2" in receiver.accepted)


async def _owns(node: GatewayProcess, count: int) -> bool:
    return await metric(node, "fairlead_event_sinks_owned") == count


async def test_a_failed_attempt_is_repeated_under_the_same_id_while_others_are_delivered(
    make_gateway: MakeGateway, own_valkey: EmbeddedValkey, redis_of: RedisOf, tmp_path: Path
) -> None:
    log = EventLog(await redis_of(own_valkey))
    async with receiving() as receiver:
        receiver.answer = lambda one: 503 if one.event["id"] == "bad" and len(tries(receiver)) == 1 else 204
        sinks = write_sinks(tmp_path / "sinks.toml", siem={"url": receiver.url})
        node = make_gateway(own_valkey.url, "--event-sinks", str(sinks))
        await add(log, "bad", *(f"e-{n}" for n in range(40)))
        await until(lambda: len(receiver.accepted) == 41)
        assert receiver.accepted[-1] == "bad"
        first, second = tries(receiver)
        assert first.headers["webhook-id"] == second.headers["webhook-id"]
        assert int(second.headers["webhook-timestamp"]) >= int(first.headers["webhook-timestamp"]) + 2
        assert second.signed_by(SECRETS[0])
        async with plain_client() as http:
            text = (await http.get(f"{node.admin}/metrics")).text
        assert 'fairlead_event_sink_attempts_total{outcome="failed",sink="siem"} 1.0' in text


def tries(receiver: WebhookReceiver) -> list[Any]:
    return [one for one in receiver.requests if one.event["id"] == "bad"]


async def test_dead_letters_are_listed_sent_again_and_discarded(
    make_gateway: MakeGateway, own_valkey: EmbeddedValkey, api_of: MakeGatewayApi, redis_of: RedisOf, tmp_path: Path
) -> None:
    log, good = EventLog(await redis_of(own_valkey)), [False]
    roles = tmp_path / "roles.yaml"
    write_roles(
        roles,
        "roles:\n  web:\n    - {verbs: [events], ids: ['web-*']}\nbindings:\n  - {tokens: [web], roles: [web]}\n",
    )
    async with receiving() as receiver:
        receiver.answer = lambda one: 204 if good[0] else 410 if one.event["id"] == "gone" else 500
        sinks = write_sinks(
            tmp_path / "sinks.toml", siem={"url": receiver.url, "retry_for": 0}, patient={"url": receiver.url}
        )
        audit = tmp_path / "audit"
        node = make_gateway(
            own_valkey.url, "--event-sinks", str(sinks), "--roles", str(roles), "--audit-log", str(audit)
        )
        api = api_of(node)
        await add(log, "e-1", "e-2", "gone")
        await add(log, "secret", agent="db-1")

        async def buried() -> bool:
            return len(await letters_of(api)) == 4 and len(await letters_of(api, "patient")) == 1

        await until(buried)
        assert {(one["event"], one["attempts"], one["error"]) for one in await letters_of(api)} == {
            ("e-1", 1, "answered with the status 500"), ("e-2", 1, "answered with the status 500"),
            ("gone", 1, "answered with the status 410"), ("secret", 1, "answered with the status 500"),
        }  # fmt: skip
        assert [one["event"] for one in await letters_of(api, "patient")] == ["gone"], "which asked for no more"

        async def settled() -> bool:
            one = await sink_of(api)
            return (one["dead_letters"], one["pending"]) == (4, 0)

        await until(settled)
        shown = await sink_of(api)
        assert shown["error"].startswith("answered with the status ")
        web = as_caller(api_of, node, await create_token(api, "web"))
        letters = sorted(await letters_of(api), key=lambda one: one["event"])
        assert {one["event"] for one in await letters_of(web)} == {"e-1", "e-2", "gone"}
        ids = [one["id"] for one in letters]
        path = "/v1/event-sinks/siem/dead-letters"
        assert (await web.http.delete(f"{path}/{ids[3]}")).status_code == 404
        failed = (await api.http.post(f"{path}/retry", json={"ids": ids[:1]})).json()["results"]
        assert failed == [{"id": ids[0], "delivered": False, "error": "answered with the status 500"}]
        good[0] = True
        results = (await web.http.post(f"{path}/retry", json={"ids": ids})).json()["results"]
        assert results == [{"id": id, "delivered": True, "error": None} for id in ids[:3]]
        sent = [line.detail for line in read_lines(audit) if line.action == "retryDeadLetters"]
        assert sent == [f"sink siem {ids[0]}", f"sink siem {' '.join(ids[:3])}"], "not the one that it may not read"
        assert {"e-1", "e-2", "gone"} <= set(receiver.accepted)
        assert (await api.http.delete(f"{path}/{ids[3]}")).status_code == 204
        assert await letters_of(api) == []
        store = await redis_of(own_valkey)
        assert await store.submit("EXISTS", "fl1:dead_letters:{fl1:events}:siem") == 0
        assert await store.submit("EXISTS", "fl1:dead_letter_bytes:{fl1:events}:siem") == 0


async def test_another_node_goes_on_when_the_owner_is_killed(
    make_gateway: MakeGateway, own_valkey: EmbeddedValkey, api_of: MakeGatewayApi, redis_of: RedisOf, tmp_path: Path
) -> None:
    log = EventLog(await redis_of(own_valkey))
    async with receiving() as receiver:
        sinks = write_sinks(tmp_path / "sinks.toml", siem={"url": receiver.url})
        nodes = {
            name: make_gateway(own_valkey.url, "--event-sinks", str(sinks), name=name) for name in ("node-1", "node-2")
        }
        apis = {name: api_of(node) for name, node in nodes.items()}

        async def delivering() -> set[str]:
            async with plain_client() as http:
                texts = {name: (await http.get(f"{node.admin}/metrics")).text for name, node in nodes.items()}
            return {name for name, text in texts.items() if "fairlead_event_sinks_owned 1.0" in text}

        async def agreed() -> bool:
            """Both nodes name the same owner, and it alone has begun to deliver."""
            named = {(await sink_of(api))["node"] for api in apis.values()}
            return len(named) == 1 and await delivering() == named

        await until(agreed)
        await add(log, *(f"e-{n}" for n in range(20)))

        async def settled() -> bool:
            """All are delivered, and Redis knows it: otherwise they come again."""
            one = await sink_of(apis["node-1"])
            return len(receiver.accepted) >= 20 and (one["pending"], one["lag"]) == (0, 0)

        await until(settled)
        owner = (await sink_of(apis["node-1"]))["node"]
        nodes.pop(owner).signal(signal.SIGKILL)
        await add(log, *(f"e-{n}" for n in range(20, 40)))
        await until(lambda: len(set(receiver.accepted)) == 40)
        (left,) = nodes
        assert (await sink_of(apis[left]))["node"] == left
        assert sorted(receiver.accepted) == sorted(f"e-{n}" for n in range(40)), "and nothing twice"


async def test_only_nodes_that_have_a_file_of_sinks_own_any(
    make_gateway: MakeGateway, own_valkey: EmbeddedValkey, api_of: MakeGatewayApi, redis_of: RedisOf, tmp_path: Path
) -> None:
    """Otherwise nobody would deliver for the sinks that fall to another node, as while a fleet gets its first file."""
    log, names = EventLog(await redis_of(own_valkey)), [f"siem-{n}" for n in range(8)]
    for name in ("node-2", "node-3"):
        make_gateway(own_valkey.url, name=name)
    async with receiving() as receiver:
        sinks = write_sinks(tmp_path / "sinks.toml", **{name: {"url": receiver.url} for name in names})
        node = make_gateway(own_valkey.url, "--event-sinks", str(sinks), name="node-1")
        api = api_of(node)

        async def knows_all() -> bool:
            return len((await api.http.get("/v1/nodes")).json()["nodes"]) == 3

        await until(knows_all)
        assert {(await sink_of(api, name))["node"] for name in names} == {"node-1"}
        await add(log, "e-1")
        await until(lambda: receiver.accepted.count("e-1") == len(names))


async def test_a_driver_that_is_replaced_or_stopped_finishes_what_is_under_way(
    make_gateway: MakeGateway, own_valkey: EmbeddedValkey, api_of: MakeGatewayApi, redis_of: RedisOf, tmp_path: Path
) -> None:
    """Its file changes, and then its node ends, while the receiver has not answered: nothing is sent a second time."""
    log = EventLog(await redis_of(own_valkey))
    async with receiving() as receiver:
        sinks = write_sinks(tmp_path / "sinks.toml", siem={"url": receiver.url, "timeout": 10})
        node = make_gateway(own_valkey.url, "--event-sinks", str(sinks))
        api = api_of(node)

        async def closed() -> bool:
            try:
                await api.http.get("/v1/event-sinks")
            except httpx2.TransportError:
                return True
            return False

        receiver.open.clear()
        await add(log, "e-0")
        await until(lambda: len(receiver.requests) == 1)
        write_sinks(sinks, siem={"url": receiver.url, "timeout": 11})
        await until(lambda: "read the file of sinks" in node.log())
        receiver.open.set()
        await until(lambda: receiver.accepted == ["e-0"])
        receiver.open.clear()
        await add(log, "e-1")
        await until(lambda: len(receiver.requests) == 2)
        node.signal(signal.SIGTERM)
        await until(closed)
        receiver.open.set()
        assert await asyncio.to_thread(node.wait) == 0
        node.start()

        async def settled() -> bool:
            one = await sink_of(api)
            return (one["pending"], one["lag"]) == (0, 0)

        await until(settled)
        assert [one.event["id"] for one in receiver.requests] == ["e-0", "e-1"]


async def test_nothing_is_sent_where_it_must_not_go(
    make_gateway: MakeGateway, own_valkey: EmbeddedValkey, api_of: MakeGatewayApi, redis_of: RedisOf, tmp_path: Path
) -> None:
    log = EventLog(await redis_of(own_valkey))
    async with receiving() as receiver, receiving() as elsewhere:
        receiver.answer = lambda _: web.Response(status=307, headers={"location": elsewhere.url})
        secure = elsewhere.url.replace("http://", "https://")
        sinks = write_sinks(
            tmp_path / "sinks.toml",
            redirecting={"url": receiver.url, "retry_for": 0},
            inside={"url": secure, "retry_for": 0, "allow": []},
            named={"url": secure.replace("127.0.0.1", "localhost"), "retry_for": 0, "allow": []},
            metadata={"url": "http://169.254.169.254/latest", "retry_for": 0, "allow": ["127.0.0.1/32"]},
        )
        api = api_of(make_gateway(own_valkey.url, "--event-sinks", str(sinks)))
        await add(log, "e-1")
        errors: dict[str, str] = {}

        async def all_dead() -> bool:
            for name in ("redirecting", "inside", "named", "metadata"):
                errors.update([(name, one["error"]) for one in await letters_of(api, name)])
            return len(errors) == 4

        await until(all_dead)
        assert errors["redirecting"].startswith("answered with the status 307")
        assert "127.0.0.1 is loopback" in errors["inside"]
        assert "127.0.0.1 is loopback" in errors["named"]
        assert "169.254.169.254 is link-local" in errors["metadata"]
        assert len(receiver.requests) == 1
        assert elsewhere.requests == []


async def test_certificates_are_checked_for_the_name_and_answers_have_a_deadline(
    make_gateway: MakeGateway, own_valkey: EmbeddedValkey, api_of: MakeGatewayApi, redis_of: RedisOf, tmp_path: Path
) -> None:
    certificate, key = make_certificate(tmp_path, "localhost")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    log, left = EventLog(await redis_of(own_valkey)), asyncio.Event()

    async def stall(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()  # until the other end closes
        writer.close()
        await writer.wait_closed()
        left.set()

    async with receiving(context) as receiver, scripted(stall) as port:
        allow, ca = ["127.0.0.1/32", "::1/128"], str(certificate)
        by_address = receiver.url.replace("localhost", "127.0.0.1")
        sinks = write_sinks(
            tmp_path / "sinks.toml",
            trusted={"url": receiver.url, "ca": ca, "allow": allow},
            untrusted={"url": receiver.url, "retry_for": 0, "allow": allow},
            other_name={"url": by_address, "ca": ca, "retry_for": 0},
            silent={"url": f"http://127.0.0.1:{port}/", "timeout": 1},
        )
        api = api_of(make_gateway(own_valkey.url, "--event-sinks", str(sinks)))
        await add(log, "e-1")
        await until(lambda: receiver.accepted == ["e-1"])
        errors: dict[str, str] = {}

        async def all_dead() -> bool:
            for name in ("untrusted", "other_name"):
                errors.update([(name, one["error"]) for one in await letters_of(api, name)])
            return len(errors) == 2

        await until(all_dead)
        assert "certificate verify failed" in errors["untrusted"].lower()
        assert "certificate verify failed" in errors["other_name"].lower()
        await until(left.is_set)  # an attempt closes its connection, after it has told what went wrong
        assert (await sink_of(api, "silent"))["error"] == "no answer within 1 s"


async def test_attempts_that_begin_at_once_share_one_client(tmp_path: Path) -> None:
    """Each client has connections of its own, and only one is closed at the end."""
    async with receiving() as receiver:
        path = write_sinks(tmp_path / "sinks.toml", siem={"url": receiver.url})
        (sink,) = parse_sinks(path.read_bytes(), str(path))
        client = WebhookClient(sink)
        outcomes = await asyncio.gather(*(client.send(b'{"id": "e"}', {"webhook-id": str(n)}) for n in range(8)))
        assert outcomes == [SendOutcome()] * 8
        assert receiver.transports
        await client.aclose()
        await until(lambda: not receiver.transports)


async def test_events_that_were_removed_before_a_sink_had_them_are_counted(
    make_gateway: MakeGateway, own_valkey: EmbeddedValkey, api_of: MakeGatewayApi, redis_of: RedisOf, tmp_path: Path
) -> None:
    log, store = EventLog(await redis_of(own_valkey)), await redis_of(own_valkey)
    async with receiving() as receiver:
        sinks = write_sinks(tmp_path / "sinks.toml", siem={"url": receiver.url})
        node = make_gateway(own_valkey.url, "--event-sinks", str(sinks))
        await add(log, "e-0")
        await until(lambda: receiver.accepted == ["e-0"])
        node.stop()
        for n in range(1, 200):
            await log.add(f"web-{n % 40}", "t", f"e-{n}", 1, b"x" * 1_000, 100_000)
        node.start()
        await until(lambda: "e-199" in receiver.accepted)
        assert "events before" in node.log()
        assert (await sink_of(api_of(node)))["lost_at"] is not None
        assert await store.submit("ZCARD", "fl1:event_groups:{fl1:events}") == 1
        assert (await api_of(node).http.get("/v1/event-groups")).json() == {"groups": []}, "sinks are listed apart"
