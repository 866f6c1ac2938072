"""The token in a file that may be replaced while the agent runs: it is read at each attempt to connect.

Given to the agent in place of a token. A file that everyone can read is used with a warning, because whether that is
acceptable is for the owner of the host to decide.
"""

from __future__ import annotations

import logging
import os
import re
import stat
from pathlib import Path

from fairlead.errors import ConfigError

logger = logging.getLogger("fairlead.agent")

LIMIT = 16 << 10
"""The maximum number of bytes that are read: no token is as long, and /dev/zero has no end."""


class TokenFile:
    def __init__(self, path: Path, setting: str = "token_file") -> None:
        self._path = path
        self._setting = setting
        self._warned = False

    def __call__(self) -> str:
        """Raises ConfigError when no token can be read."""
        try:
            with self._path.open("rb") as file:
                mode = os.fstat(file.fileno()).st_mode
                text = file.read(LIMIT).decode("ascii").strip()
        except OSError as e:
            raise ConfigError(
                f"{self._setting} {self._path} cannot be read ({e.strerror or e}); check the path and its permissions"
            ) from e
        except UnicodeDecodeError as e:
            raise ConfigError(f"{self._setting} {self._path} is not ASCII text; put the token into it alone") from e
        if re.fullmatch(r"[!-~]{1,4096}", text) is None:
            raise ConfigError(
                f"{self._setting} {self._path} does not hold one token of 1 to 4096 printable characters; put it there "
                "alone"
            )
        if stat.S_ISREG(mode) and mode & stat.S_IROTH and not self._warned:
            self._warned = True
            logger.warning(
                "%s %s can be read by everyone on this host; run: chmod o-rwx %s", self._setting, self._path, self._path
            )
        return text
