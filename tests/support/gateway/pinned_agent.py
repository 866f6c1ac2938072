"""The shipped agent with trusted keys as a process; what it has run is in a file that its commands write."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from fairlead.signing.keys import PrivateKey

GIVE_UP = 20


class PinnedAgent:
    """A `fairlead agent run` that trusts one key."""

    def __init__(self, folder: Path, link: str, id: str, key: PrivateKey) -> None:
        self.id, self._marks = id, folder / f"{id}.marks"
        self._marks.touch()
        keys = folder / f"{id}.pub"
        keys.write_text(key.public.line() + "\n")
        ours = {name: value for name, value in os.environ.items() if not name.startswith("FAIRLEAD_")}
        with (folder / f"{id}.log").open("wb") as log:
            self._process = subprocess.Popen(
                [
                    sys.executable, "-m", "fairlead", "agent", "run", "--config", os.devnull, "--url", link, "--id", id,
                    "--journal", str(folder / f"{id}-journal"), "--trusted-keys", str(keys),
                ],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env={**ours, "FAIRLEAD_AGENT_TOKEN": "development-agent-token"},
            )  # fmt: skip

    @property
    def pid(self) -> int:
        return self._process.pid

    def payload(self, mark: str) -> bytes:
        """Of an `exec` that leaves this mark."""
        script = 'printf "%s\\n" "$1" >> "$2"'
        return json.dumps({"argv": ["sh", "-c", script, "sh", mark, str(self._marks)]}).encode()

    @property
    def marks(self) -> list[str]:
        """Of all that it has run."""
        return self._marks.read_text().splitlines()

    def stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(GIVE_UP)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
