"""Facts that change while the agent runs: it reads them again from time to time and when it is asked to, and tells what
has changed, on whichever link it has. The files of the host are those of a folder that the test changes."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fairlead.agent.builtin.methods import builtin_agent
from fairlead.agent.host import fact_reader, installed_packages
from fairlead.agent.host.fact_reader import changed_facts
from fairlead.agent.host.facts import agent_facts
from fairlead.agent.host.installed_packages import InstalledPackages
from fairlead.wire.messages import End, Facts, Hello

from support.agent.fixtures import Serve
from support.agent.scripted_gateway import Gateway
from support.agent.scripted_link import Link

SOON = 0.02


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The root of a host with Debian 12, whose facts are read again by themselves only if a test says so."""
    monkeypatch.setattr(fact_reader, "ROOT", tmp_path)
    monkeypatch.setattr(fact_reader, "PERIOD", 1e6)
    (tmp_path / "proc/net").mkdir(parents=True)
    release(tmp_path, "12")
    return tmp_path


def release(host: Path, version: str) -> None:
    (host / "etc").mkdir(exist_ok=True)
    (host / "etc/os-release").write_text(f"# a comment\nNAME='x y'\nID=debian\nVERSION_ID=\"{version}\"\nBROKEN='\n")


def address(host: Path, *addresses: str) -> None:
    lines = (f"  |-- {one}\n    /32 host LOCAL\n" for one in addresses)
    (host / "proc/net/fib_trie").write_text("Main:\n" + "".join(lines))


async def linked(gateway: Gateway, serve: Serve, **facts: str) -> Link:
    serve(builtin_agent(gateway.url, "edge-1", "token-1", facts=facts))
    return await gateway.linked()


async def refreshed(link: Link, id: str) -> dict[str, str | None]:
    await link.command(id, "facts.refresh")
    end = await link.expect(End, id)
    assert end.state == "ok", end
    found: dict[str, str | None] = json.loads(end.payload)["changed"]
    return found


async def test_what_has_changed_is_told_when_it_is_asked_for(gateway: Gateway, serve: Serve, host: Path) -> None:
    link = await linked(gateway, serve)
    assert link.of(Hello)[0].facts["os.version"] == "12"
    assert await refreshed(link, "c1") == {}
    release(host, "12.1")
    address(host, "10.0.0.5", "127.0.0.1")
    assert await refreshed(link, "c2") == {"os.version": "12.1", "net.addresses": "10.0.0.5"}
    address(host)
    assert await refreshed(link, "c3") == {"net.addresses": None}
    assert await refreshed(link, "c4") == {}
    assert [message.changes for message in link.of(Facts)] == [
        {"os.version": "12.1", "net.addresses": "10.0.0.5"}, {"net.addresses": None}
    ]  # fmt: skip


async def test_facts_are_read_again_by_themselves(
    gateway: Gateway, serve: Serve, host: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fact_reader, "PERIOD", SOON)
    link = await linked(gateway, serve)
    for number, version in enumerate(("13", "14"), 1):
        release(host, version)

        def told(number: int = number) -> bool:
            return len(link.of(Facts)) >= number

        await link.until(told)
        assert link.of(Facts)[-1].changes == {"os.version": version}


async def test_a_gateway_that_does_not_take_them_gets_them_with_the_next_hello(
    gateway: Gateway, serve: Serve, host: Path
) -> None:
    serve(builtin_agent(gateway.url, "edge-1", "token-1"))
    link = await gateway.accept()
    await link.welcome(facts=False)
    release(host, "13")
    assert await refreshed(link, "c1") == {"os.version": "13"}
    assert link.of(Facts) == []
    await link.cut()
    again = await gateway.linked()
    assert again.of(Hello)[0].facts["os.version"] == "13"
    assert await refreshed(again, "c2") == {}
    assert again.of(Facts) == []


async def test_what_changes_between_hello_and_welcome_is_told_after_welcome(
    gateway: Gateway, serve: Serve, host: Path
) -> None:
    old = await linked(gateway, serve)
    await old.drain(0)
    new = await gateway.accept()
    await new.expect(Hello)
    release(host, "13")
    assert await refreshed(old, "c1") == {"os.version": "13"}
    await new.welcome(have={})
    assert (await new.expect(Facts)).changes == {"os.version": "13"}
    assert [message.changes for message in old.of(Facts)] == [{"os.version": "13"}]


async def test_what_the_user_says_stays(gateway: Gateway, serve: Serve, host: Path) -> None:
    link = await linked(gateway, serve, **{"os.version": "mine"})
    release(host, "13")
    assert await refreshed(link, "c1") == {}


async def test_facts_that_do_not_fit_any_more_are_not_told(
    gateway: Gateway, serve: Serve, host: Path, caplog: pytest.LogCaptureFixture
) -> None:
    link = await linked(gateway, serve, **{f"f{n}": "x" * 250 for n in range(15)})
    release(host, "v" * 256)
    assert await refreshed(link, "c1") == {}
    assert "not told anew: facts of" in caplog.text


async def test_requests_that_come_together_share_a_reading(
    gateway: Gateway, serve: Serve, host: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    readings, real = [], agent_facts
    started, go_on = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def reading(*arguments: object) -> dict[str, str]:
        readings.append(1)
        loop.call_soon_threadsafe(started.set)
        asyncio.run_coroutine_threadsafe(go_on.wait(), loop).result(20)
        return real(*arguments)  # type: ignore[arg-type]

    link = await linked(gateway, serve)
    monkeypatch.setattr(fact_reader, "agent_facts", reading)
    release(host, "13")
    await link.command("c1", "facts.refresh")
    await asyncio.wait_for(started.wait(), 20)
    await link.command("c2", "facts.refresh")
    await link.command("c3", "sys.info")
    await link.end("c3")  # so the second one waits, too
    go_on.set()
    for id in ("c1", "c2"):
        assert json.loads((await link.end(id)).payload) == {"changed": {"os.version": "13"}}
    assert len(readings) == 1
    assert len(link.of(Facts)) == 1


CHANGED = """
import asyncio, json, socket, subprocess
from fairlead.agent.host.fact_reader import FactReader
def ip(*arguments): subprocess.run(["ip", *arguments], check=True, timeout=20)
socket.sethostname("before")
told = []
reader = FactReader({}, told.append)
socket.sethostname("after")
ip("link", "add", "v0", "type", "veth", "peer", "name", "v1")
ip("addr", "add", "10.9.9.9/24", "dev", "v0")
ip("link", "set", "v0", "up")
print(json.dumps([reader.facts["hostname"], asyncio.run(reader.read_again()), told[0]["hostname"]]))
"""


def test_a_new_name_and_a_new_interface_of_the_host_are_seen() -> None:
    own = ["unshare", "--user", "--map-root-user", "--uts", "--net"]
    able = [*own, "ip", "link", "add", "v0", "type", "veth", "peer", "name", "v1"]
    if not shutil.which("unshare") or not shutil.which("ip") or subprocess.run(able, check=False).returncode:
        pytest.skip("this host does not allow namespaces of one's own")
    done = subprocess.run(
        [*own, sys.executable, "-c", CHANGED], check=True, capture_output=True, text=True, timeout=60
    )  # fmt: skip
    changes = {"hostname": "after", "net.interfaces": "v0,v1", "net.addresses": "10.9.9.9"}
    assert json.loads(done.stdout) == ["before", changes, "after"]


def test_lists_of_packages_are_read_only_when_they_have_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, real = [], installed_packages.package_facts

    def reading(root: Path) -> dict[str, str]:
        read.append(root)
        return real(root)

    monkeypatch.setattr(installed_packages, "package_facts", reading)
    packages, status = InstalledPackages(tmp_path), tmp_path / "var/lib/dpkg/status"
    assert packages.facts() == packages.facts() == {}
    assert len(read) == 1
    status.parent.mkdir(parents=True)
    for count in (1, 2):
        status.write_text("Status: install ok installed\n" * count)
        assert packages.facts()["packages.count"] == str(count)
        assert packages.facts()["packages.count"] == str(count)
        assert len(read) == 1 + count


def test_a_host_without_os_release_says_nothing_of_it(tmp_path: Path) -> None:
    assert "os.name" not in agent_facts({}, InstalledPackages(tmp_path))
    (tmp_path / "usr/lib").mkdir(parents=True)
    (tmp_path / "usr/lib/os-release").write_text('VERSION_ID="rolling"\n')
    found = agent_facts({}, InstalledPackages(tmp_path))
    assert (found["os.name"], found["os.version"]) == ("linux", "rolling")


def test_changes_are_new_values_and_what_is_gone() -> None:
    assert changed_facts({"a": "1", "b": "2", "c": "3"}, {"a": "1", "b": "3", "d": "4"}) == {
        "c": None, "b": "3", "d": "4",
    }  # fmt: skip
