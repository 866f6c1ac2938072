"""Secrets that the pods would refuse at their start: a condition reports them, without quoting them."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairlead.errors import ConfigError
from fairlead.identity.agent_key import pem_of_seed
from fairlead.settings import DEVELOPMENT_AGENT_TOKEN, DEVELOPMENT_PLATFORM_TOKEN, load
from fairlead_operator.api.gateway_spec import TokenSecret
from fairlead_operator.inputs.secrets import token_faults
from fairlead_operator.kube.errors import InvalidObject
from fairlead_operator.kube.rbac import LEASE, NAMESPACED

from support.operator_namespace import OperatorNamespace, condition

GOOD = "a-token-that-is-long-enough"
TOKENS = [
    GOOD, "another-token-as-long-as-that", "exactly-16-chars", "only-15-chars--", "x" * 4096, "x" * 4097,
    f"{GOOD}\r\n", f"{GOOD}\n\n", f" {GOOD}", f"{GOOD} ", "with a blank between", "a-tab\tin-the-middle", f"\n{GOOD}",
    "no-ascii-in-thís-token", DEVELOPMENT_AGENT_TOKEN, DEVELOPMENT_PLATFORM_TOKEN,
]  # fmt: skip


async def test_an_issuer_key_is_read_and_not_quoted(namespace: OperatorNamespace) -> None:
    tokens = {"secretRef": {"name": "tokens", "issuerKey": "issuer-key"}}
    reconciler = namespace.reconciler(await namespace.gateway(tokens=tokens))
    assert condition(await namespace.reconcile(reconciler), "SecretsFound") == (
        "False", "NotFound", "the Secret tokens has no key issuer-key",
    )  # fmt: skip
    for text, held in (("no key at all", "False"), (pem_of_seed(bytes(32)).decode(), "True")):
        await namespace.admin.patch("Secret", namespace.name, "tokens", {"stringData": {"issuer-key": text}})
        status = await namespace.reconcile(reconciler)
        assert condition(status, "SecretsFound")[0] == held
        assert text not in str(status)


async def test_invalid_token_is_named_by_its_key_and_not_quoted(namespace: OperatorNamespace) -> None:
    reconciler = namespace.reconciler(await namespace.gateway())

    async def condition_for(**tokens: str) -> tuple[str, str, str]:
        await namespace.admin.patch("Secret", namespace.name, "tokens", {"stringData": tokens})
        status = await namespace.reconcile(reconciler)
        assert not [text for text in tokens.values() if text in str(status)]
        return condition(status, "SecretsFound")

    assert (await condition_for())[:2] == ("True", "Found")
    rule = "of the Secret tokens is invalid: expected 16 to 4096 printable ASCII characters without spaces"
    assert await condition_for(**{"agent-token": "hunter2"}) == (
        "False",
        "Unusable",
        f"gateways cannot start: agent-token {rule}",
    )
    held, reason, message = await condition_for(**{"platform-token": "with a blank in it, though long"})
    assert (held, reason) == ("False", "Unusable")
    assert message == f"gateways cannot start: agent-token {rule}; platform-token {rule}"
    _, reason, message = await condition_for(**{"agent-token": GOOD, "platform-token": GOOD})
    assert (reason, "agent-token and platform-token of the Secret tokens are equal" in message) == ("Unusable", True)
    _, reason, message = await condition_for(**{"agent-token": DEVELOPMENT_AGENT_TOKEN})
    assert (reason, "agent-token of the Secret tokens is the development token" in message) == ("Unusable", True)
    assert (await condition_for(**{"agent-token": "another-token-as-long-as-that\n"}))[:2] == ("True", "Found")
    events = [message for reason, message in await namespace.events() if reason == "Unusable"]
    assert f"SecretsFound: gateways cannot start: agent-token {rule}" in events


async def test_random_bytes_are_neither_token_nor_url(namespace: OperatorNamespace) -> None:
    """As `openssl rand 24` writes them without -hex."""
    binary = {"data": {"agent-token": "/////////////////////////////////w==", "url": "/////w=="}}
    await namespace.admin.patch("Secret", namespace.name, "tokens", binary)
    where = {"secretRef": {"name": "tokens", "key": "url"}}
    status = await namespace.reconcile(namespace.reconciler(await namespace.gateway(redis=where)))
    assert condition(status, "SecretsFound")[:2] == ("False", "Unusable")
    text = "the key url of the Secret tokens is not UTF-8 text"
    assert condition(status, "RedisReachable") == ("False", "Unusable", text)


async def test_missing_redis_secret_does_not_hide_an_invalid_token(namespace: OperatorNamespace) -> None:
    await namespace.admin.patch("Secret", namespace.name, "tokens", {"stringData": {"agent-token": "short"}})
    status = await namespace.reconcile(
        namespace.reconciler(await namespace.gateway(redis={"secretRef": {"name": "nowhere"}}))
    )
    assert condition(status, "SecretsFound")[:2] == ("False", "Unusable")
    assert condition(status, "RedisReachable")[:2] == ("False", "SecretNotFound")


@pytest.mark.parametrize("agent", TOKENS, ids=range(len(TOKENS)))
def test_tokens_are_refused_exactly_if_gateways_refuse_them(agent: str, tmp_path: Path) -> None:
    """The import contracts keep the gateway's settings out of the operator, so both have the rule."""
    files = {"FAIRLEAD_AGENT_TOKEN_FILE": tmp_path / "agent", "FAIRLEAD_PLATFORM_TOKEN_FILE": tmp_path / "platform"}
    env = {"FAIRLEAD_LINK_HOST": "0.0.0.0", "FAIRLEAD_API_HOST": "0.0.0.0", "FAIRLEAD_INSECURE_SHARED_TOKEN": "true"}
    env |= {k: str(v) for k, v in files.items()}
    for platform in TOKENS:
        for file, token in zip(files.values(), (agent, platform), strict=True):
            file.write_bytes(token.encode())
        try:
            load(env, None, {})
            refused = 0
        except ConfigError as e:
            refused = len(e.details["faults"])  # type: ignore[arg-type]  # a tuple of texts
        assert len(token_faults(TokenSecret(name="tokens"), agent.encode(), platform.encode())) == refused


async def test_without_the_right_to_read_ingress_classes_there_is_no_condition_of_it(
    namespace: OperatorNamespace,
) -> None:
    reconciler = namespace.reconciler(await namespace.gateway(ingress={"className": "nothing"}))
    assert condition(await namespace.reconcile(reconciler), "IngressClassFound")[:2] == ("False", "NotFound")
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "operator"}}
    await namespace.admin.apply({**role, "rules": []}, "test")

    async def absent() -> bool:
        status = await namespace.reconcile(reconciler)
        return all(one["type"] != "IngressClassFound" for one in status["conditions"])

    await namespace.until("the right to be gone", absent)


async def test_reserved_env_is_refused_by_the_api_server(namespace: OperatorNamespace) -> None:
    env = [{"name": "FAIRLEAD_WINDOW", "value": "131072"}, {"name": "FAIRLEAD_CAPACITY", "value": "99"}]
    with pytest.raises(InvalidObject, match=r"pod\.env must not set what the operator sets itself"):
        await namespace.gateway(pod={"env": env})
    await namespace.gateway(pod={"env": env[:1]})


async def test_changed_secret_replaces_the_pods(namespace: OperatorNamespace) -> None:
    reconciler = namespace.reconciler(await namespace.gateway())
    await namespace.reconcile(reconciler)

    async def checksum() -> str:
        template = (await namespace.deployment())["spec"]["template"]["metadata"]
        return str(template["annotations"]["fairlead.dev/secrets"])

    first = await checksum()
    await namespace.admin.patch("Secret", namespace.name, "tokens", {"metadata": {"labels": {"team": "a"}}})
    await namespace.reconcile(reconciler)
    assert await checksum() == first, "what pods read has not changed"
    await namespace.admin.patch(
        "Secret", namespace.name, "tokens", {"stringData": {"agent-token": "another-agent-token"}}
    )
    await namespace.reconcile(reconciler)
    second = await checksum()
    assert second != first
    # Neither another leader, nor one that cannot read the Secret, is a reason to replace pods.
    other = namespace.reconciler(await namespace.admin.get("LinkGateway", namespace.name, "edge"))
    await namespace.reconcile(other)
    assert await checksum() == second
    await namespace.allow(*(rule for rule in NAMESPACED if "secrets" not in rule[1]), *LEASE)
    for one in (other, namespace.reconciler(await namespace.admin.get("LinkGateway", namespace.name, "edge"))):
        status = await namespace.reconcile(one, seconds=60)
        assert condition(status, "SecretsFound")[:2] == ("Unknown", "Unreadable")
        assert await checksum() == second
