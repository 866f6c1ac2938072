"""The keys of runs in Redis. All keys of one run share its hash tag; `fleet.schema` says what each holds."""

from __future__ import annotations

from typing import Final

from fairlead.fleet.tenants.tenant_key import tenant_key

OPEN_RUNS: Final = "fl1:runs"
RECENT_RUNS: Final = "fl1:recent_runs"


def recent_runs_key(tenant: str) -> str:
    return tenant_key(RECENT_RUNS, tenant)


def run_key(run: str) -> str:
    return f"fl1:run:{{{run}}}"


def run_agents_key(run: str) -> str:
    return f"fl1:run_agents:{{{run}}}"


def run_states_key(run: str) -> str:
    return f"fl1:run_states:{{{run}}}"


def run_ends_key(run: str) -> str:
    return f"fl1:run_ends:{{{run}}}"


def run_groups_key(run: str) -> str:
    return f"fl1:run_groups:{{{run}}}"


def run_keys(run: str) -> tuple[str, str, str, str, str]:
    """The keys of the scripts, in their order."""
    return run_key(run), run_agents_key(run), run_states_key(run), run_ends_key(run), run_groups_key(run)
