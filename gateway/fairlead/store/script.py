"""A Lua script: its name, its source and the SHA-1 by which the server identifies it.

A script is loaded once, at import, from the data of the package that owns it. `Pipeliner.run` runs it and loads it into
the server if necessary. A script without the `#!lua` line is refused: because of that line, a server in cluster mode
rejects keys of another slot, and a server that is out of memory starts only scripts with `flags=allow-oom`.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from importlib import resources


@dataclass(frozen=True, slots=True)
class Script:
    name: str
    source: str = field(repr=False)
    sha: bytes = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not self.source.startswith("#!lua"):
            raise ValueError(f"script {self.name} does not begin with #!lua")
        # The server identifies scripts by SHA-1; security does not depend on it.
        digest = hashlib.sha1(self.source.encode(), usedforsecurity=False).hexdigest()
        object.__setattr__(self, "sha", digest.encode())


WRITE = Script("write", "#!lua flags=allow-oom\nreturn redis.call(ARGV[1], KEYS[1], unpack(ARGV, 2))\n")
"""Runs one command with one key even if the server is out of memory."""


def load(package: str, name: str) -> Script:
    """Load the script in the file `name`.lua of `package`."""
    source = resources.files(package).joinpath(f"{name}.lua").read_text(encoding="utf-8")
    return Script(name, source)
