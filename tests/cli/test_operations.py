"""`fairlead drain` and `rebalance` without a cluster; tests/operator plays them with one."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from support.cli.processes import environment

TIMEOUT = 240
"""Seconds: the client of Kubernetes takes two of a CPU to import."""
pytestmark = pytest.mark.timeout(TIMEOUT + 60)


def run(*args: str) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-P", "-m", "fairlead", *args]
    return subprocess.run(command, capture_output=True, timeout=TIMEOUT, env=environment(None), check=False)


def kubeconfig(folder: Path, server: str) -> str:
    path = folder / "kubeconfig"
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    path.write_text(json.dumps(config))
    return str(path)


def test_without_a_kubeconfig_the_message_names_the_option(tmp_path: Path) -> None:
    done = run("rebalance", "edge", "--kubeconfig", str(tmp_path / "none"))
    assert done.returncode == 2
    assert b"the kubeconfig cannot be used" in done.stderr
    assert b"set KUBECONFIG or --kubeconfig" in done.stderr


def test_an_unknown_context_is_named(tmp_path: Path) -> None:
    done = run("rebalance", "edge", "--kubeconfig", kubeconfig(tmp_path, "https://127.0.0.1:1"), "--context", "other")
    assert done.returncode == 2
    assert b"other" in done.stderr


def test_an_api_server_that_is_away_is_unavailable(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    done = run("drain", "edge", "edge-1", "--kubeconfig", kubeconfig(tmp_path, f"http://127.0.0.1:{port}"))
    assert done.returncode == 3
    assert b"the API server cannot be reached" in done.stderr
    assert "→ `kubectl cluster-info` shows".encode() in done.stderr
    assert b"Traceback" not in done.stderr


def test_without_the_package_the_message_says_what_to_install() -> None:
    code = "import sys; sys.modules['kubernetes'] = None; sys.argv = ['fairlead', 'rebalance', 'edge']; " + (
        "from fairlead.cli.main import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, timeout=TIMEOUT, env=environment(None), check=False
    )
    assert done.returncode == 2
    assert b"pip install 'fairlead[operator]'" in done.stderr
