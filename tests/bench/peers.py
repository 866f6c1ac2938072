"""The servers of the benchmark by name, and how each is installed: environments under .cache/bench, created on demand.

Python's peers are installed from requirements/bench.txt, with hashes, into an environment of their own; Node's `ws`
by npm; the Go server is built from its source. A peer that is not available is left out with a message, so that the
comparison of the others still runs. A test downloads nothing.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from bench.probe import BenchProcess
from support.free_ports import free_port

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
CACHE = ROOT / ".cache" / "bench"
REQUIREMENTS = ROOT / "requirements" / "bench.txt"
WS = "8.23.0"
PYTHON_PEERS = ("sansio", "legacy", "wsproto", "aiohttp", "websockets", "autobahn", "picows")
OWN = ("fairlead", "epoll", "direct")
PRESENT = ("sansio", "aiohttp")
"""Peers that the development environment has too, for runs that fetch nothing."""
LABELS = {
    "fairlead": "Fairlead's carrier",
    "epoll": "Fairlead's carrier, epoll",
    "direct": "Fairlead's carrier, epoll, accepting directly",
    "sansio": "uvicorn, websockets-sansio",
    "legacy": "uvicorn, websockets",
    "wsproto": "uvicorn, wsproto",
    "aiohttp": "aiohttp",
    "websockets": "websockets, asyncio",
    "autobahn": "autobahn, asyncio",
    "picows": "picows (Cython)",
    "ws": "ws on Node.js",
    "gorilla": "gorilla on Go",
}


def print_progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


class Peers:
    """Starts the servers by name."""

    def __init__(self, folder: Path, fetch: bool) -> None:
        self._folder = folder
        self._python = _python(fetch)
        self._modules = _node_modules(fetch)
        self._go = _go_server(fetch)
        self.names = [*OWN, *(PYTHON_PEERS if self._python else PRESENT)]
        self.names += ["ws"] if self._modules else []
        self.names += ["gorilla"] if self._go else []

    def start(self, name: str) -> BenchProcess:
        port = free_port()
        env: dict[str, str] = {}
        if name == "ws":
            command = ["node", "--expose-gc", str(HERE / "node_ws.js"), str(port)]
            env = {"NODE_PATH": str(self._modules)}
        elif name == "gorilla":
            command = [str(self._go), str(port)]
            env = {"GOMAXPROCS": "1"}  # one core is what each server gets
        else:
            python = str(self._python) if self._python and name not in OWN else sys.executable
            command = [python, "-P", "-W", "ignore", str(HERE / "servers.py"), name, str(port)]
        process = BenchProcess(name, command, self._folder, port, env)
        process.wait_listening()
        return process

    def gateway(self, redis: str, folder: Path) -> tuple[BenchProcess, int]:
        """The real node; its API port too."""
        link, api, admin = free_port(), free_port(), free_port()
        command = [
            sys.executable, str(HERE / "servers.py"), "node", "--redis", redis, "--link-port", str(link),
            "--api-port", str(api), "--admin-port", str(admin), "--accept-rate", "100000", "--capacity", "19000",
            "--heartbeat", "600",
        ]  # fmt: skip
        process = BenchProcess("node", command, folder, link)
        process.wait_listening()
        return process, api


def _python(fetch: bool) -> Path | None:
    """The interpreter of the peers' environment."""
    home = CACHE / "venv"
    python, stamp = home / "bin" / "python", home / ".installed"
    if stamp.exists() and stamp.read_text() == REQUIREMENTS.read_text():
        return python
    if not fetch:
        print_progress("!! the Python peers were not installed yet, which this scale does not do: most are left out")
        return None
    install = ["-I", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--require-hashes", "-r"]
    for command in ([sys.executable, "-m", "venv", "--clear", str(home)], [str(python), *install, str(REQUIREMENTS)]):
        if not _done(command, "the Python peers cannot be installed"):
            return None
    stamp.write_text(REQUIREMENTS.read_text())
    return python


def _node_modules(fetch: bool) -> Path | None:
    """The folder that holds Node's `ws`."""
    if shutil.which("npm") is None or shutil.which("node") is None:
        print_progress("!! no Node.js here: its peer is left out")
        return None
    modules = CACHE / "node_modules"
    if (modules / "ws").exists():
        return modules
    if not fetch:
        print_progress("!! ws was not fetched yet, which this scale does not do: its peer is left out")
        return None
    CACHE.mkdir(parents=True, exist_ok=True)
    command = ["npm", "install", "--no-save", "--no-audit", "--no-fund", "--prefix", str(CACHE), f"ws@{WS}"]
    return modules if _done(command, "npm could not get ws") else None


def _go_server(fetch: bool) -> Path | None:
    """The Go server, built anew when its source has changed."""
    server, source = CACHE / "go_ws", HERE / "go"
    newest = max(file.stat().st_mtime for file in source.iterdir())
    if server.exists() and server.stat().st_mtime > newest:
        return server
    usual = "/usr/local/go/bin"
    go = shutil.which("go", path=f"{os.environ.get('PATH', '')}:{usual}")
    if go is None or not fetch:
        print_progress("!! no Go here, or nothing is built at this scale: its peer is left out")
        return None
    CACHE.mkdir(parents=True, exist_ok=True)
    return server if _done([go, "build", "-o", str(server), "."], "the Go server cannot be built", source) else None


def _done(command: list[str], otherwise: str, folder: Path | None = None) -> bool:
    got = subprocess.run(command, cwd=folder, capture_output=True, timeout=300, check=False)
    if got.returncode:
        print_progress(f"!! {otherwise}: {got.stderr.decode()[-300:]}; left out")
    return got.returncode == 0
