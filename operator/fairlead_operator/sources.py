"""What a decision is made of and a pod needs, where it is kept: Secrets, the rows in Redis, the class of the Ingress.

One for each LinkGateway, used by its steward at each look. What is missing or may not be seen becomes a condition that
names it; the look goes on with what there is.
"""

from __future__ import annotations

import base64
import binascii

from fairlead.errors import BusUnavailable, ConfigError, FairleadError
from fairlead_operator.children import Owner
from fairlead_operator.cluster import Cluster
from fairlead_operator.errors import Denied
from fairlead_operator.load import Row
from fairlead_operator.rows import Rows
from fairlead_operator.spec import LinkGatewaySpec
from fairlead_operator.status import Conditions


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
            conditions.set("IngressClassFound", None, "RightMissing", e.message)
            return
        if found is None:
            conditions.set("IngressClassFound", False, "Missing", f"there is no IngressClass {name}: no agent gets in")
        else:
            conditions.set("IngressClassFound", True, "Found")

    async def rows(self, spec: LinkGatewaySpec, conditions: Conditions) -> dict[str, Row] | None:
        """The nodes' rows, None when there are none to be had; sets the conditions that say why."""
        tokens, redis = spec.tokens.secret_ref, spec.redis.secret_ref
        url = spec.redis.url or ""
        conditions.set("SecretsFound", True, "Found")
        try:
            await self._keys(tokens.name, tokens.agent_key, tokens.platform_key)
        except FairleadError as e:
            _blame_secret(conditions, e)
        if redis is not None:
            try:
                (url,) = await self._keys(redis.name, redis.key)
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

    async def _keys(self, name: str, *keys: str) -> list[str]:
        found = await self._cluster.find("Secret", self._owner.namespace, name)
        if found is None:
            raise ConfigError(f"there is no Secret {name} in {self._owner.namespace}")
        data = found.get("data") or {}
        missing = [key for key in keys if not data.get(key)]
        if missing:
            raise ConfigError(f"the Secret {name} has no key {' and no key '.join(missing)}")
        try:
            return [base64.b64decode(data[key]).decode().strip() for key in keys]
        except (binascii.Error, UnicodeDecodeError) as e:
            raise ConfigError(f"the Secret {name} holds something that is not text") from e


def _blame_secret(conditions: Conditions, error: FairleadError) -> None:
    """What is missing is told, what we may not see is not known; the API server's absence ends the pass."""
    if isinstance(error, ConfigError):
        conditions.set("SecretsFound", False, "Missing", error.message)
    elif isinstance(error, Denied):
        conditions.set("SecretsFound", None, "RightMissing", error.message)
    else:
        raise error
