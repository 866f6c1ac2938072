"""The handler of `/v1/tenants`: the tenants that the file of roles declares, with what each has of its quotas."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from fairlead.app.access.auditor import Auditor
from fairlead.app.api import access_schemas
from fairlead.fleet.tenants.quotas import Quotas
from fairlead.node import Node
from fairlead.tenant import DEFAULT, shown_tenant

_encode = msgspec.json.Encoder().encode


class TenantRoutes:
    def __init__(self, node: Node, auditor: Auditor) -> None:
        self._auditor = auditor
        self._tenants = node.tenants
        self._now = node.membership.now

    async def list(self, request: Request) -> Response:
        """All tenants by name, the default one first. One tenant is counted after the other: each takes 66 calls."""
        declared = {DEFAULT: Quotas(), **self._tenants.declared()}
        found = [await self._describe(tenant, declared[tenant]) for tenant in sorted(declared)]
        await self._auditor.allow(request, len(found))
        return Response(_encode(access_schemas.TenantList(found)), media_type="application/json")

    async def _describe(self, tenant: str, quotas: Quotas) -> access_schemas.Tenant:
        use, now = self._tenants.use, self._now()
        opened = await use.open_commands(tenant, now) if quotas.open_commands is not None else None
        concurrency = await use.run_concurrency(tenant, now) if quotas.run_concurrency is not None else None
        return access_schemas.Tenant(
            shown_tenant(tenant), await use.known_agents(tenant), opened, concurrency,
            access_schemas.TenantQuotas(
                quotas.agents, quotas.open_commands, quotas.command_rate, quotas.run_concurrency, quotas.events_bytes
            ),
        )  # fmt: skip
