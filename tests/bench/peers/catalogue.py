"""The servers of the benchmark by name, and how each is started.

`installation.py` makes what they need. A peer that is not available is left out with a message, so that the
comparison of the others still runs.
"""

from __future__ import annotations

import sys
from pathlib import Path

from bench.peers.installation import Installation
from bench.probe import BenchProcess
from support.free_ports import free_port

HERE = Path(__file__).resolve().parent
PYTHON_PEERS = ("sansio", "legacy", "wsproto", "aiohttp", "websockets", "autobahn", "picows", "socketify")
GO_PEERS = ("gws", "gorilla")
OWN = ("fairlead", "epoll", "direct")
FLOORS = ("floor", "uvloop")
POLLING = ("socketify",)
"""Servers that use CPU time for a third of a second after the last event, because they poll without a pause."""
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
    "socketify": "socketify (µWebSockets, C++)",
    "ws": "ws on Node.js",
    "gws": "gws on Go",
    "gorilla": "gorilla on Go",
    "uvloop": "*floor: a bare protocol on uvloop*",
    "floor": "*floor: epoll in C*",
}


class Peers:
    """Starts the servers by name."""

    def __init__(self, folder: Path, fetch: bool) -> None:
        self._folder = folder
        self._found = found = Installation(fetch)
        self.names = [*OWN, *(PYTHON_PEERS if found.python else PRESENT)]
        self.names += ["ws"] if found.modules else []
        self.names += [name for name in GO_PEERS if name in found.compiled]
        self.names += ["uvloop", *(["floor"] if "floor" in found.compiled else [])]

    def versions(self) -> dict[str, str]:
        return self._found.versions()

    def start(self, name: str) -> BenchProcess:
        port, found = free_port(), self._found
        env: dict[str, str] = {}
        if name == "ws":
            command = ["node", "--expose-gc", str(HERE / "node" / "ws.js"), str(port)]
            env = {"NODE_PATH": str(found.modules)}
        elif name in found.compiled:
            command = [str(found.compiled[name]), str(port)]
            env = {"GOMAXPROCS": "1"}  # one core is what each server gets
        elif name == "uvloop":
            command = [sys.executable, "-I", str(HERE / "floor.py"), str(port)]
        else:
            python = str(found.python) if found.python and name not in OWN else sys.executable
            command = [python, "-P", "-W", "ignore", str(HERE / "servers.py"), name, str(port)]
        process = BenchProcess(name, command, self._folder, port, env)
        process.wait_listening()
        return process

    def gateway(self, redis: str, folder: Path) -> tuple[BenchProcess, int, int]:
        """The real node; its API port and its admin port too."""
        link, api, admin = free_port(), free_port(), free_port()
        command = [
            sys.executable, str(HERE / "servers.py"), "node", "--redis", redis, "--link-port", str(link),
            "--api-port", str(api), "--admin-port", str(admin), "--accept-rate", "100000", "--capacity", "19000",
            "--heartbeat", "600",
        ]  # fmt: skip
        process = BenchProcess("node", command, folder, link)
        process.wait_listening()
        return process, api, admin
