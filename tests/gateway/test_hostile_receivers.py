"""Sinks under attack: events that a receiver refuses, floods of repetitions, names that lead to this machine."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from pathlib import Path
from typing import Any

from gateway.test_event_sinks import SECRETS, add, letters_of, sink_of, text_of, write_sinks

from fairlead.fleet.events.event_groups import PENDING_LIMIT
from fairlead.fleet.events.event_log import EventLog
from fairlead.routing.sinks.sinks_file import parse_sinks
from fairlead.routing.sinks.webhook_client import WebhookClient
from fairlead.store.embedded_valkey.server import EmbeddedValkey

from support.fixtures import RedisOf
from support.gateway.platform_api import MakeGatewayApi
from support.gateway.process import MakeGateway
from support.gateway.webhook_receiver import receiving
from support.waiting import until


def own_address() -> str:
    """An address of this machine that is not one of its loopback interface."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # which sends nothing
        return str(probe.getsockname()[0])


async def test_an_agent_whose_events_a_receiver_refuses_does_not_stop_those_of_others(
    make_gateway: MakeGateway, own_valkey: EmbeddedValkey, api_of: MakeGatewayApi, redis_of: RedisOf, tmp_path: Path
) -> None:
    log = EventLog(await redis_of(own_valkey))
    async with receiving() as receiver:
        receiver.answer = lambda one: 413 if one.event["agent"] == "bad" else 204
        sinks = write_sinks(tmp_path / "sinks.toml", siem={"url": receiver.url})
        api = api_of(make_gateway(own_valkey.url, "--event-sinks", str(sinks)))
        await add(log, *(f"poison-{n}" for n in range(PENDING_LIMIT)), agent="bad")
        await until(lambda: len(receiver.requests) >= PENDING_LIMIT, 90)
        await add(log, "good")
        await until(lambda: "good" in receiver.accepted, 90)
        assert {one["attempts"] for one in await letters_of(api)} == {3}
        most = Counter(one.event["id"] for one in receiver.requests)
        assert max(most.values()) == 3


async def test_dead_letters_are_sent_again_by_one_request_at_a_time(
    make_gateway: MakeGateway, own_valkey: EmbeddedValkey, api_of: MakeGatewayApi, redis_of: RedisOf, tmp_path: Path
) -> None:
    log = EventLog(await redis_of(own_valkey))
    async with receiving() as receiver:
        receiver.answer = lambda _: 410
        sinks = write_sinks(tmp_path / "sinks.toml", siem={"url": receiver.url})
        api = api_of(make_gateway(own_valkey.url, "--event-sinks", str(sinks)))
        await add(log, *(f"e-{n}" for n in range(16)))

        async def buried() -> bool:
            return len(await letters_of(api)) == 16

        await until(buried)
        path, ids = "/v1/event-sinks/siem/dead-letters/retry", [one["id"] for one in await letters_of(api)]
        before = len(receiver.requests)
        answers = await asyncio.gather(*(api.http.post(path, json={"ids": ids}) for _ in range(20)))
        statuses = Counter(answer.status_code for answer in answers)
        assert statuses.keys() == {200, 503}, statuses
        assert len(receiver.requests) - before == 16 * statuses[200] < 16 * 20
        assert (await api.http.post(path, json={"ids": ids})).status_code == 200


async def test_nothing_is_sent_to_any_address_of_this_machine(
    make_gateway: MakeGateway, own_valkey: EmbeddedValkey, api_of: MakeGatewayApi, redis_of: RedisOf, tmp_path: Path
) -> None:
    address = own_address()
    sinks = write_sinks(
        tmp_path / "sinks.toml",
        inside={"url": f"https://{address}:1/", "retry_for": 0, "allow": []},
        allowed={"url": f"https://{address}:1/", "retry_for": 0, "allow": [address]},
        unreadable={"url": f"https://{'a' * 64}.example.com/", "retry_for": 0},
    )
    api = api_of(make_gateway(own_valkey.url, "--event-sinks", str(sinks)))
    await add(EventLog(await redis_of(own_valkey)), "e-1")
    errors: dict[str, str] = {}

    async def all_dead() -> bool:
        for name in ("inside", "allowed", "unreadable"):
            errors.update([(name, one["error"]) for one in await letters_of(api, name)])
        return len(errors) == 3

    await until(all_dead)
    assert f"{address} is of this machine" in errors["inside"]
    assert "cannot be reached" in errors["allowed"]
    assert "cannot be reached" in errors["unreadable"]
    assert (await sink_of(api, "unreadable"))["pending"] == 0


async def test_attempts_of_one_sink_share_the_look_up_of_its_name() -> None:
    """A name server that does not answer holds a thread for each look-up, and a process has four of them for all."""
    looks, loop = [0], asyncio.get_running_loop()
    real, held = loop.getaddrinfo, asyncio.Event()

    async def counted(*args: Any, **options: Any) -> Any:
        looks[0] += 1
        await held.wait()
        return await real(*args, **options)

    text = f'[sinks.siem]\nurl = "https://localhost:1/"\nsecrets = ["{text_of(SECRETS[0])}"]\ntimeout = 1\n'
    client = WebhookClient(parse_sinks(text.encode(), "f")[0])
    loop.getaddrinfo = counted  # type: ignore[method-assign]
    try:
        assert (await asyncio.gather(*(client.send(b"{}", {}) for _ in range(16))))[0].error == "no answer within 1 s"
        assert looks[0] == 1
        assert (await client.send(b"{}", {})).error == "no answer within 1 s"
        assert looks[0] == 1, "while one has no answer, there is no other"
        held.set()
        assert all(["loopback" in (await client.send(b"{}", {})).error for _ in range(2)])
        assert looks[0] in (2, 3), "and a name is looked up again by later ones"
    finally:
        loop.getaddrinfo = real  # type: ignore[method-assign]
        await client.aclose()
