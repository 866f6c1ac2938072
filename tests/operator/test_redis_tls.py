"""The operator reads the rows from a Redis with TLS, and verifies it by the CA that the LinkGateway names."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest

from fairlead.errors import BusUnavailable
from fairlead_operator.api.gateway_spec import LinkGatewaySpec
from fairlead_operator.api.validation import read_spec
from fairlead_operator.inputs.fleet_redis import redis_url
from fairlead_operator.inputs.node_metrics import NodeMetricsReader
from fairlead_operator.inputs.secrets import Secrets, UnusableSecret


def spec(**more: object) -> LinkGatewaySpec:
    redis = {"secretRef": {"name": "where"}, **more}
    return read_spec({"image": "fairlead/gateway", "redis": redis, "tokens": {"secretRef": {"name": "tokens"}}})


def secrets(url: str, pem: bytes) -> Secrets:
    def of(**data: bytes) -> dict[str, Any]:
        return {"data": {key.replace("_", "."): base64.b64encode(value).decode() for key, value in data.items()}}

    return Secrets("fleet", {"where": of(url=f"{url}\n".encode()), "authority": of(ca_crt=pem)})


@pytest.mark.parametrize("query", ["", "?protocol=2"])
async def test_reader_verifies_redis_with_the_named_ca(tls_redis: str, certificate: Path, query: str) -> None:
    found = secrets(tls_redis + query, certificate.read_bytes())
    rows = NodeMetricsReader(redis_url(spec(caSecretRef={"name": "authority"}), found))
    assert (await rows.read()).rows == {}
    assert "BEGIN" not in rows.address
    await rows.aclose()
    stranger = NodeMetricsReader(redis_url(spec(), found))
    with pytest.raises(BusUnavailable, match="CERTIFICATE_VERIFY_FAILED"):
        await stranger.read()
    await stranger.aclose()


def test_ca_without_tls_is_refused() -> None:
    with pytest.raises(UnusableSecret, match="needs a rediss:// URL"):
        redis_url(spec(caSecretRef={"name": "authority"}), secrets("redis://r", b"pem"))
