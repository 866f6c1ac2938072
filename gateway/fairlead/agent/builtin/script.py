"""`script`: runs a script that its caller has stored once for many agents, and streams its output as `exec` does.

The arguments name the script by its digest, and the octets come as the command's input, which is asked for only if this
agent has not kept them. They are compared with the digest before anything runs, each time: a signed command covers the
digest, so a gateway can withhold the script and cannot change it. The interpreter gets an open descriptor, and not a
name that could lead to another file meanwhile.
"""

from __future__ import annotations

import asyncio
import os
import pwd
from typing import Annotated

from msgspec import Meta

from fairlead.agent.builtin.contents.kept_contents import KeptContents
from fairlead.agent.builtin.exec import PROGRAMS, stream
from fairlead.agent.builtin.process.descendants import COMMAND_VARIABLE
from fairlead.agent.builtin.process.environment import inherited_environment
from fairlead.agent.builtin.process.program import Program
from fairlead.agent.commands.command import Command
from fairlead.agent.errors import CommandError

SCRIPT_BYTES = 1 << 20


class StoredScript:
    """The method `script` of one agent. Scripts beyond the limit wait their turn."""

    def __init__(self, kept: KeptContents, env_keep: tuple[str, ...] = ()) -> None:
        self._kept = kept
        self._env_keep = env_keep
        self._turn = asyncio.Semaphore(PROGRAMS)

    async def execute(
        self,
        command: Command,
        digest: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")],
        size: Annotated[int, Meta(ge=0, le=SCRIPT_BYTES)],
        interpreter: Annotated[list[str], Meta(min_length=1)] | None = None,
        arguments: list[str] = [],  # noqa: B006  # read into a schema, never changed
        env: dict[str, str] = {},  # noqa: B006
        cwd: str | None = None,
        user: str | None = None,
    ) -> dict[str, int]:
        """Returns {"exit_code": n}, or {"signal": n} when a signal ended it. Raises CommandError `content_mismatch`,
        `content_not_kept`, `user_unknown` or `exec_failed`."""
        own = {} if user is None else _environment_of(user)
        async with self._turn:  # before a descriptor is open: an agent has 1,024, and may have as many commands
            kept = await self._kept.open(digest)
            file = await self._receive(command, digest, size) if kept is None else kept
            try:
                inherited = inherited_environment(os.environ, self._env_keep)
                program = Program(
                    [*(interpreter or ["/bin/sh"]), f"/proc/self/fd/{file}", *arguments],
                    {**inherited, **own, **env, COMMAND_VARIABLE: command.id}, cwd, user=user, pass_fds=(file,),
                )  # fmt: skip
                return await stream(command, program)
            finally:
                os.close(file)

    async def _receive(self, command: Command, digest: str, size: int) -> int:
        """Ask for the content, and keep it. Returns a descriptor of it."""
        parts: list[bytes] = []
        came = 0
        async for data in command.stdin.content():
            came += len(data)
            if came > size:
                break
            parts.append(data)
        return await self._kept.keep(digest, size, b"".join(parts), came)


def _environment_of(user: str) -> dict[str, str]:
    """What a login of `user` sets. Raises CommandError `user_unknown`."""
    try:
        entry = pwd.getpwnam(user)
    except KeyError as e:
        raise CommandError("user_unknown", f"there is no user {user!r} on this host: expected one that exists") from e
    return {"HOME": entry.pw_dir, "USER": user, "LOGNAME": user, "SHELL": entry.pw_shell or "/bin/sh"}
