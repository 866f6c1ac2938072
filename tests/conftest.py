"""Fixtures for the rooms that use Redis: a real Valkey per module, emptied for each test; tests that kill or freeze it
start their own. Folders with other needs define fixtures of the same names."""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import signal
import subprocess
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import httpx2
import pytest
from hypothesis import settings

from fairlead.agent.host.signals import reset_ignored_signals
from fairlead.store.embedded_valkey.server import EmbeddedValkey
from fairlead.store.pipeliner import Pipeliner

if TYPE_CHECKING:
    from support.oidc.issuer import Issuer

pytest.register_assert_rewrite("support")
settings.register_profile("fairlead", deadline=None)  # hypothesis' own 200 ms say how busy the machine is
settings.load_profile("fairlead")

FILES = 8_192
PLATFORM = {"authorization": "Bearer development-platform-token"}
Connect: TypeAlias = "Callable[[str], Awaitable[Pipeliner]]"


class FailedTests:
    """Names each failed test at once: a whole run takes half an hour, and its own report comes at its end."""

    def __init__(self, reporter: pytest.TerminalReporter) -> None:
        self._reporter = reporter

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            message = str(getattr(getattr(report.longrepr, "reprcrash", None), "message", ""))
            self._reporter.ensure_newline()
            self._reporter.write_line(f"FAILED {report.nodeid} ({report.when}): {' '.join(message.split())[:300]}")


@pytest.hookimpl(trylast=True)  # after the reporter is made
def pytest_configure(config: pytest.Config) -> None:
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None:  # the processes of a run in parallel have none
        config.pluginmanager.register(FailedTests(reporter), "failed_tests")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """List what was skipped with one line for each reason instead of each test, so that failures stay visible."""
    skipped = terminalreporter.getreports("skipped")
    reasons = Counter(report.longrepr[2].removeprefix("Skipped: ") for report in skipped)
    if reasons:
        terminalreporter.section("not tested here")
    for reason, count in reasons.most_common():
        terminalreporter.write_line(f"{count:5} × {reason}")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the processors busy to the end: long tests that mostly wait begin early. Those with an API server are in a
    row, because each process that runs one has a server of its own until it ends."""

    def is_short(item: pytest.Item) -> bool:
        return item.get_closest_marker("long") is None

    with_api_server = {item: None for item in items if "control_plane" in getattr(item, "fixturenames", ())}
    if with_api_server:
        place = items.index(next(iter(with_api_server)))
        items[:] = [item for item in items if item not in with_api_server]
        items[place:place] = sorted(with_api_server, key=is_short)
    items.sort(key=lambda item: is_short(item) or item in with_api_server)


def pytest_collection_finish() -> None:
    """What was collected lives as long as the process: no search for garbage during the tests need look at it again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def signals_of_children() -> None:
    """What tests start hears SIGHUP and SIGINT, also when the tests run under nohup or as a background job."""
    reset_ignored_signals()


@pytest.fixture(scope="session", autouse=True)
def files_of_tests() -> None:
    """Some tests open more than the 1,024 files that many shells allow: up to what the machine allows, 8,192 are."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES if hard == resource.RLIM_INFINITY else min(FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


@pytest.fixture(scope="module")
def shared_valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedValkey]:
    server = EmbeddedValkey(tmp_path_factory.mktemp("valkey"))
    asyncio.run(server.start())
    yield server
    asyncio.run(server.stop())


@pytest.fixture
async def connect() -> AsyncIterator[Connect]:
    """Make pipeliners that are connected, and closed after the test."""
    made: list[Pipeliner] = []

    async def make(url: str) -> Pipeliner:
        pipeliner = Pipeliner(url)
        made.append(pipeliner)
        pipeliner.start()
        assert await pipeliner.wait_available(20), pipeliner.last_error
        return pipeliner

    yield make
    for pipeliner in made:
        await pipeliner.aclose()


@pytest.fixture
async def valkey(shared_valkey: EmbeddedValkey, connect: Connect) -> EmbeddedValkey:
    pipeliner = await connect(shared_valkey.url)
    await pipeliner.submit("FLUSHALL")
    await pipeliner.submit("SCRIPT", "FLUSH")
    return shared_valkey


@pytest.fixture
async def own_valkey(tmp_path: Path) -> AsyncIterator[EmbeddedValkey]:
    """For tests that kill or freeze the server."""
    from support.valkey.server import WRITES_AT_ONCE

    async with EmbeddedValkey(tmp_path / "valkey", options=WRITES_AT_ONCE) as server:
        yield server
        if server.running:
            os.kill(server.pid, signal.SIGCONT)  # a frozen one would not react to SIGTERM


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A self-signed P-256 certificate for localhost, key and certificate in one file."""
    folder = tmp_path_factory.mktemp("tls")
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=localhost"
    files = f"-addext subjectAltName=DNS:localhost -keyout {folder}/key.pem -out {folder}/cert.pem"
    subprocess.run(f"{command} {files}".split(), check=True, capture_output=True, timeout=30)
    both = folder / "both.pem"
    both.write_bytes((folder / "key.pem").read_bytes() + (folder / "cert.pem").read_bytes())
    return both


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    """An OpenID provider that signs whatever a test wants."""
    from support.oidc.issuer import Issuer  # after its assertions were registered for rewriting

    made = Issuer()
    yield made
    made.close()


@pytest.fixture
async def tls_redis(own_valkey: EmbeddedValkey, certificate: Path) -> AsyncIterator[str]:
    """`own_valkey` behind TLS: its URL."""
    from support.tls_redis import TlsRedis  # after its assertions were registered for rewriting

    server = TlsRedis(own_valkey.url, certificate)
    await server.start()
    yield server.url
    await server.stop()


@pytest.fixture
async def http_of() -> AsyncIterator[Callable[[str], httpx2.AsyncClient]]:
    """Clients of the API at a URL, as the platform's; they are closed after the test."""
    from support.plain_http import plain_client  # after its assertions were registered for rewriting

    made: list[httpx2.AsyncClient] = []

    def make(api: str) -> httpx2.AsyncClient:
        made.append(plain_client(base_url=api, headers=PLATFORM, timeout=30))
        return made[-1]

    yield make
    for client in made:
        await client.aclose()
