"""The benchmark of TLS runs at a tiny scale, with nginx where there is one; its figures are not checked."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench.peers import nginx
from bench.record.comparison import behind
from bench.record.page import SECTIONS
from bench.tls.run import LABELS
from support.c_compiler import needs

pytestmark = pytest.mark.timeout(300)  # of servers that start and stop, on a machine that may do much else


@needs("handshake_clients")
def test_the_benchmark_of_tls_runs_at_a_tiny_scale(tmp_path: Path) -> None:
    out = tmp_path / "figures.json"
    done = subprocess.run(
        [sys.executable, "-I", "-m", "bench.tls.run", "--scale", "smoke", "--out", str(out)],
        capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    figures = json.loads(out.read_text())
    present = {name for name in LABELS if nginx.find() or not name.startswith("nginx")}
    assert figures["handshakes"].keys() == {"ecdsa", "rsa"}
    for modes in figures["handshakes"].values():
        assert modes.keys() == {"full", "resumed"}
        for servers in modes.values():
            assert servers.keys() == present
            assert all(one["us"] > 0 for one in servers.values())
    assert figures["idle"].keys() == present - {"nginx-alone"}
    assert "### TLS beside nginx" in SECTIONS["tls"](figures)


def test_what_is_behind_nginx_is_listed() -> None:
    servers = {"carrier": {"us": 600.0}, "nginx-proxy": {"us": 700.0}, "nginx-alone": {"us": 500.0}}
    sizes = {"carrier": {"bytes": 13e3, "after_message": 13e3}, "nginx-proxy": {"bytes": 12e3, "after_message": 41e3}}
    found = behind({"tls": {"figures": {"handshakes": {"rsa": {"full": servers}}, "idle": sizes}}})
    assert [(one.what, one.peer, one.theirs, one.ours) for one in found] == [
        ("a new connection over TLS, rsa, full, CPU", "nginx, an answer", "500 µs", "600 µs"),
        ("bytes of an idle link over TLS", "nginx before the carrier", "12,000 B", "13,000 B"),
    ]
