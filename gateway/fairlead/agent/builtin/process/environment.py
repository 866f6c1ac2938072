"""The environment of the programs that the platform starts: what a login would have, and what the configuration names.

Used by `exec` and `shell`. The agent's own environment may hold its token, a proxy's password, the credentials that its
service manager gave it, or a library to preload: none of that is the platform's business, so nothing is inherited that
is not named here.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

INHERITED = frozenset(
    {"HOME", "LANG", "LANGUAGE", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "TZ", "USER"}
)  # what login(1) and pam_env set, and a folder for temporary files
PREFIX = "LC_"
OWN_PREFIX = "FAIRLEAD_"
"""Never inherited, whatever the configuration says."""


def inherited_environment(environment: Mapping[str, str], keep: Iterable[str] = ()) -> dict[str, str]:
    """What of `environment` a program gets; `keep` names more of it. There is always a PATH."""
    names = INHERITED.union(keep)
    found = {
        name: value
        for name, value in environment.items()
        if (name in names or name.startswith(PREFIX)) and not name.startswith(OWN_PREFIX)
    }
    return {"PATH": os.defpath} | found
