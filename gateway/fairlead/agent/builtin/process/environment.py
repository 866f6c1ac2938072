"""The environment of the programs that the platform starts: what a login sets, and what the configuration names.

Used by `exec` and `shell`. The agent's own environment may contain its token, a proxy's password, credentials from its
service manager, or a library to preload. The platform must not see any of these, so a program inherits only the
variables that are listed.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

INHERITED = frozenset(
    {"HOME", "LANG", "LANGUAGE", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "TZ", "USER"}
)  # what login(1) and pam_env set, and a folder for temporary files
PREFIX = "LC_"
OWN_PREFIX = "FAIRLEAD_"
"""Variables with this prefix are never inherited, whatever the configuration says."""


def inherited_environment(environment: Mapping[str, str], keep: Iterable[str] = ()) -> dict[str, str]:
    """The part of `environment` that a program inherits; `keep` names more of it. There is always a PATH."""
    names = INHERITED.union(keep)
    found = {
        name: value
        for name, value in environment.items()
        if (name in names or name.startswith(PREFIX)) and not name.startswith(OWN_PREFIX)
    }
    return {"PATH": os.defpath} | found
