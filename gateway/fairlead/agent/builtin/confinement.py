"""What an allow list of `exec` asks of the other methods, so that it cannot be gone round: told at the start.

Called by `builtin_agent`. A list of programs is a bound only when nobody can put other files in their places, into the
libraries that they load or where the host runs things by itself, and when no terminal runs what is not listed.
"""

from __future__ import annotations

from fairlead.agent.builtin.exec import program_path
from fairlead.agent.builtin.files.protected_paths import ProtectedPath, conflicts
from fairlead.agent.builtin.options import Options
from fairlead.errors import ConfigError

NAMED = 3
"""Places that an error names; more of them say nothing new."""


def check_confinement(options: Options, guarded: list[ProtectedPath]) -> None:
    """`guarded` are the places that no root of `file.put` may hold or lie in. Raises ConfigError with all faults."""
    allow = options.exec.allow
    if allow is None or not options.confined:
        return
    faults = []
    if options.shell_enabled:
        argv = options.shell.argv
        if argv is None or not argv[0].startswith("/") or program_path(argv[0]) not in set(map(program_path, allow)):
            faults.append(
                "shell.enabled: a terminal runs any program, and exec.allow confines the agent to some; leave shell "
                "off, or set shell.argv to one of them, by its path"
            )
    if options.file_put_enabled:
        for root in options.file_put.folders:
            found = list(dict.fromkeys(f"{one.path} ({one.what})" for one in conflicts(root, guarded)))
            if found:
                more = f" and {len(found) - NAMED} more" if len(found) > NAMED else ""
                faults.append(
                    f"file_put.roots: {root} holds or lies in {', '.join(found[:NAMED])}{more}: whoever may write "
                    "there decides what the programs of exec.allow do; name folders that hold data alone, or set "
                    "file_put.enabled = false"
                )
    if faults:
        raise ConfigError("\n  - ".join(["exec.allow does not hold with these:", *faults]), faults=tuple(faults))
