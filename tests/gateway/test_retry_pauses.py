"""An agent that waits as long as its gateway said is never called offline: `away` is longer than every such pause.

Tested with all settings that determine the pauses, and on real nodes.
"""

from __future__ import annotations

import asyncio

import pytest

from fairlead.agent.link.dialer import DIAL_TIMEOUT
from fairlead.fleet.node_table import AWAY_MS
from fairlead.hub.session import RETRY_MS
from fairlead.settings.table import SETTINGS
from fairlead.store.embedded_valkey.server import EmbeddedValkey
from fairlead.wire.retry import HANDED_OUT_MS, RETRY_AFTER_MOST, first_ceiling

from support.gateway.process import MakeGateway
from support.gateway.scripted_agent import DialAgent
from support.plain_http import plain_client

SPREAD = 1.5
"""What docs/protocol.md lets an agent make of a Retry-After."""


def test_an_agent_is_away_longer_than_the_longest_pause_and_one_attempt() -> None:
    assert HANDED_OUT_MS + DIAL_TIMEOUT * 1000 < AWAY_MS
    assert RETRY_AFTER_MOST * SPREAD * 1000 <= HANDED_OUT_MS
    assert max(RETRY_MS) <= HANDED_OUT_MS  # of a bye to an agent that sent too much


@pytest.mark.parametrize("capacity", [1, 18_000, 1_000_000])
@pytest.mark.parametrize("rate", [0.1, 200.0, 100_000.0])
def test_the_first_pause_fits_for_any_capacity_and_expected_rate(capacity: int, rate: float) -> None:
    assert SETTINGS["capacity"].parse(capacity) == capacity
    assert SETTINGS["expected_accept_rate"].parse(rate) == rate
    assert first_ceiling(capacity, rate) <= HANDED_OUT_MS


async def test_a_node_hands_out_no_pause_above_the_longest(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, dial: DialAgent
) -> None:
    """In welcome, and in refusals because of the accept rate or the capacity."""
    slow = make_gateway(own_valkey.url, "--accept-rate", "1")
    welcome = await (await dial(slow, "first")).greet()
    assert max(welcome.retry.first, welcome.retry.base, welcome.retry.cap) <= HANDED_OUT_MS
    full = make_gateway(own_valkey.url, "--capacity", "1", name="node-2")
    await (await dial(full, "second")).greet()
    headers = {
        "Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==", "Sec-WebSocket-Protocol": "fairlead.v1.json",
        "Authorization": "Bearer development-agent-token",
    }  # fmt: skip
    seen = set()
    async with plain_client(headers=headers) as http:
        for gateway in (slow, full):
            url = gateway.link.replace("ws:", "http:") + "/v1/link"
            for answer in await asyncio.gather(*(http.get(url) for _ in range(40))):
                if answer.status_code in (429, 503):
                    seen.add(int(answer.headers["Retry-After"]))
    assert seen
    assert max(seen) <= RETRY_AFTER_MOST
