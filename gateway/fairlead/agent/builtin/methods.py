"""The registry of built-in methods, and the agent that serves them.

A method is one entry of METHODS. It is enabled unless `Options.enabled` says otherwise; a disabled method is refused
with a message that names the setting. Called by the command line, and by users of the SDK who want these methods in
addition to their own.
"""

from __future__ import annotations

import logging
import os
import ssl as tls
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fairlead.agent.agent import Agent
from fairlead.agent.builtin.confinement import check_confinement
from fairlead.agent.builtin.contents.kept_contents import KeptContents
from fairlead.agent.builtin.exec import Exec
from fairlead.agent.builtin.file_get import FileGet
from fairlead.agent.builtin.file_put import FilePut
from fairlead.agent.builtin.files.disk_threads import DiskThreads
from fairlead.agent.builtin.files.log_tail import LogTail
from fairlead.agent.builtin.files.path_guard import PathGuard
from fairlead.agent.builtin.files.protected_paths import own_paths, program_paths
from fairlead.agent.builtin.options import Options
from fairlead.agent.builtin.proc_list import ProcList
from fairlead.agent.builtin.proc_signal import ProcSignal
from fairlead.agent.builtin.script import StoredScript
from fairlead.agent.builtin.service import Service
from fairlead.agent.builtin.shell import Shell
from fairlead.agent.builtin.sys_info import system_info
from fairlead.agent.identity import AgentIdentity

if TYPE_CHECKING:
    from fairlead.agent.verification.trusted_keys import TrustedKeys

logger = logging.getLogger("fairlead.agent")


@dataclass(frozen=True, slots=True)
class MethodContext:
    """What a method may need: its options, threads for blocking calls, and the paths that it must not touch."""

    options: Options
    disk: DiskThreads
    unreadable: PathGuard
    """The agent's own files: they are neither read nor written."""
    unwritable: PathGuard
    """`private` and, if there is an allow list, the paths that determine what the listed programs do."""
    kept: KeptContents
    refresh: Callable[[], Awaitable[dict[str, str | None]]]
    """Reads the facts of the host again."""


def _facts_refresh(refresh: Callable[[], Awaitable[dict[str, str | None]]]) -> Callable[..., Any]:
    async def execute() -> dict[str, dict[str, str | None]]:
        """{"changed": {FACT: its new value, null if it is gone}}."""
        return {"changed": await refresh()}

    return execute


METHODS: Mapping[str, Callable[[MethodContext], Callable[..., Any]]] = {
    "exec": lambda context: Exec(context.options.exec, context.options.env_keep).execute,
    "facts.refresh": lambda context: _facts_refresh(context.refresh),
    "file.get": lambda context: FileGet(context.disk, context.options.file_get, context.unreadable).execute,
    "file.put": lambda context: FilePut(context.disk, context.options.file_put, context.unwritable).execute,
    "log.tail": lambda context: LogTail(context.disk, context.options.file_get, context.unreadable).execute,
    "proc.list": lambda context: ProcList(context.disk).execute,
    "proc.signal": lambda context: ProcSignal(context.disk).execute,
    "script": lambda context: StoredScript(context.kept, context.options.env_keep).execute,
    "service.restart": lambda context: Service(context.options.service).changing("restart"),
    "service.start": lambda context: Service(context.options.service).changing("start"),
    "service.status": lambda context: Service(context.options.service).status,
    "service.stop": lambda context: Service(context.options.service).changing("stop"),
    "shell": lambda context: Shell(context.options.shell, context.options.env_keep).execute,
    "sys.info": lambda context: system_info,
}
"""For each method, the function that makes its handler, which `Agent.command` then registers."""


def builtin_agent(
    url: str,
    id: str,
    token: str | Callable[[], str] | AgentIdentity | None = None,
    *,
    facts: Mapping[str, str] | None = None,
    encoding: Literal["msgpack", "json"] = "msgpack",
    ssl: tls.SSLContext | Callable[[], tls.SSLContext] | None = None,
    proxy: str | None = None,
    journal: str | os.PathLike[str] | None = None,
    trusted_keys: TrustedKeys | None = None,
    options: Options = Options(),  # noqa: B008  # frozen
    private: Iterable[Path] = (),
) -> Agent:
    """An agent with the built-in methods. More methods may be added to it; the other arguments are those of Agent.

    `private` are files of the agent's own that the platform must neither read nor write: its token, its configuration.
    Raises ConfigError as Agent does, and when `options` would allow an allow list of `exec` to be bypassed.
    """
    agent = Agent(
        url, id, token, facts=facts, encoding=encoding, ssl=ssl, proxy=proxy, journal=journal, trusted_keys=trusted_keys
    )
    identity = token.folder.path if isinstance(token, AgentIdentity) else None
    own = own_paths(private, journal, identity)
    unwritable = own + (program_paths(options.exec.allow or ()) if options.confined else [])
    check_confinement(options, unwritable)
    disk = DiskThreads()
    kept = KeptContents(disk, None if journal is None else Path(journal) / "contents")
    context = MethodContext(options, disk, PathGuard(own), PathGuard(unwritable), kept, agent.refresh_facts)
    on, off = [], []
    for method, make in METHODS.items():
        if options.enabled(method):
            on.append(method)
            agent.command(method)(make(context))
        else:
            off.append(method)
            reason = options.reason_disabled(method)
            agent.switch_off(method, f"the agent's configuration disables {method} ({reason})")
    logger.info("built-in methods: %s%s", ", ".join(on), f"; disabled: {', '.join(off)}" if off else "")
    return agent
