"""Reads the nodes' rows from the fleet's Redis and looks the IngressClass up, and sets the conditions about both.

Each reconciler has one and uses it in every pass. A missing or unreadable input becomes a condition that names it, and
the pass goes on with what there is.
"""

from __future__ import annotations

from urllib.parse import quote, urlsplit

from fairlead.errors import BusUnavailable, ConfigError, FairleadError
from fairlead_operator.api.conditions import Conditions
from fairlead_operator.api.gateway_spec import LinkGatewaySpec
from fairlead_operator.autoscaler.history import NodeReport
from fairlead_operator.inputs.node_metrics import NodeMetrics
from fairlead_operator.inputs.secrets import Secrets, UnusableSecret, secret_reason
from fairlead_operator.kube.cluster import Cluster
from fairlead_operator.kube.errors import AccessDenied


class FleetRedis:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._rows: NodeMetrics | None = None

    async def aclose(self) -> None:
        if self._rows is not None:
            await self._rows.aclose()

    async def ingress_class(self, spec: LinkGatewaySpec, conditions: Conditions) -> None:
        if spec.ingress is None or not spec.ingress.enabled or spec.ingress.class_name is None:
            return
        name = spec.ingress.class_name
        try:
            found = await self._cluster.find("IngressClass", "", name)
        except AccessDenied as e:
            how = "operator.rbac.ingressClasses of the chart gives the right to look"
            conditions.set("IngressClassFound", None, "RightMissing", f"{e.message}; {how}")
            return
        if found is None:
            conditions.set("IngressClassFound", False, "Missing", f"there is no IngressClass {name}: no agent gets in")
        else:
            conditions.set("IngressClassFound", True, "Found")

    async def rows(
        self, spec: LinkGatewaySpec, secrets: Secrets, conditions: Conditions
    ) -> dict[str, NodeReport] | None:
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
                self._rows = NodeMetrics(url)
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
