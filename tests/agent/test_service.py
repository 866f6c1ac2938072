"""`service.*`: what the host's systemctl says; and by a program of that name, what it is given and how it is read."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from fairlead.agent.builtin import builtin_agent
from fairlead.agent.builtin.options import Options, ServiceOptions
from fairlead.wire.messages import Ack, End

from support.agent.fixtures import Serve
from support.agent.scripted_gateway import Gateway
from support.agent.scripted_link import Link

SYSTEMCTL = """\
#!/bin/sh
printf '%s\\n' "$#" "$@" >> {folder}/calls
case "$*" in
  *denied*) echo 'Failed to start denied.service: Access denied' >&2; exit 4;;
  *broken*) echo 'Job for broken.service failed.' >&2; echo 'See its journal.' >&2; exit 1;;
esac
[ "$1" = show ] || exit 0
case "$*" in *missing*) load=not-found;; *) load=loaded;; esac
printf 'Id=web.service\\nDescription=A web = server\\nLoadState=%s\\nActiveState=active\\nSubState=running\\n' "$load"
printf 'UnitFileState=enabled\\nMainPID=42\\nStateChangeTimestamp=Thu 2026-11-26 20:00:00 UTC\\n'
"""


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file in which a `systemctl` first in the PATH writes the number of its arguments and each of them."""
    program = tmp_path / "systemctl"
    program.write_text(SYSTEMCTL.format(folder=tmp_path))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return tmp_path / "calls"


async def linked(gateway: Gateway, serve: Serve, options: Options = Options()) -> Link:  # noqa: B008
    serve(builtin_agent(gateway.url, "edge-1", "token-1", options=options))
    return await gateway.linked()


async def ended(link: Link, method: str, unit: str) -> End:
    id = f"service-{len(link.of(End))}"
    await link.command(id, method, {"unit": unit})
    return await link.end(id)


async def test_a_unit_is_one_argument_and_its_state_is_the_result(gateway: Gateway, serve: Serve, calls: Path) -> None:
    link = await linked(gateway, serve)
    end = await ended(link, "service.restart", "web.service")
    assert json.loads(end.payload) == {
        "unit": "web.service", "description": "A web = server", "load": "loaded", "active": "active", "sub": "running",
        "enabled": "enabled", "pid": 42, "since": "Thu 2026-11-26 20:00:00 UTC",
    }  # fmt: skip
    lines = calls.read_text().splitlines()
    assert lines[:6] == ["5", "--no-ask-password", "--no-pager", "restart", "--", "web.service"]
    assert lines[6:8] == ["5", "show"]
    assert lines[-2:] == ["--", "web.service"]


@pytest.mark.parametrize("unit", ["--now", "a b", "a;reboot", "$(reboot)", "a*", "[a]", "a/b", "", "a\nb"])
async def test_what_is_no_name_of_a_unit_is_refused(gateway: Gateway, serve: Serve, calls: Path, unit: str) -> None:
    link = await linked(gateway, serve)
    for method in ("service.start", "service.status"):
        await link.command(method, method, {"unit": unit})
        ack = await link.expect(Ack, method)
        assert ack.error is not None
        assert (ack.state, ack.error.code) == ("refused", "invalid_arguments")
    assert not calls.exists()


@pytest.mark.parametrize(
    ("unit", "code"), [("missing", "not_found"), ("denied", "permission_denied"), ("broken", "service_failed")]
)
async def test_failures_are_told_apart(gateway: Gateway, serve: Serve, calls: Path, unit: str, code: str) -> None:
    end = await ended(await linked(gateway, serve), "service.start", unit)
    assert end.error is not None
    assert end.error.code == code, end
    if unit == "broken":
        assert "broken: Job for broken.service failed. See its journal." in end.error.message
    assert calls.exists()


async def test_only_listed_units_are_touched(gateway: Gateway, serve: Serve, calls: Path) -> None:
    link = await linked(gateway, serve, Options(service=ServiceOptions(units=("web", "app-*.service"))))
    for unit in ("web", "web.service", "app-1.service"):
        assert (await ended(link, "service.stop", unit)).state == "ok", unit
    before = calls.read_text()
    for unit in ("ssh.service", "web.socket", "app-1.timer", "web2"):
        for method in ("service.stop", "service.status"):
            end = await ended(link, method, unit)
            assert end.error is not None
            assert end.error.code == "unit_forbidden"
    assert calls.read_text() == before


@pytest.mark.skipif(shutil.which("systemctl") is None, reason="this host has no systemctl")
async def test_the_hosts_own_systemctl_is_asked(gateway: Gateway, serve: Serve) -> None:
    end = await ended(await linked(gateway, serve), "service.status", "no-such-unit-of-this-test.service")
    assert end.error is not None
    assert end.error.code == ("not_found" if Path("/run/systemd/system").exists() else "unsupported"), end


async def test_a_host_without_systemctl_is_told(
    gateway: Gateway, serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = await linked(gateway, serve)
    monkeypatch.setenv("PATH", str(tmp_path))
    end = await ended(link, "service.status", "web")
    assert end.error is not None
    assert end.error.code == "unsupported"
