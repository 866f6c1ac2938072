"""What the peers of the benchmark need, made on demand under .cache/bench: versions and hashes are in the repository.

Python's peers come from requirements/bench.txt into an environment of their own; Node's from node/package-lock.json;
the servers in Go from their go.sum; the floor is compiled. What cannot be had is left out with a message.
Called by `catalogue`, `market` and `hosts`. A test downloads nothing (`fetch` is false).
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from bench.output import print_progress
from bench.peers import c_programs
from bench.peers.c_programs import CACHE, ROOT, is_newer

HERE = Path(__file__).resolve().parent
REQUIREMENTS = ROOT / "requirements" / "bench.txt"
LOCK = HERE / "node" / "package-lock.json"
GO_SERVERS = ("gws", "gorilla")
TIMEOUT = 600.0
"""Seconds for one installation: a first build of a server in Go compiles Go's own library too."""


class Installation:
    """What is there; each part is None or missing where it could not be had."""

    def __init__(self, fetch: bool) -> None:
        self.python = _python(fetch)
        """The interpreter of the Python peers' environment."""
        self.modules = _node_modules(fetch)
        """The folder of Node's packages."""
        self.compiled = {name: path for name in GO_SERVERS if (path := _server_in_go(name, fetch))}
        """The executable files of the compiled servers, by name."""
        if (needed := c_programs.lacking("floor")) is None:
            self.compiled["floor"] = c_programs.built("floor")
        else:
            _left_out(needed)

    def versions(self) -> dict[str, str]:
        """Of the peers and of what they run on."""
        pinned = dict(re.findall(r"(?m)^([a-z0-9._-]+)==([^ ]+)", REQUIREMENTS.read_text()))
        for file in sorted(HERE.glob("*/go.mod")):
            pinned |= dict(re.findall(r"^require (\S+) v(\S+)$", file.read_text(), re.MULTILINE))
        pinned |= json.loads(LOCK.with_name("package.json").read_text())["dependencies"]
        for name, command in (("node", "node --version"), ("go", "go version"), ("gcc", "gcc -dumpfullversion")):
            if (program := _compiler(name)) is not None:
                arguments = [program, *command.split()[1:]]
                done = subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=False)
                pinned[name] = done.stdout.strip()
        return pinned


def _python(fetch: bool) -> Path | None:
    home = CACHE / "venv"
    python, stamp = home / "bin" / "python", home / ".installed"
    if stamp.exists() and stamp.read_text() == REQUIREMENTS.read_text():
        return python
    if not fetch:
        _left_out("the Python peers are not installed, and this scale fetches nothing")
        return None
    install = ["-I", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--require-hashes", "-r"]
    for command in ([sys.executable, "-m", "venv", "--clear", str(home)], [str(python), *install, str(REQUIREMENTS)]):
        if not _done(command, "the Python peers cannot be installed"):
            return None
    stamp.write_text(REQUIREMENTS.read_text())
    return python


def _node_modules(fetch: bool) -> Path | None:
    if shutil.which("npm") is None or shutil.which("node") is None:
        _left_out("no Node.js is here, so its peers")
        return None
    home = CACHE / "node"
    stamp = home / ".installed"
    if stamp.exists() and stamp.read_text() == LOCK.read_text():
        return home / "node_modules"
    if not fetch:
        _left_out("Node's packages are not installed, and this scale fetches nothing")
        return None
    home.mkdir(parents=True, exist_ok=True)
    for file in (LOCK, LOCK.with_name("package.json")):
        shutil.copy(file, home)
    command = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--prefix", str(home)]
    if not _done(command, "npm cannot install Node's packages"):
        return None
    stamp.write_text(LOCK.read_text())
    return home / "node_modules"


def _server_in_go(name: str, fetch: bool) -> Path | None:
    """The executable, built anew when its source has changed."""
    folder = HERE / name
    server = CACHE / f"server-{name}"
    if is_newer(server, folder.iterdir()):
        return server
    compiler = _compiler("go")
    if compiler is None or not fetch:
        why = "no Go is here" if compiler is None else "this scale builds nothing"
        _left_out(f"{name} is not built, because {why}")
        return None
    CACHE.mkdir(parents=True, exist_ok=True)
    command = [compiler, "build", "-mod=readonly", "-o", str(server), "."]
    return server if _done(command, f"{name} cannot be built", folder) else None


def _compiler(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/local/go/bin")


def _left_out(what: str) -> None:
    print_progress(f"!! {what}: left out")


def _done(command: list[str], otherwise: str, folder: Path | None = None) -> bool:
    done = subprocess.run(command, cwd=folder, capture_output=True, timeout=TIMEOUT, check=False)
    if done.returncode:
        print_progress(f"!! {otherwise}: {done.stderr.decode()[-300:]}; left out")
    return done.returncode == 0
