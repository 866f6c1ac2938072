"""What TLS costs a server, beside nginx: CPU of a new connection, and bytes of an idle one.

`python -m bench.tls.run` prints tables and may write a JSON file. Full handshakes and resumed ones, with certificates
of ECDSA (P-256) and RSA (2,048 bits). *The carrier* ends TLS in its own process. *nginx before the carrier* ends it in
nginx, and both processes count. *nginx, an answer* is nginx that sends 200 by itself: the least that a connection with
TLS can cost there. *The carrier without TLS* is the part of a connection that TLS has nothing to do with. The servers
take turns, each alone on the first core; the clients run on the second.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import ssl
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.output import medians, print_progress, table
from bench.peers import nginx
from bench.peers.c_programs import built
from bench.probe import BenchProcess, pin, pss, settled_cpu_us
from bench.tls.clients import MODES, TlsClients, shake_hands
from support.carrier.tls_site import make_certificate
from support.free_ports import free_port

KINDS = {"ecdsa": "ec", "rsa": "rsa"}
LABELS = {
    "carrier": "Fairlead's carrier",
    "nginx-proxy": "nginx before the carrier",
    "nginx-alone": "nginx, an answer",
    "uvicorn": "uvicorn on uvloop's TLS",
}
OURS = "carrier"


@dataclass(frozen=True)
class TlsScale:
    turns: int = 3
    connections: int = 800
    """Of a turn."""
    links: int = 2_000
    """Idle at once."""


SCALES = {"full": TlsScale(), "quick": TlsScale(2, 200, 500), "smoke": TlsScale(1, 8, 8)}


@dataclass(frozen=True)
class TlsServer:
    """A server under test: where it listens, and the processes that serve it."""

    port: int
    processes: tuple[BenchProcess | nginx.Nginx, ...]

    def cpu_us(self) -> float:
        """CPU so far, once it has done what it had to do."""
        return settled_cpu_us([process.pid for process in self.processes])

    def collected_pss(self) -> int:
        """Once it has closed what its clients have closed, and given the memory back."""
        self.cpu_us()
        for process in self.processes:
            if isinstance(process, BenchProcess):
                process.collect()
        return sum(pss(process.pid) for process in self.processes)


class TlsServers:
    """Starts the servers by name, with one certificate."""

    def __init__(self, folder: Path, kind: str) -> None:
        self._folder = folder
        self.certificate, self._key = make_certificate(folder, kind, kind=KINDS[kind])
        self._nginx = nginx.find()
        self.names = [name for name in LABELS if self._nginx or not name.startswith("nginx")]

    def _python(self, name: str) -> BenchProcess:
        port = free_port()
        command = [sys.executable, "-I", "-W", "ignore", "-m", "bench.peers.tls_servers", name, str(port)]
        process = BenchProcess(name, [*command, str(self.certificate), str(self._key)], self._folder, port)
        process.wait_listening()
        return process

    @contextmanager
    def running(self, name: str) -> Iterator[TlsServer]:
        processes: list[BenchProcess | nginx.Nginx] = []
        try:
            if name == "nginx-alone":
                processes.append(self._front(None))
            elif name == "nginx-proxy":
                processes.append(self._python("plain"))
                processes.insert(0, self._front(processes[0].port))
            else:
                processes.append(self._python(name))
            yield TlsServer(processes[0].port, tuple(processes))
        finally:
            for process in processes:
                process.stop()

    def _front(self, behind: int | None) -> nginx.Nginx:
        assert self._nginx is not None
        return nginx.Nginx(self._nginx, self._folder, self.certificate, self._key, behind)


def turn(server: TlsServer, program: Path, certificate: Path, count: int, mode: str) -> dict[str, float]:
    """CPU µs of a connection at the server, and the clients' share of their core. In the mode "resumed", the full
    handshake that fetches the session is in it too: one more among hundreds."""
    before = server.cpu_us()
    load = shake_hands(program, server.port, certificate, count, mode)
    return {"us": (server.cpu_us() - before) / count, "load": load}


def handshakes(
    servers: TlsServers, program: Path, kind: str, scale: TlsScale
) -> dict[str, dict[str, dict[str, float]]]:
    """By mode and server."""
    taken: dict[str, dict[str, list[dict[str, float]]]] = {mode: {name: [] for name in servers.names} for mode in MODES}
    for number in range(scale.turns):
        for name in servers.names:
            print_progress(f"{kind}, turn {number + 1} of {scale.turns}: {LABELS[name]}")
            with servers.running(name) as server:
                shake_hands(program, server.port, servers.certificate, max(8, scale.connections // 10), "full")  # warm
                for mode in MODES:
                    taken[mode][name].append(turn(server, program, servers.certificate, scale.connections, mode))
    return {mode: {name: medians(turns) for name, turns in by_name.items()} for mode, by_name in taken.items()}


def idle(servers: TlsServers, scale: TlsScale) -> dict[str, dict[str, float]]:
    """Bytes of an idle link in the processes that serve it, before and after a large message in each direction."""
    found: dict[str, dict[str, float]] = {}
    for name in servers.names:
        if name == "nginx-alone":  # it has no links
            continue
        print_progress(f"{scale.links} idle links: {LABELS[name]}")
        with servers.running(name) as server:
            clients = TlsClients(server.port, servers.certificate)
            with clients.held(max(8, scale.links // 10)) as links:  # warm
                clients.echo(links)
            before = server.collected_pss()
            with clients.held(scale.links) as links:
                fresh = server.collected_pss() - before
                clients.echo(links)
                used = server.collected_pss() - before
        found[name] = {"bytes": fresh / scale.links, "after_message": used / scale.links}
    return found


def show(figures: dict[str, Any]) -> None:
    for kind, modes in figures["handshakes"].items():
        for mode, by_name in modes.items():
            rows = [
                [LABELS[name], f"{one['us']:.0f} ({one['us_low']:.0f} to {one['us_high']:.0f})",
                 f"{one['us'] / by_name[OURS]['us']:.2f}", f"{one['load']:.2f}"]
                for name, one in by_name.items()
            ]  # fmt: skip
            table([f"{kind}, {mode}", "CPU µs per connection", "×", "load of the clients"], rows)
    rows = [
        [LABELS[name], f"{one['bytes']:,.0f}", f"{one['after_message']:,.0f}"] for name, one in figures["idle"].items()
    ]
    table(["bytes of an idle link", "fresh", "after 40 KB each way"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description="What TLS costs a server, beside nginx.")
    parser.add_argument("--scale", choices=SCALES, default="full")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    scale, program = SCALES[given.scale], built("handshake_clients")
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if (os.cpu_count() or 1) > 1:
        pin(os.getpid(), 1)
    figures: dict[str, Any] = {"connections": scale.connections, "turns": scale.turns, "links": scale.links}
    peer = nginx.find()
    if peer is None:
        print_progress("!! no nginx here: left out")
    figures["versions"] = {"openssl": ssl.OPENSSL_VERSION.split()[1]}
    if peer is not None:
        figures["versions"]["nginx"] = nginx.version(peer)
    figures["handshakes"] = {}
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        for kind in KINDS:
            servers = TlsServers(Path(name), kind)
            figures["handshakes"][kind] = handshakes(servers, program, kind, scale)
        figures["idle"] = idle(TlsServers(Path(name), "ecdsa"), scale)
    show(figures)
    if given.out is not None:
        given.out.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
