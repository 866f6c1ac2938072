"""Reads metrics from the admin port of a gateway process."""

from __future__ import annotations

import re

from support.gateway.process import GatewayProcess
from support.plain_http import plain_client


async def metric(gateway: GatewayProcess, name: str) -> float:
    """The value of the sample `name`, which has no labels and must be there."""
    async with plain_client() as http:
        text = (await http.get(f"{gateway.admin}/metrics")).text
    found = re.search(rf"^{name} (\S+)$", text, re.MULTILINE)
    assert found, name
    return float(found[1])
