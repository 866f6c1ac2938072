"""What a decision is made of and a pod needs, where it is kept: Secrets, the rows in Redis, the class of the Ingress.

One for each LinkGateway, used by its steward at each look. What is missing or may not be seen becomes a condition that
names it; the look goes on with what there is.
"""

from __future__ import annotations

import base64
import re

from fairlead.errors import BusUnavailable, ConfigError, FairleadError
from fairlead_operator.children import Owner
from fairlead_operator.cluster import Cluster
from fairlead_operator.errors import Denied
from fairlead_operator.load import Row
from fairlead_operator.rows import Rows
from fairlead_operator.spec import LinkGatewaySpec, TokenSecret
from fairlead_operator.status import Conditions

TOKEN = re.compile(r"[!-~]{16,4096}")
DEVELOPMENT_TOKENS = ("development-agent-token", "development-platform-token")
"""Of agents and of the platform: what a gateway takes on loopback only."""


class Sources:
    def __init__(self, cluster: Cluster, owner: Owner) -> None:
        self._cluster = cluster
        self._owner = owner
        self._rows: Rows | None = None

    async def aclose(self) -> None:
        if self._rows is not None:
            await self._rows.aclose()

    async def ingress_class(self, spec: LinkGatewaySpec, conditions: Conditions) -> None:
        if spec.ingress is None or not spec.ingress.enabled or spec.ingress.class_name is None:
            return
        name = spec.ingress.class_name
        try:
            found = await self._cluster.find("IngressClass", "", name)
        except Denied as e:
            how = "operator.rbac.ingressClasses of the chart gives the right to look"
            conditions.set("IngressClassFound", None, "RightMissing", f"{e.message}; {how}")
            return
        if found is None:
            conditions.set("IngressClassFound", False, "Missing", f"there is no IngressClass {name}: no agent gets in")
        else:
            conditions.set("IngressClassFound", True, "Found")

    async def rows(self, spec: LinkGatewaySpec, conditions: Conditions) -> dict[str, Row] | None:
        """The nodes' rows, None when there are none to be had; sets the conditions that say why."""
        redis = spec.redis.secret_ref
        url = spec.redis.url or ""
        await self._tokens(spec.tokens.secret_ref, conditions)
        if redis is not None:
            try:
                (value,) = await self._keys(redis.name, redis.key)
                url = value.decode().strip()
            except UnicodeDecodeError:
                text = f"the Secret {redis.name} holds something that is not text at {redis.key}"
                conditions.set("RedisReachable", False, "Unusable", text)
                return None
            except FairleadError as e:
                _blame_secret(conditions, e)
                missing = isinstance(e, ConfigError)
                conditions.set("RedisReachable", False, "SecretMissing" if missing else "RightMissing", e.message)
                return None
        try:
            if self._rows is None or self._rows.url != url:
                if self._rows is not None:
                    await self._rows.aclose()
                self._rows = None
                self._rows = Rows(url)
            rows = await self._rows.read()
        except BusUnavailable as e:
            conditions.set("RedisReachable", False, "Unreachable", e.message)
        except ConfigError:
            # Not the reader's words: they may quote what stands before the host.
            text = "the address of Redis is none: redis://host:6379, rediss://… or unix://…"
            conditions.set("RedisReachable", False, "Unusable", text)
        except FairleadError as e:
            conditions.set("RedisReachable", False, "Unusable", e.message)
        else:
            conditions.set("RedisReachable", True, "Answers")
            return rows
        return None

    async def _tokens(self, ref: TokenSecret, conditions: Conditions) -> None:
        try:
            tokens = await self._keys(ref.name, ref.agent_key, ref.platform_key)
        except FairleadError as e:
            _blame_secret(conditions, e)
            return
        if wrong := token_faults(ref, *tokens):
            conditions.set("SecretsFound", False, "Unusable", f"no gateway starts: {'; '.join(wrong)}")
        else:
            conditions.set("SecretsFound", True, "Found")

    async def _keys(self, name: str, *keys: str) -> list[bytes]:
        found = await self._cluster.find("Secret", self._owner.namespace, name)
        if found is None:
            raise ConfigError(f"there is no Secret {name} in {self._owner.namespace}")
        data = found.get("data") or {}
        missing = [key for key in keys if not data.get(key)]
        if missing:
            raise ConfigError(f"the Secret {name} has no key {' and no key '.join(missing)}")
        return [base64.b64decode(data[key]) for key in keys]


def token_faults(ref: TokenSecret, agent: bytes, platform: bytes) -> list[str]:
    """Why gateways would refuse these tokens. Their own rule, which a test compares; it never quotes a token."""
    found = []
    texts = [token.decode("ascii", "replace").rstrip("\r\n") for token in (agent, platform)]
    for key, text, known in zip((ref.agent_key, ref.platform_key), texts, DEVELOPMENT_TOKENS, strict=True):
        if TOKEN.fullmatch(text) is None:
            rule = "16 to 4096 printable ASCII characters, no blanks"
            found.append(f"{key} of the Secret {ref.name} is not allowed; allowed: {rule}")
        elif text == known:
            found.append(f"{key} of the Secret {ref.name} is the development token, which everyone knows; make another")
    if texts[0] == texts[1] and TOKEN.fullmatch(texts[0]):
        keys = f"{ref.agent_key} and {ref.platform_key}"
        found.append(f"{keys} of the Secret {ref.name} are the same, so any agent could command all; make two")
    return found


def _blame_secret(conditions: Conditions, error: FairleadError) -> None:
    """What is missing is told, what we may not see is not known; the API server's absence ends the pass."""
    if not isinstance(error, ConfigError | Denied):
        raise error
    if conditions.failed("SecretsFound"):
        return
    if isinstance(error, ConfigError):
        conditions.set("SecretsFound", False, "Missing", error.message)
    else:
        conditions.set("SecretsFound", None, "RightMissing", error.message)
