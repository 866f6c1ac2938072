"""The agent that `fairlead agent run` runs: an Agent with the built-in methods, each as its options let it be.

Called by the command line, and by whoever wants these methods beside their own. It is an Agent like any other: nothing
of the SDK knows that it exists.
"""

from __future__ import annotations

import logging
import os
import ssl as tls
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from fairlead.agent.agent import Agent
from fairlead.agent.builtin.confinement import check_confinement
from fairlead.agent.builtin.exec import Exec
from fairlead.agent.builtin.file_get import FileGet
from fairlead.agent.builtin.file_put import FilePut
from fairlead.agent.builtin.files.disk_threads import DiskThreads
from fairlead.agent.builtin.files.path_guard import PathGuard
from fairlead.agent.builtin.files.protected_paths import own, program_paths
from fairlead.agent.builtin.options import Options
from fairlead.agent.builtin.proc_list import ProcList
from fairlead.agent.builtin.shell import Shell
from fairlead.agent.host.facts import host_info

logger = logging.getLogger("fairlead.agent")


def builtin_agent(
    url: str,
    id: str,
    token: str | Callable[[], str],
    *,
    facts: Mapping[str, str] | None = None,
    encoding: Literal["msgpack", "json"] = "msgpack",
    ssl: tls.SSLContext | None = None,
    proxy: str | None = None,
    journal: str | os.PathLike[str] | None = None,
    options: Options = Options(),  # noqa: B008  # frozen
    private: Iterable[Path] = (),
) -> Agent:
    """An agent with the built-in methods; the other arguments are Agent's. More methods may be added to it.

    `private` are files of the agent's own that the platform must neither read nor write: its token, its configuration.
    Raises ConfigError as Agent, and when `options` would let an allow list of `exec` be gone round.
    """
    agent = Agent(url, id, token, facts=facts, encoding=encoding, ssl=ssl, proxy=proxy, journal=journal)
    disk = DiskThreads()
    untouched = own(private, journal)
    unwritten = untouched + (program_paths(options.exec.allow or ()) if options.confined else [])
    check_confinement(options, unwritten)
    methods: dict[str, tuple[bool, Callable[..., Any]]] = {
        "exec": (options.exec.enabled, Exec(options.exec, options.env_keep).execute),
        "file.get": (
            options.file_get.enabled is not False,
            FileGet(disk, options.file_get, PathGuard(untouched)).execute,
        ),
        "file.put": (options.file_put_enabled, FilePut(disk, options.file_put, PathGuard(unwritten)).execute),
        "proc.list": (options.proc_list.enabled, ProcList(disk).execute),
        "shell": (options.shell_enabled, Shell(options.shell, options.env_keep).execute),
        "sys.info": (True, system_info),
    }
    for method, (enabled, function) in methods.items():
        if enabled:
            agent.command(method)(function)
        else:
            table = method.replace(".", "_")
            why = f"{table}.enabled = false"
            if getattr(options, table).enabled is None:
                why = "exec has an allow list, exec.allow" if options.confined else "as exec.enabled = false"
            agent.switch_off(method, f"the agent's configuration switches {method} off ({why})")
    off = [method for method, (enabled, _) in methods.items() if not enabled]
    logger.info(
        "built-in methods: %s%s", ", ".join(sorted(methods.keys() - off)), f"; off: {', '.join(off)}" * bool(off)
    )
    return agent


async def system_info() -> dict[str, object]:
    """What kind of machine this is."""
    return host_info()
