"""A person logs in at Dex, a real OpenID provider, and may do what the role says and not more. Skipped where Dex is not
built (`make dex`); the issuer of `support.oidc.issuer` plays the attacks everywhere."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.cli.processes import environment, gateway
from support.gateway.roles import ROLES, write_roles
from support.oidc.dex import CLIENT, USER, Dex, enter_code, program
from support.waiting import WAIT, wait_until

BINDINGS = f"""\
  - {{users: ["dex:{USER}"], roles: [look]}}
  - {{groups: [dex:authors], roles: [deploy]}}
"""


class Person:
    """Somebody with a folder of configuration of their own."""

    def __init__(self, folder: Path, api: str, issuer: str) -> None:
        self._env = {**environment(None), "XDG_CONFIG_HOME": str(folder), "NO_PROXY": "*"}
        self.folder = folder
        where = ("--api", api, "--issuer", issuer, "--client-id", CLIENT)
        for args in (("add", "prod", *where), ("use", "prod")):
            assert self.run("context", *args).returncode == 0

    def run(self, *args: str) -> subprocess.CompletedProcess[str]:
        line = [sys.executable, "-P", "-m", "fairlead", *args]
        return subprocess.run(line, env=self._env, capture_output=True, text=True, timeout=WAIT * 2, check=False)

    def login(self) -> str:
        """Log in, and enter the code where the command says; the last page of the browser."""
        told = self.folder / "told"
        with told.open("wb") as sink:
            line = [sys.executable, "-P", "-m", "fairlead", "login"]
            command = subprocess.Popen(line, env=self._env, stdout=sink, stderr=sink, stdin=subprocess.DEVNULL)
        try:
            page = wait_until(lambda: re.search(r"or open (\S+)\n", told.read_text()))
            assert page is not None
            shown = enter_code(page[1])
            assert command.wait(60) == 0, told.read_text()
        finally:
            if command.poll() is None:
                command.kill()
                command.wait(WAIT)
        return shown

    def tokens(self) -> dict[str, str]:
        found = json.loads((self.folder / "fairlead" / "credentials" / "prod.json").read_bytes())
        assert isinstance(found, dict)
        return found


@pytest.fixture(params=["user", "groups"])
def person(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Person]:
    binary = program()
    if binary is None:
        pytest.skip("NOT tested: Dex was not found; `make dex` builds it, DEX_BIN names its folder")
    dex = Dex(binary, tmp_path, groups=request.param == "groups")
    try:
        write_roles(tmp_path / "roles.yaml", ROLES + BINDINGS)
        (tmp_path / "issuers.toml").write_text(
            f'[issuers.dex]\nurl = "{dex.url}"\naudience = "{CLIENT}"\nuser_claim = "email"\ngroups_claim = "groups"\n'
        )
        files = (f"--roles={tmp_path / 'roles.yaml'}", f"--issuers={tmp_path / 'issuers.toml'}")
        part, _, api, _ = gateway(tmp_path, *files)
        try:
            yield Person(tmp_path, api, dex.url)
        finally:
            part.stop()
    finally:
        dex.stop()


@pytest.mark.parametrize("person", ["user"], indirect=True)
def test_a_person_with_a_password_has_the_role_of_the_name_and_not_more(person: Person) -> None:
    assert "Login Successful" in person.login()
    found = json.loads(person.run("auth", "whoami", "-o", "json").stdout)
    assert (found["subject"], found["roles"], found["administrator"]) == (f"user:dex:{USER}", ["look"], False)
    assert person.run("auth", "can-i", "view", "--verb", "-l", "env=dev").returncode == 0
    assert person.run("auth", "can-i", "exec", "-l", "env=dev").returncode == 1
    assert person.run("agents", "ls").returncode == 0
    refused = person.run("tokens", "ls")
    assert (refused.returncode, f"user:dex:{USER} may not use verb tokens" in refused.stderr) == (2, True)
    # An ID token of Dex is valid for a minute here, so every command refreshes it, and Dex changes the refresh token.
    before = person.tokens()
    assert person.run("auth", "whoami").returncode == 0
    after = person.tokens()
    assert before["refresh_token"] != after["refresh_token"]
    assert person.run("logout").returncode == 0
    gone = person.run("agents", "ls")
    assert (gone.returncode, "nobody has logged in for the context prod" in gone.stderr) == (2, True)


@pytest.mark.parametrize("person", ["groups"], indirect=True)
def test_a_group_of_dex_has_a_role(person: Person) -> None:
    person.login()
    found = json.loads(person.run("auth", "whoami", "-o", "json").stdout)
    assert (found["groups"], found["roles"]) == (["authors"], ["deploy"])
    assert person.run("auth", "can-i", "exec", "-l", "env=dev").returncode == 0
    assert person.run("auth", "can-i", "exec", "-l", "env=prod").returncode == 1
