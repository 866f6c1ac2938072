"""A copy of the project's files in a folder of its own, as a fresh clone has them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
UV = ROOT / ".cache" / "uv" / "uv"


def project_files(*patterns: str) -> list[Path]:
    """All files of the project, those that git has or would take; with `patterns`, those that match one of them."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", *patterns],
        cwd=ROOT,
        capture_output=True,
        check=True,
        timeout=30,
    ).stdout
    return [path for name in listing.decode().split("\0") if name and (path := ROOT / name).is_file()]


def clone_into(folder: Path) -> None:
    """Copy all files of the project. The uv that this clone has comes along, if there is one."""
    for path in project_files():
        copy = folder / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, copy)
    if UV.exists():
        (folder / ".cache" / "uv").mkdir(parents=True)
        shutil.copy2(UV, folder / ".cache" / "uv" / "uv")


def bring_bytecode(folder: Path) -> None:
    """Give a copy whose environment is installed the bytecode of this one, or each of its commands would compile what
    it imports. Python uses bytecode only where size and time of the source are those that it was made from."""
    packages = Path(sysconfig.get_path("purelib"))
    places = {packages: folder / ".venv" / packages.relative_to(sys.prefix)}
    places |= {ROOT / room: folder / room for room in ("gateway", "operator")}
    for ours, theirs in places.items():
        for cache in ours.rglob("__pycache__"):
            parent = theirs / cache.parent.relative_to(ours)
            if parent.is_dir():
                shutil.copytree(cache, parent / cache.name, dirs_exist_ok=True)


def clean_environment() -> dict[str, str]:
    """This process's environment without what a make or a Python around it has left there."""
    return {
        key: value for key, value in os.environ.items() if not key.startswith(("MAKE", "MFLAGS", "PYTHON", "PYTEST"))
    }
