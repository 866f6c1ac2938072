"""A node uses a Redis behind TLS whose certificate a private authority has signed."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from fairlead.errors import BusUnavailable
from fairlead.store.endpoint import Endpoint

from support.fixtures import HttpOf
from support.gateway.process import MakeGateway


async def test_a_private_authority_is_trusted_when_it_is_named(
    tls_redis: str, certificate: Path, make_gateway: MakeGateway, http_of: HttpOf
) -> None:
    gateway = await asyncio.to_thread(make_gateway, tls_redis, "--redis-ca-file", str(certificate))
    assert (await http_of(gateway.api).get("/v1/agents")).status_code == 200


async def test_a_private_authority_is_not_trusted_otherwise(tls_redis: str) -> None:
    with pytest.raises(BusUnavailable, match="CERTIFICATE_VERIFY_FAILED"):
        await Endpoint(tls_redis).connect(10)
