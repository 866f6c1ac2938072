"""The operator reads the rows from a Redis with TLS, and verifies it by the CA that the LinkGateway names."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest

from fairlead.errors import BusUnavailable
from fairlead.store.embedded_valkey.server import EmbeddedValkey
from fairlead_operator.api.conditions import Conditions
from fairlead_operator.api.gateway_spec import LinkGatewaySpec
from fairlead_operator.api.validation import read_spec
from fairlead_operator.inputs.fleet_redis import FleetRedis, redis_url
from fairlead_operator.inputs.node_metrics import NodeMetricsReader
from fairlead_operator.inputs.secrets import Secrets, UnusableSecret

from support.carrier.tls_site import make_certificate
from support.tls_redis import TlsRedis
from support.waiting import until


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


def test_the_operator_may_have_a_url_of_its_own() -> None:
    found = Secrets("fleet", {
        name: {"data": {"url": base64.b64encode(url.encode()).decode()}}
        for name, url in (("where", "redis://node@r"), ("mine", "redis://operator@r"))
    })  # fmt: skip
    assert redis_url(spec(), found) == "redis://node@r"
    assert redis_url(spec(operatorSecretRef={"name": "mine"}), found) == "redis://operator@r"


def test_ca_without_tls_is_refused() -> None:
    with pytest.raises(UnusableSecret, match="needs a rediss:// URL"):
        redis_url(spec(caSecretRef={"name": "authority"}), secrets("redis://r", b"pem"))


async def test_the_operator_presents_its_certificate_and_a_renewed_one(
    own_valkey: EmbeddedValkey, certificate: Path, tmp_path: Path
) -> None:
    """As certificates of clients serve two self-signed ones, both of which the server trusts one after the other."""
    pairs = [make_certificate(tmp_path, name) for name in ("first", "second")]
    named = spec(caSecretRef={"name": "authority"}, clientTls={"secretName": "own"})

    def found(url: str, pair: tuple[Path, Path]) -> Secrets:
        own = {
            f"tls.{end}": base64.b64encode(file.read_bytes()).decode()
            for end, file in zip(("crt", "key"), pair, strict=True)
        }
        others = secrets(url, certificate.read_bytes()).found
        return Secrets("fleet", {**others, "own": {"data": own}})

    server, redis = TlsRedis(own_valkey.url, certificate, pairs[0][0]), FleetRedis()
    await server.start()
    conditions = Conditions((), 1, "2026-01-01T00:00:00Z")
    assert await redis.read(named, found(server.url, pairs[0]), conditions) is not None
    await server.stop()
    server.client_ca = pairs[1][0]
    await server.start()

    async def reads(pair: tuple[Path, Path]) -> bool:
        return await redis.read(named, found(server.url, pair), conditions) is not None

    assert not await reads(pairs[0])
    await until(lambda: reads(pairs[1]))
    assert await redis.read(spec(caSecretRef={"name": "authority"}), found(server.url, pairs[1]), conditions) is None
    await redis.aclose()
    await server.stop()
