"""Events whose payload is made to break whoever passes them on."""

from __future__ import annotations

import json

import pytest

from fairlead.fleet.events.event_log import Position, StoredEvent
from fairlead.routing.sinks.webhook import body_of
from fairlead.wire.messages import Event, Rx

from support.gateway.platform_api import GatewayApi
from support.gateway.process import GatewayProcess
from support.gateway.scripted_agent import DialAgent

DEPTHS = range(760, 1_010)
"""How deep JSON may be nested to be read, and to be written again, differs by a few levels, and with the stack."""


def nested(depth: int) -> bytes:
    return b"[" * depth + b"\n" + b"]" * depth


async def test_no_depth_of_a_payload_ends_the_streams_of_events(
    gateway: GatewayProcess, api: GatewayApi, dial: DialAgent
) -> None:
    """A reader whose parser fails at one event fails at it again with each attempt, and gets no later one."""
    hostile = await dial(gateway)
    await hostile.greet()
    await hostile.send(*(Event(id=f"{hostile.agent} {depth}", type="t", payload=nested(depth)) for depth in DEPTHS))
    await hostile.send(Event(id=f"{hostile.agent} last", type="t", payload=b"{}"))
    while (await hostile.expect(Rx)).s < len(DEPTHS) + 1:
        pass
    for more in ({}, {"group": "one", "window": "500"}):
        answer = await api.http.get("/v1/events", params={"agent": hostile.agent, **more})
        lines = [json.loads(line) for line in answer.text.splitlines() if line]
        assert not any("error" in line for line in lines)
        ids = [line["id"].split()[1] for line in lines if "id" in line]
        assert ids[-1] == "last" or more, ids[-1]
        assert ids[:3] == [str(depth) for depth in DEPTHS[:3]]


@pytest.mark.parametrize("depth", DEPTHS)
def test_every_event_has_a_body_for_a_webhook(depth: int) -> None:
    body = json.loads(body_of(StoredEvent(Position(1, 0), "a", "t", "i", 1, nested(depth))))
    assert ("data" in body) is not ("data_base64" in body)
