"""nginx of the system, as the peer of `bench.tls`: one worker, TLS, and either an answer of its own or a server behind.

It is not fetched: without an `nginx` on the PATH the run leaves it out and says so.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from pathlib import Path

from bench.probe import TIMEOUT, BenchProcess, children, pin
from support.free_ports import free_port

CONFIGURATION = """
daemon off;
worker_processes 1;
pid {folder}/{name}.pid;
error_log stderr error;
events {{ worker_connections 16384; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    server {{
        listen 127.0.0.1:{port} ssl backlog=2048;
        ssl_certificate {certificate};
        ssl_certificate_key {key};
        ssl_protocols TLSv1.2 TLSv1.3;
        location / {{ {location} }}
    }}
}}
"""
ANSWER = 'return 200 "ok";'
PROXY = """
            proxy_pass http://127.0.0.1:{behind};
            proxy_http_version 1.1;
            proxy_set_header Host $host;
            proxy_set_header Upgrade $http_upgrade;
            proxy_set_header Connection upgrade;
            proxy_read_timeout 1h;
            proxy_send_timeout 1h;
"""


def find() -> str | None:
    """The program; distributions put it where a user's PATH does not look."""
    return shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin:/opt/homebrew/bin")


def version(program: str) -> str:
    told = subprocess.run([program, "-v"], capture_output=True, text=True, timeout=30, check=True).stderr
    found = re.search(r"nginx/(\S+)", told)
    return found[1] if found else told.strip()


class Nginx:
    """A running nginx in front of the server on the port `behind`, or answering by itself."""

    def __init__(self, program: str, folder: Path, certificate: Path, key: Path, behind: int | None = None) -> None:
        self.name = "nginx-alone" if behind is None else "nginx-proxy"
        port, file = free_port(), folder / f"{self.name}.conf"
        location = ANSWER if behind is None else PROXY.format(behind=behind)
        file.write_text(
            CONFIGURATION.format(
                folder=folder, name=self.name, port=port, certificate=certificate, key=key, location=location
            )
        )
        command = [program, "-c", str(file), "-e", "stderr", "-p", str(folder)]
        self._process = BenchProcess(self.name, command, folder, port)
        self._process.wait_listening()
        self.pid = self._worker()
        pin(self.pid, 0)

    @property
    def port(self) -> int:
        return self._process.port

    def _worker(self) -> int:
        deadline = time.monotonic() + TIMEOUT
        while not (found := children(self._process.pid)):
            if time.monotonic() > deadline:
                raise SystemExit("nginx has no worker process")
            time.sleep(0.02)
        return found[0]

    def stop(self) -> None:
        self._process.stop()
