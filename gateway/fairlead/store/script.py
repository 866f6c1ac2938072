"""A Lua script of ours: its name, its source and the SHA the server knows it by.

Loaded once at import from the package data of the room that owns it, and run through `Pipeliner.run`, which
also sees to it that the server has it. Scripts without the `#!lua` line are refused: that line makes a server
in cluster mode reject keys of another slot, and it keeps a script from starting on a server that is out of
memory.
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
        # The server names scripts by SHA-1; nothing here rests on its strength.
        digest = hashlib.sha1(self.source.encode(), usedforsecurity=False).hexdigest()
        object.__setattr__(self, "sha", digest.encode())


def load(package: str, name: str) -> Script:
    """The script in the file `name`.lua of `package`."""
    source = resources.files(package).joinpath(f"{name}.lua").read_text(encoding="utf-8")
    return Script(name, source)
