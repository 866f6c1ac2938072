"""`service.status`, `service.start`, `service.stop`, `service.restart`: the units of systemd, by systemctl.

The name of a unit is checked and passed as one argument behind `--`, never through a shell, and systemctl asks nobody
for a password. The agent's user needs the right to manage units; with `service.units` only listed ones are touched.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from fnmatch import fnmatchcase
from typing import Annotated, Final

import msgspec

from fairlead.agent.builtin.options import ServiceOptions
from fairlead.agent.builtin.process.program_output import find_tool, tool_text
from fairlead.agent.commands.command import Command
from fairlead.agent.errors import CommandError
from fairlead.methods.library import UNIT_PATTERN

Unit = Annotated[str, msgspec.Meta(pattern=UNIT_PATTERN)]
PROPERTIES: Final = {
    "Id": "unit", "Description": "description", "LoadState": "load", "ActiveState": "active", "SubState": "sub",
    "UnitFileState": "enabled", "MainPID": "pid", "StateChangeTimestamp": "since",
}  # fmt: skip
"""The properties that systemctl is asked for, and the members of the result."""


class Service:
    """The methods `service.*` of one agent."""

    def __init__(self, options: ServiceOptions = ServiceOptions()) -> None:  # noqa: B008  # frozen
        self._units = options.units

    async def status(self, command: Command, unit: Unit) -> dict[str, object]:
        """Returns {"unit", "description", "load", "active", "sub", "enabled", "pid", "since"}. Raises CommandError
        `not_found`, `unit_forbidden`, `service_failed`, `permission_denied` or `unsupported`."""
        self._check(unit)
        systemctl = find_tool("systemctl", "service.status")
        names = ",".join(PROPERTIES)
        text = await _systemctl(command, unit, [systemctl, "show", f"--property={names}", "--no-pager", "--", unit])
        found = dict(line.partition("=")[::2] for line in text.splitlines() if "=" in line)
        if found.get("LoadState") == "not-found":
            raise CommandError("not_found", f"systemd knows no unit {unit}: check the spelling", unit=unit)
        made: dict[str, object] = {member: found.get(name, "") for name, member in PROPERTIES.items()}
        pid = found.get("MainPID", "")
        return {**made, "pid": int(pid) if pid.isdecimal() else 0}

    def changing(self, verb: str) -> Callable[[Command, Unit], Awaitable[dict[str, object]]]:
        """The handler of the method that starts, stops or restarts a unit."""

        async def execute(command: Command, unit: Unit) -> dict[str, object]:
            self._check(unit)
            systemctl = find_tool("systemctl", f"service.{verb}")
            await _systemctl(command, unit, [systemctl, "--no-ask-password", "--no-pager", verb, "--", unit])
            return await self.status(command, unit)

        return execute

    def _check(self, unit: str) -> None:
        if self._units is None:
            return
        name = unit if "." in unit else f"{unit}.service"
        if not any(fnmatchcase(name, one if "." in one else f"{one}.service") for one in self._units):
            raise CommandError(
                "unit_forbidden",
                f"this agent's configuration does not allow unit {unit}: name one of service.units, or add it there",
                unit=unit, key="service.units",
            )  # fmt: skip


async def _systemctl(command: Command, unit: str, argv: list[str]) -> str:
    """What systemctl says. Raises CommandError if it fails."""
    result, text, errors = await tool_text(command, argv)
    if result == {"exit_code": 0}:
        return text
    if "not been booted with systemd" in errors or "Failed to connect to bus" in errors:
        raise CommandError("unsupported", f"systemd does not run on this host: {errors[:500]}")
    if "Access denied" in errors or "authentication required" in errors:
        raise CommandError("permission_denied", f"{unit}: {errors[:500]} (give the agent's user the right)", unit=unit)
    if "not found" in errors or "not loaded" in errors:
        raise CommandError("not_found", f"{unit}: {errors[:500]}", unit=unit)
    raise CommandError(
        "service_failed", f"{unit}: {errors[:500] or 'systemctl failed'} (see service.status and log.tail)",
        unit=unit, exit_code=result.get("exit_code"),
    )  # fmt: skip
