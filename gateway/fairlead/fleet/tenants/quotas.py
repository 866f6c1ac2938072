"""The quotas of a tenant, as the file of roles declares them. It is pure."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class Quotas:
    """None for no limit. `agents` are those that the gateway knows, `open_commands` those posted one by one that have
    not ended, `command_rate` how many of these are accepted a second on average, `run_concurrency` the sum of the
    concurrency of its open runs, and `events_bytes` how many bytes of events are kept."""

    agents: int | None = None
    open_commands: int | None = None
    command_rate: int | None = None
    run_concurrency: int | None = None
    events_bytes: int | None = None


QUOTAS = tuple(field.name for field in fields(Quotas))
