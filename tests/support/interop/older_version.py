"""An older version of Fairlead from this repository's history: its source in a folder, and its programs as processes.

Made for tests that play both versions in one fleet. Its programs run in this environment's Python with the older source
in front, so that they use the packages of today.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
COMMIT = os.environ.get("OLDER_COMMIT", "HEAD~1")
"""Which version; by default the one before the last commit."""


class HistoryMissing(Exception):
    """There is no such commit here; the message says why."""


class Version:
    """One version of the source."""

    def __init__(self, name: str, gateway: Path) -> None:
        self.name = name
        self._gateway = gateway

    def within(self) -> tuple[str, ...]:
        """What runs a program of this version: a prefix of its command line."""
        return "env", f"PYTHONPATH={self._gateway}"

    def run(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """`fairlead` with `arguments`, to its end."""
        return subprocess.run(
            [*self.within(), sys.executable, "-m", "fairlead", *arguments], stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=120, check=False, env={**os.environ, **environment},
        )  # fmt: skip

    def source(self) -> Path:
        """Where its programs find the package."""
        command = [*self.within(), sys.executable, "-c", "import fairlead; print(fairlead.__file__)"]
        return Path(subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.strip())


PRESENT = Version("present", ROOT / "gateway")


def older(folder: Path, commit: str = COMMIT) -> Version:
    """The source of `commit`, unpacked into `folder`. Raises HistoryMissing."""
    unpack(folder, commit, "gateway")
    return Version("older", folder / "gateway")


def unpack(folder: Path, commit: str, *paths: str) -> None:
    """`paths` of `commit`, or all files, in `folder`. Raises HistoryMissing."""
    archive = _git("archive", "--format=tar", commit, *paths)
    with tarfile.open(fileobj=io.BytesIO(archive)) as found:
        found.extractall(folder, filter="data")


def short_name(commit: str) -> str:
    """The abbreviated hash of a commit. Raises HistoryMissing."""
    return _git("rev-parse", "--verify", "--short=8", f"{commit}^{{commit}}").decode().strip()


def _git(*arguments: str) -> bytes:
    try:
        return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, check=True, timeout=60).stdout
    except FileNotFoundError as e:
        raise HistoryMissing("git is not installed") from e
    except subprocess.CalledProcessError as e:
        raise HistoryMissing(e.stderr.decode(errors="replace").strip()) from e
