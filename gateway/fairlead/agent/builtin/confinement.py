"""Refuses options under which an allow list of `exec` could be bypassed. Called by `builtin_agent`, before anything
runs.

An allow list is effective only if nobody can replace the listed programs or the libraries that they load, or put a file
where the host runs programs by itself, and if no terminal can run other programs.
"""

from __future__ import annotations

from fairlead.agent.builtin.exec import program_path
from fairlead.agent.builtin.files.protected_paths import ProtectedPath, conflicts
from fairlead.agent.builtin.options import Options
from fairlead.errors import ConfigError

NAMED = 3
"""The maximum number of conflicting paths that an error names."""


def check_confinement(options: Options, protected: list[ProtectedPath]) -> None:
    """`protected`: the paths that no root of `file.put` may contain or lie in. Raises ConfigError with all errors."""
    allow = options.exec.allow
    if allow is None or not options.confined:
        return
    errors = []
    if options.enabled("shell"):
        argv = options.shell.argv
        if argv is None or not argv[0].startswith("/") or program_path(argv[0]) not in set(map(program_path, allow)):
            errors.append(
                "shell.enabled: a terminal runs any program, but exec.allow lists the only ones allowed (leave shell "
                "disabled, or set shell.argv to a listed program, by its path)"
            )
    if options.enabled("script"):
        errors.append(
            "script.enabled: a script runs any program, but exec.allow lists the only ones allowed (leave script "
            "disabled)"
        )
    if options.enabled("file.put"):
        for root in options.file_put.folders:
            found = list(dict.fromkeys(f"{one.path} ({one.description})" for one in conflicts(root, protected)))
            if found:
                more = f" and {len(found) - NAMED} more" if len(found) > NAMED else ""
                errors.append(
                    f"file_put.roots: {root} contains or lies in {', '.join(found[:NAMED])}{more}: whoever writes "
                    "there decides what the programs of exec.allow do (choose folders that contain data only, or set "
                    "file_put.enabled = false)"
                )
    if errors:
        raise ConfigError("\n  - ".join(["exec.allow could be bypassed:", *errors]), faults=tuple(errors))
