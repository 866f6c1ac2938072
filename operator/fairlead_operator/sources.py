"""What a decision is made of beside the cluster's own objects: the rows in Redis, and the class of the Ingress.

One for each LinkGateway, used by its steward at each look. What is missing or may not be seen becomes a condition that
names it; the look goes on with what there is.
"""

from __future__ import annotations

from urllib.parse import quote, urlsplit

from fairlead.errors import BusUnavailable, ConfigError, FairleadError
from fairlead_operator.cluster import Cluster
from fairlead_operator.errors import Denied
from fairlead_operator.load import Row
from fairlead_operator.rows import Rows
from fairlead_operator.secret import Secrets, UnusableSecret, secret_reason
from fairlead_operator.spec import LinkGatewaySpec
from fairlead_operator.status import Conditions


class Sources:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
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

    async def rows(self, spec: LinkGatewaySpec, secrets: Secrets, conditions: Conditions) -> dict[str, Row] | None:
        """The nodes' rows, None when they cannot be read; sets the conditions that say why."""
        try:
            url = redis_url(spec, secrets)
        except FairleadError as e:
            reason = secret_reason(e)
            conditions.set("RedisReachable", False, "SecretMissing" if reason == "Missing" else reason, e.message)
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
            text = "the address of Redis is not valid; expected redis://host:6379, rediss://… or unix://…"
            conditions.set("RedisReachable", False, "Unusable", text)
        except FairleadError as e:
            conditions.set("RedisReachable", False, "Unusable", e.message)
        else:
            conditions.set("RedisReachable", True, "Answers")
            return rows
        return None


def redis_url(spec: LinkGatewaySpec, secrets: Secrets) -> str:
    """The URL of Redis with the authorities of its certificate in it, where the store's client reads them."""
    redis = spec.redis
    if redis.secret_ref is None:
        url = redis.url or ""
    else:
        url = secrets.text(redis.secret_ref.name, redis.secret_ref.key).strip()
    if redis.ca_secret_ref is None:
        return url
    if not url.startswith("rediss://"):
        raise UnusableSecret("redis.caSecretRef needs a rediss:// URL: only that has a certificate to check")
    pem = secrets.text(redis.ca_secret_ref.name, redis.ca_secret_ref.key)
    return f"{url}{'&' if urlsplit(url).query else '?'}ssl_ca_data={quote(pem)}"
