"""`fairlead redis check` and `fairlead doctor` with each kind of Redis, fit for a fleet and not."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.cli.processes import environment
from support.free_ports import free_port
from support.valkey.cluster import Cluster
from support.valkey.replication import Replication
from support.valkey.server import PASSWORD, ValkeyServer


def examine(url: str, folder: Path) -> dict[str, dict[str, Any]]:
    """The checks, by name."""
    file = folder / "redis-url"
    file.write_text(url)
    api = f"http://127.0.0.1:{free_port()}"
    done = subprocess.run(
        [sys.executable, "-P", "-m", "fairlead", "redis", "check", "-o", "json", "--redis-file", str(file)],
        capture_output=True, stdin=subprocess.DEVNULL, timeout=60, check=False, env=environment(api),
    )  # fmt: skip
    assert PASSWORD.encode() not in done.stdout + done.stderr
    found = json.loads(done.stdout)["checks"]
    return {one["name"]: one for one in found}


def diagnose(url: str, folder: Path) -> dict[str, dict[str, Any]]:
    """What the doctor finds in the Redis of a node's settings, while no gateway runs."""
    file, settings = folder / "doctor-url", folder / "node.toml"
    file.write_text(url)
    settings.write_text(f'redis_file = "{file}"\n')
    api = f"http://127.0.0.1:{free_port()}"
    done = subprocess.run(
        [sys.executable, "-P", "-m", "fairlead", "doctor", "-o", "json", "--no-links", "--config", str(settings)],
        capture_output=True, stdin=subprocess.DEVNULL, timeout=60, check=False, env=environment(api),
    )  # fmt: skip
    assert PASSWORD.encode() not in done.stdout + done.stderr
    assert done.returncode == 1  # nobody listens at the API
    return {one["name"]: one for one in json.loads(done.stdout)["checks"] if one["target"] != api}


def failed(checks: dict[str, dict[str, Any]]) -> list[str]:
    return [name for name, check in checks.items() if check["ok"] is False]


@pytest.fixture(scope="module")
def replication(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replication]:
    made = Replication(tmp_path_factory.mktemp("replication"))
    try:
        asyncio.run(made.start())
        yield made
    finally:
        made.stop()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    made = Cluster(tmp_path_factory.mktemp("cluster"))
    try:
        asyncio.run(made.start())
        yield made
    finally:
        made.stop()


def test_one_server(tmp_path: Path) -> None:
    server = ValkeyServer(tmp_path / "valkey")
    asyncio.run(server.start())
    url = f"redis://:{PASSWORD}@{server.address}"
    try:
        assert failed(found := examine(url, tmp_path)) == []
        assert list(found) == ["connect", "server", "rights"]
        asyncio.run(server.call("CONFIG", "SET", "maxmemory-policy", "allkeys-lru"))
        found = examine(url, tmp_path)
        assert failed(found) == ["server"]
        assert failed(diagnosed := diagnose(url, tmp_path)) == ["server"]
        assert list(diagnosed) == list(found)
        assert failed(examine(url.replace(PASSWORD, "wrong"), tmp_path)) == ["connect"]
    finally:
        server.stop()
    assert failed(examine(url, tmp_path)) == ["connect"]


def test_sentinels(replication: Replication, tmp_path: Path) -> None:
    found = examine(replication.url, tmp_path)
    assert failed(found) == []
    assert list(found) == ["connect", "server", "rights", "sentinels", "primary", "servers"]
    assert "3 Sentinels name 127.0.0.1:" in found["sentinels"]["message"]
    assert failed(diagnosed := diagnose(replication.url, tmp_path)) == []
    assert list(diagnosed) == list(found)
    found = examine(replication.url.replace("sentinel_password=", "sentinel_password=x"), tmp_path)
    assert "refuse the user and password" in found["connect"]["message"]
    found = examine(replication.url.replace(replication.sentinels[1].address, f"127.0.0.1:{free_port()}"), tmp_path)
    assert failed(found) == ["sentinels"]
    assert found["primary"]["ok"] is None


def test_a_cluster(cluster: Cluster, tmp_path: Path) -> None:
    found = examine(cluster.url, tmp_path)
    assert failed(found) == []
    assert list(found) == ["connect", "server", "rights", "slots", "primaries", "servers", "clocks"]
    assert "3 primaries have all slots" in found["slots"]["message"]
    assert failed(diagnosed := diagnose(cluster.url, tmp_path)) == []
    assert list(diagnosed) == list(found)


def test_a_cluster_that_stops_as_a_whole_is_told(cluster: Cluster, tmp_path: Path) -> None:
    asyncio.run(cluster.servers[1].call("CONFIG", "SET", "cluster-require-full-coverage", "yes"))
    found = examine(cluster.url, tmp_path)
    asyncio.run(cluster.servers[1].call("CONFIG", "SET", "cluster-require-full-coverage", "no"))
    assert failed(found) == ["servers"]
    assert cluster.servers[1].address in found["servers"]["message"]


def test_a_url_of_no_kind_is_refused(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "fairlead", "redis", "check", "--redis", "redis+other://h"],
        capture_output=True, stdin=subprocess.DEVNULL, timeout=60, check=False, env=environment("http://127.0.0.1:9"),
    )  # fmt: skip
    assert done.returncode == 2
    assert b"redis+cluster://" in done.stderr
