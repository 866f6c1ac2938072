"""The quotas of tenants, and their shares of a node: what is refused because a tenant has, or does, as much as it may.

Dispatch, runs and enrolment ask before they accept something; what ends commands and runs, and what removes agents, say
so. A tenant without a quota for something is not counted and costs nothing. The file of roles declares the quotas, and
the node says where they are read. What is refused here has had no effect.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final

from fairlead.errors import QuotaExceeded
from fairlead.fleet.tenants.quotas import QUOTAS, Quotas
from fairlead.fleet.tenants.tenant_use import TenantUse
from fairlead.telemetry.metrics import Metrics
from fairlead.tenant import DEFAULT, shown_tenant, tenant_of

logger = logging.getLogger(__name__)

SHARED: Final = 0.75
"""The share of a node's places, such as for readers or runs, that is given to whoever comes first. The rest is for
tenants that have less than their share."""


def has_place(tenant: str, taken: Mapping[str, int], most: int) -> bool:
    """Whether a tenant may have one more of the `most` places of a node, of which each tenant has `taken` some. The
    default tenant is that of whoever runs the node, and may have them all."""
    count, present = sum(taken.values()), len(taken) + (tenant not in taken)
    # Divide by one more than are present, so that there is always room for a new tenant.
    within = not tenant or count < most * SHARED or taken.get(tenant, 0) < most / (present + 1)
    return count < most and within


class TenantLimits:
    """`declared` is set by the node: the tenants with their quotas, as the file of roles has them now."""

    def __init__(self, use: TenantUse) -> None:
        self.use = use
        self.declared: Callable[[], Mapping[str, Quotas]] = dict
        self._refused = Counter({(DEFAULT, quota): 0 for quota in QUOTAS if quota != "events_bytes"})
        self._accepted = Counter({DEFAULT: 0})

    def watch(self, metrics: Metrics, agents: Callable[[], list[str]]) -> None:
        """Have the metrics read what is counted here, and how many of `agents`, those that are linked, each tenant
        has. Labels are the tenants that the file declares, of which there are 256 at most."""
        metrics.add_labelled_counter(
            "fairlead_tenant_refusals_total", "Requests refused because a tenant has reached a quota",
            ("tenant", "quota"), lambda: {(shown_tenant(one), what): n for (one, what), n in self._refused.items()},
        )  # fmt: skip
        metrics.add_labelled_counter(
            "fairlead_tenant_commands_total", "Commands that this node was to accept, by tenant",
            ("tenant",), lambda: {(shown_tenant(tenant),): count for tenant, count in self._accepted.items()},
        )  # fmt: skip
        metrics.add_varying_gauge(
            "fairlead_tenant_links", "Links of this node by tenant", "tenant", lambda: self._links(agents()),
        )  # fmt: skip

    def _links(self, agents: list[str]) -> Mapping[str, float]:
        if not self.declared():
            return {shown_tenant(DEFAULT): len(agents)}
        return {shown_tenant(DEFAULT): 0, **Counter(shown_tenant(tenant_of(agent)) for agent in agents)}

    def declares(self, tenant: str) -> bool:
        """Whether there is such a tenant."""
        return tenant == DEFAULT or tenant in self.declared()

    def events_bytes(self, agent: str, most: int) -> int:
        """How many bytes of events of the agent's tenant are kept, of `most` that Redis has for one tenant. Tenants
        without a quota share as much as the default tenant has."""
        if not (declared := self.declared()):
            return most
        tenant = tenant_of(agent)
        quota = declared[tenant].events_bytes if tenant in declared else None
        share = most // len(declared) if tenant else most
        return share if quota is None else min(quota, most)

    async def admit_command(self, command: str, agent: str, until: int) -> None:
        """Count a command, which ends at the time `until` (ms) at the latest. Raises QuotaExceeded."""
        if not (declared := self.declared()):
            self._accepted[DEFAULT] += 1
            return
        tenant = tenant_of(agent)
        quotas = declared.get(tenant, Quotas())
        most, rate = quotas.open_commands, quotas.command_rate
        if most is not None or rate is not None:
            why, count = await self.use.admit_command(tenant, command, until, most or 0, rate or 0)
            if why == "open":
                raise self._exceeded(
                    tenant, "open_commands", f"has {count} open commands, and its quota is {most}: wait for some to "
                    "end, or cancel them", most or 0,
                )  # fmt: skip
            if why == "rate":
                raise self._exceeded(
                    tenant, "command_rate", f"posts more than {rate} commands a second, its quota: post them more "
                    "slowly, or use a run", rate or 0, math.ceil(count / 1000),
                )  # fmt: skip
        self._accepted[tenant] += 1

    def command_ended(self, command: str, agent: str) -> None:
        """Forget a command that has ended or was not accepted."""
        if declared := self.declared():
            tenant = tenant_of(agent)
            if tenant in declared and declared[tenant].open_commands is not None:
                self.use.end_command(tenant, command)

    async def admit_run(self, tenant: str, run: str, concurrency: int, until: int) -> None:
        """Count the concurrency of a run. Raises QuotaExceeded."""
        quotas = self.declared().get(tenant)
        if quotas is None or (most := quotas.run_concurrency) is None:
            return
        why, count = await self.use.admit_run(tenant, run, concurrency, until, most)
        if why == "full":
            raise self._exceeded(
                tenant, "run_concurrency", f"has runs with a concurrency of {count} under way, this one has "
                f"{concurrency}, and its quota for all is {most}: lower its `concurrency`, or wait for one to end",
                most,
            )  # fmt: skip

    def run_ended(self, tenant: str, run: str) -> None:
        if tenant in self.declared():
            self.use.end_run(tenant, run)

    async def admit_agent(self, agent: str, now: int) -> None:
        """Count an agent that enrols at the time `now` (ms). Raises QuotaExceeded."""
        tenant = tenant_of(agent)
        quotas = self.declared().get(tenant)
        if quotas is None or (most := quotas.agents) is None:
            return
        why, count = await self.use.admit_agent(tenant, agent, now, most)
        if why == "full":
            raise self._exceeded(
                tenant, "agents", f"has {count} agent{'' if count == 1 else 's'}, and its quota is {most}: delete "
                "agents that are gone, or ask for a greater quota", most, 60,
            )  # fmt: skip

    def agent_removed(self, agent: str) -> None:
        tenant = tenant_of(agent)
        if tenant in self.declared():
            self.use.remove_agent(tenant, agent)

    def _exceeded(self, tenant: str, quota: str, what: str, limit: int, retry_after: int = 1) -> QuotaExceeded:
        self._refused[tenant, quota] += 1
        logger.debug("refused for the quota %s of tenant %s", quota, shown_tenant(tenant))
        return QuotaExceeded(f"this tenant {what}", quota=quota, limit=limit, retry_after=retry_after)
