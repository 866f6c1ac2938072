"""The Secrets that a LinkGateway names: they are read once in every pass, checked, and passed to whatever needs their
contents.

The reconciler reports problems in the condition SecretsFound, and `fleet_redis` takes the URL of Redis from them. Their
contents are never reported. The pod template has a checksum of them, so that the pods are replaced when a Secret
changes. Computing the checksum is slow on purpose: otherwise anyone who may read a pod could use it to guess passwords.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from fairlead.errors import ConfigError, FairleadError
from fairlead_operator.api.conditions import Conditions
from fairlead_operator.api.gateway_spec import LinkGatewaySpec, TokenSecret
from fairlead_operator.api.policy import SECRET_LABEL, SecretState
from fairlead_operator.kube.cluster import Cluster
from fairlead_operator.kube.errors import AccessDenied
from fairlead_operator.kube.objects import Object

TOKEN = re.compile(r"[!-~]{16,4096}")
DEVELOPMENT_TOKENS = ("development-agent-token", "development-platform-token")
"""The tokens of agents and of the platform that a gateway accepts on the loopback interface only."""


class UnusableSecret(ConfigError):
    """The Secret exists, but its contents cannot be used."""


def secret_reason(error: FairleadError) -> str:
    """The reason for the condition. A refusal does not tell whether the Secret exists, because RBAC is checked before
    the lookup.
    """
    if isinstance(error, AccessDenied):
        return "Unreadable"
    return "Unusable" if isinstance(error, UnusableSecret) else "NotFound"


@dataclass(frozen=True, slots=True)
class Secrets:
    """The Secrets of one pass, by name: the object, None if it does not exist, or the error if it could not be read."""

    namespace: str
    found: Mapping[str, Object | AccessDenied | None]

    def states(self) -> dict[str, SecretState]:
        return {name: _state(found) for name, found in self.found.items()}

    def keys(self, name: str, *keys: str) -> list[bytes]:
        """Raises ConfigError for what is missing, UnusableSecret for a value that is not base64, and AccessDenied."""
        found = self.found.get(name)
        if isinstance(found, AccessDenied):
            causes = "it does not exist, or operator.rbac.secretNames of the chart does not list it"
            raise AccessDenied(f"the Secret {name} cannot be read: {causes} ({found.message})")
        if found is None:
            raise ConfigError(f"the Secret {name} does not exist in {self.namespace}")
        data = found.get("data") or {}
        missing = [key for key in keys if not data.get(key)]
        if missing:
            raise ConfigError(f"the Secret {name} has no key {' and no key '.join(missing)}")
        try:
            return [base64.b64decode(data[key]) for key in keys]
        except binascii.Error as e:
            raise UnusableSecret(f"the Secret {name} contains something that is not base64") from e

    def text(self, name: str, key: str) -> str:
        """As `keys`; raises UnusableSecret for a value that is not UTF-8."""
        (value,) = self.keys(name, key)
        try:
            return value.decode()
        except UnicodeDecodeError as e:
            raise UnusableSecret(f"the key {key} of the Secret {name} is not UTF-8 text") from e

    def set_condition(self, spec: LinkGatewaySpec, conditions: Conditions) -> None:
        """Sets SecretsFound: by the tokens first, then by those that lead to Redis, then by the certificate."""
        ref = spec.tokens.secret_ref
        try:
            if faults := token_faults(ref, *self.keys(ref.name, ref.agent_key, ref.platform_key)):
                conditions.set("SecretsFound", False, "Unusable", f"gateways cannot start: {'; '.join(faults)}")
                return
            if ref.issuer_key is not None and not is_private_key(self.text(ref.name, ref.issuer_key)):
                expected = "expected an Ed25519 key in PEM (`openssl genpkey -algorithm ed25519` makes one)"
                fault = f"{ref.issuer_key} of the Secret {ref.name} is no private key: {expected}"
                conditions.set("SecretsFound", False, "Unusable", f"gateways cannot start: {fault}")
                return
            for other in (spec.redis.secret_ref, spec.redis.operator_secret_ref, spec.redis.ca_secret_ref):
                if other is not None:
                    self.text(other.name, other.key)
            for pair in filter(None, (spec.link_tls, spec.redis.client_tls)):
                self.keys(pair.secret_name, "tls.crt", "tls.key")
            if spec.link_tls is not None and (authorities := spec.link_tls.client_ca):
                self.keys(authorities.secret_name, *filter(None, (authorities.key, authorities.crl_key)))
            for file, key in (
                (spec.roles, "roles.yaml"),
                (spec.issuers, "issuers.toml"),
                (spec.event_sinks, "sinks.toml"),
            ):
                if file is not None and file.secret is not None:
                    self.keys(file.secret, file.key or key)
            if spec.audit_log is not None and (signing := spec.audit_log.key_secret_ref):
                self.keys(signing.name, signing.key)
        except FairleadError as e:
            holds = None if isinstance(e, AccessDenied) else False
            conditions.set("SecretsFound", holds, secret_reason(e), e.message)
        else:
            conditions.set("SecretsFound", True, "Found")


class SecretReader:
    """Reads the Secrets of one LinkGateway, and remembers the checksum of what it has read."""

    def __init__(self, cluster: Cluster, namespace: str, salt: str) -> None:
        self._cluster = cluster
        self._namespace = namespace
        self._salt = salt.encode()
        self._versions: tuple[str, ...] = ()
        self._checksum = ""

    async def read(self, names: Iterable[str]) -> Secrets:
        found: dict[str, Object | AccessDenied | None] = {}
        for name in names:
            try:
                found[name] = await self._cluster.find("Secret", self._namespace, name)
            except AccessDenied as e:
                found[name] = e
        return Secrets(self._namespace, found)

    def checksum(self, spec: LinkGatewaySpec, secrets: Secrets) -> str:
        """A checksum of what a pod reads at its start; "" if not all of it is known, because that must not replace the
        pods.
        """
        ref = spec.tokens.secret_ref
        wanted = [(ref.name, ref.agent_key), (ref.name, ref.platform_key)]
        if ref.issuer_key is not None:
            wanted.append((ref.name, ref.issuer_key))
        wanted += [(one.name, one.key) for one in (spec.redis.secret_ref, spec.redis.ca_secret_ref) if one is not None]
        if spec.audit_log is not None and (signing := spec.audit_log.key_secret_ref):
            wanted.append((signing.name, signing.key))
        versions = [f"{name}/{key}" for name, key in wanted]
        try:
            parts = [secrets.keys(name, key)[0] for name, key in wanted]
        except FairleadError:
            return ""
        for name in {name for name, _ in wanted}:
            found = secrets.found[name]
            assert isinstance(found, dict)
            versions.append(f"{found['metadata']['uid']}/{found['metadata']['resourceVersion']}")
        if tuple(versions) != self._versions:
            text = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
            self._checksum = hashlib.scrypt(text, salt=self._salt, n=2**14, r=8, p=1, dklen=8).hex()  # 50 ms, 16 MiB
            self._versions = tuple(versions)
        return self._checksum


def _state(found: Object | AccessDenied | None) -> SecretState:
    if found is None:
        return SecretState.MISSING
    if isinstance(found, AccessDenied):
        return SecretState.UNREADABLE
    labels = found["metadata"].get("labels") or {}
    return SecretState.LABELLED if labels.get(SECRET_LABEL) == "true" else SecretState.UNLABELLED


def is_private_key(text: str) -> bool:
    """Whether the text is a private key in PEM without a passphrase. Which kind it is, the gateway says."""
    lines = text.split("\n")
    return "-----BEGIN PRIVATE KEY-----" in lines and "-----END PRIVATE KEY-----" in lines


def token_faults(ref: TokenSecret, agent: bytes, platform: bytes) -> list[str]:
    """Why gateways would refuse these tokens, without quoting them. A test compares this with the gateway's own
    rule."""
    found = []
    texts = [token.decode("ascii", "replace").rstrip("\r\n") for token in (agent, platform)]
    for key, text, known in zip((ref.agent_key, ref.platform_key), texts, DEVELOPMENT_TOKENS, strict=True):
        if TOKEN.fullmatch(text) is None:
            expected = "16 to 4096 printable ASCII characters without spaces"
            found.append(f"{key} of the Secret {ref.name} is invalid: expected {expected}")
        elif text == known:
            found.append(f"{key} of the Secret {ref.name} is the development token, which everyone knows: make another")
    if texts[0] == texts[1] and TOKEN.fullmatch(texts[0]):
        keys = f"{ref.agent_key} and {ref.platform_key}"
        found.append(f"{keys} of the Secret {ref.name} are equal, so any agent could command all others: make two")
    return found
