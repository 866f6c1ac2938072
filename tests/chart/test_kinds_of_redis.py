"""What the values name of Redis arrives at the gateways and at the operator: Sentinels, a Cluster, TLS, and ACL users.

The chart renders a LinkGateway and Secrets, of which the operator makes pods. So the rendered objects are read as the
operator reads them, and the files of its pods as a node reads its settings.
"""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from fairlead.redis_url import RedisUrl, StoreKind, parse_redis_url
from fairlead.settings.loading import load
from fairlead.settings.settings import Settings
from fairlead_operator.api.gateway_spec import LinkGatewaySpec
from fairlead_operator.api.policy import Policies, SecretState, read_policies, secrets_to_read, violations
from fairlead_operator.api.validation import read_spec
from fairlead_operator.inputs.fleet_redis import redis_url
from fairlead_operator.inputs.secrets import Secrets
from fairlead_operator.resources.children import children
from fairlead_operator.resources.owner import Owner

from support.chart.helm import Render
from support.chart.manifests import named, of_kind

SENTINELS = "redis+sentinel://{user}@s1.example:26379,s2.example:26379,s3.example:26379/fleet?sentinel_password=other"
CLUSTER = "redis+cluster://{user}@r1.example:6379,r2.example:6379,r3.example:6379"
KINDS = {"sentinels": SENTINELS, "cluster": CLUSTER}
NODE, OPERATOR = "node:the-nodes-secret", "operator:the-operators-secret"
CA = b"-----BEGIN CERTIFICATE-----\nYXV0aG9yaXR5\n-----END CERTIFICATE-----\n"
CERTIFICATE = b"-----BEGIN CERTIFICATE-----\nb3du\n-----END CERTIFICATE-----\n"
KEY = b"-----BEGIN PRIVATE KEY-----\na2V5\n-----END PRIVATE KEY-----\n"
TLS = {
    "caSecretRef": {"name": "redis-authority", "key": "ca.pem"},
    "operatorSecretRef": {"name": "redis-operator", "key": "url"},
    "clientTls": {"secretName": "redis-client"},
}

of_each_kind = pytest.mark.parametrize("template", KINDS.values(), ids=KINDS)


def secret(**values: bytes) -> dict[str, Any]:
    return {"metadata": {}, "data": {name: base64.b64encode(value).decode() for name, value in values.items()}}


def secrets_of(objects: list[dict[str, Any]], **others: dict[str, Any]) -> Secrets:
    """Those that the chart has rendered, and others of the namespace."""
    return Secrets("fleet", {one["metadata"]["name"]: one for one in of_kind(objects, "Secret")} | others)


def spec_of(objects: list[dict[str, Any]]) -> LinkGatewaySpec:
    return read_spec(named(objects, "LinkGateway", "fairlead")["spec"])


def settings_of_a_pod(spec: LinkGatewaySpec, secrets: Secrets, folder: Path) -> Settings:
    """What a node reads in a pod that the operator makes: the files are written as the kubelet does."""
    (made,) = of_kind(children(Owner("fairlead", "fleet", "uid"), spec), "Deployment")
    pod = made["spec"]["template"]["spec"]
    (container,) = (one for one in pod["containers"] if one["name"] == "gateway")
    places = {one["name"]: folder / one["mountPath"].lstrip("/") for one in container["volumeMounts"]}
    for volume in pod["volumes"]:
        mounted = [source["secret"] for source in volume.get("projected", {}).get("sources", ())]
        mounted += [{**volume["secret"], "name": volume["secret"]["secretName"]}] if "secret" in volume else []
        for one in mounted:
            for item in one["items"]:
                place = places[volume["name"]] / item["path"]
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(secrets.keys(one["name"], item["key"])[0])
    env = {one["name"]: one["value"] for one in container["env"] if "value" in one}
    return load(
        {name: value.replace("/etc/fairlead", f"{folder}/etc/fairlead") for name, value in env.items()}, None, {}
    )


def check_user(url: str, user: str, kind: StoreKind, *, tls: bool) -> RedisUrl:
    found = parse_redis_url(url)
    assert (found.kind, found.tls, len(found.nodes)) == (kind, tls, 3)
    server = urlsplit(found.server)
    assert f"{server.username}:{server.password}" == user
    if kind is StoreKind.SENTINEL:
        assert (found.primary, found.sentinel_password) == ("fleet", "other")
    return found


@of_each_kind
def test_the_url_reaches_gateways_and_operator(render: Render, tmp_path: Path, template: str) -> None:
    url = template.format(user=NODE)
    objects = render({"redis": {"url": url}})
    assert not of_kind(objects, "StatefulSet"), "no Valkey for evaluations"
    assert url not in str(objects), "a URL with a password is in a Secret only"
    spec, secrets = spec_of(objects), secrets_of(objects)
    kind = parse_redis_url(url).kind
    check_user(redis_url(spec, secrets), NODE, kind, tls=False)
    check_user(settings_of_a_pod(spec, secrets, tmp_path).redis, NODE, kind, tls=False)


@of_each_kind
def test_tls_and_a_user_for_each_reach_gateways_and_operator(render: Render, tmp_path: Path, template: str) -> None:
    url = template.replace("redis+", "rediss+")
    kind = parse_redis_url(url.format(user=NODE)).kind
    objects = render({
        "redis": {"existingSecret": "redis-node", "existingSecretKey": "uri"},
        "gateways": {"default": {"redis": TLS}},
        "tokens": {"existingSecret": "tokens"},
    })  # fmt: skip
    assert not of_kind(objects, "Secret", "StatefulSet")
    secrets = secrets_of(
        objects,
        **{
            "redis-node": secret(uri=url.format(user=NODE).encode()),
            "redis-operator": secret(url=url.format(user=OPERATOR).encode()),
            "redis-authority": secret(**{"ca.pem": CA}),
            "redis-client": secret(**{"tls.crt": CERTIFICATE, "tls.key": KEY}),
            "tokens": secret(**{"agent-token": b"agents-0123456789", "platform-token": b"platform-0123456789"}),
        },
    )
    spec = spec_of(objects)
    node = settings_of_a_pod(spec, secrets, tmp_path).redis
    check_user(node, NODE, kind, tls=True)
    files = parse_qs(urlsplit(node).query)
    given = {"ssl_ca_certs": CA, "ssl_certfile": CERTIFICATE, "ssl_keyfile": KEY}
    assert {name: Path(files[name][0]).read_bytes() for name in given} == given
    operator = redis_url(spec, secrets)
    check_user(operator, OPERATOR, kind, tls=True)
    assert parse_qs(urlsplit(operator).query)["ssl_ca_data"] == [CA.decode()]
    check_may_read(objects, spec, {"redis-node", "redis-operator", "redis-authority", "redis-client", "tokens"})


def check_may_read(objects: list[dict[str, Any]], spec: LinkGatewaySpec, names: set[str]) -> None:
    """The operator's Role and its policy let it read these Secrets."""
    rules = named(objects, "Role", "fairlead-operator")["rules"]
    (readable,) = (rule["resourceNames"] for rule in rules if rule["resources"] == ["secrets"])
    assert names <= set(readable)
    (container,) = named(objects, "Deployment", "fairlead-operator")["spec"]["template"]["spec"]["containers"]
    (text,) = (one["value"] for one in container["env"] if one["name"] == "FAIRLEAD_OPERATOR_POLICY")
    policies: Policies = read_policies(text)
    policy = policies.of("fleet")
    assert violations(spec, policy, dict.fromkeys(secrets_to_read(spec, policy), SecretState.UNLABELLED)) == []


@pytest.mark.parametrize("url", ["redis+cluster://r1,r2", "redis+sentinel://s1,s2/fleet", "rediss://one:6380"])
def test_a_url_without_a_password_may_stand_in_a_gateway(render: Render, tmp_path: Path, url: str) -> None:
    objects = render({"gateways": {"default": {"redis": {"url": url}}}})
    spec, secrets = spec_of(objects), secrets_of(objects)
    assert redis_url(spec, secrets) == settings_of_a_pod(spec, secrets, tmp_path).redis == url
