"""Contexts and logging in, with a real gateway and a real issuer: the device grant, refresh, logout, and where tokens
go."""

from __future__ import annotations

import json
import stat
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fairlead.cli.contexts.contexts_file import DEFAULT_SCOPES

from support.cli.processes import gateway
from support.gateway.roles import ROLES, write_roles
from support.oidc.issuer import AUDIENCE, Issuer

Run = Callable[..., subprocess.CompletedProcess[bytes]]
Fairlead = Callable[..., subprocess.CompletedProcess[bytes]]

PENDING = {"error": "authorization_pending"}


@pytest.fixture(scope="module")
def issuer() -> Iterator[Issuer]:
    made = Issuer()
    yield made
    made.close()


@pytest.fixture(scope="module")
def api(issuer: Issuer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("people")
    write_roles(folder / "roles.yaml", ROLES + "  - {users: [company:anna], roles: [look]}\n")
    files = (f"--roles={folder / 'roles.yaml'}", f"--issuers={issuer.write_file(folder / 'issuers.toml')}")
    part, _, address, _ = gateway(folder, *files)
    yield address
    part.stop()


@pytest.fixture
def fairlead(run: Run, tmp_path: Path, issuer: Issuer) -> Fairlead:
    """`fairlead` with a folder of configuration of its own."""
    issuer.forms.clear()
    issuer.device_answers = [PENDING]

    def call(*args: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[bytes]:
        return run(*args, env={"XDG_CONFIG_HOME": str(tmp_path), "NO_PROXY": "*", **(env or {})})

    return call


def add(fairlead: Fairlead, name: str, api: str, issuer: Issuer) -> None:
    done = fairlead("context", "add", name, "--api", api, "--issuer", issuer.url, "--client-id", AUDIENCE)
    assert done.returncode == 0, done.stderr
    assert fairlead("context", "use", name).returncode == 0


def granted(issuer: Issuer, lifetime: float = 3600.0, refresh_token: str = "again-1") -> dict[str, object]:
    token = issuer.token(exp=int(time.time() + lifetime))
    return {"id_token": token, "access_token": "opaque", "refresh_token": refresh_token, "expires_in": lifetime}


def stored(folder: Path, name: str = "prod") -> Path:
    return folder / "fairlead" / "credentials" / f"{name}.json"


def test_a_person_logs_in_with_a_code_and_is_who_the_issuer_says(
    fairlead: Fairlead, api: str, issuer: Issuer, tmp_path: Path
) -> None:
    add(fairlead, "prod", api, issuer)
    before = fairlead("auth", "whoami")
    assert (before.returncode, b"nobody has logged in for the context prod: `fairlead login`" in before.stderr) == (
        2,
        True,
    )
    issuer.device_answers = [PENDING, PENDING, granted(issuer)]
    done = fairlead("login")
    assert done.returncode == 0, done.stderr
    assert f"open {issuer.url}/device and enter the code WDJB-MJHT".encode() in done.stderr
    assert done.stdout == b""
    assert issuer.forms[0] == {"client_id": AUDIENCE, "scope": DEFAULT_SCOPES}
    assert [form["device_code"] for form in issuer.forms[1:]] == ["the-device-code"] * 3
    assert stat.S_IMODE(stored(tmp_path).stat().st_mode) == 0o600
    assert stat.S_IMODE(stored(tmp_path).parent.stat().st_mode) == 0o700
    shown = json.loads(fairlead("auth", "whoami", "-o", "json").stdout)
    assert (shown["subject"], shown["roles"], shown["issuer"]) == ("user:company:anna", ["look"], issuer.url)
    assert fairlead("agents", "ls").returncode == 0
    denied = fairlead("tokens", "ls")
    assert (denied.returncode, b"user:company:anna may not use verb tokens" in denied.stderr) == (2, True)
    # Options and variables go before the context, and its token goes nowhere else.
    assert json.loads(fairlead("auth", "whoami", "-o", "json", "--api", api).stdout)["subject"] == "shared-token"
    assert json.loads(fairlead("auth", "whoami", "-o", "json", env={"FAIRLEAD_API": api}).stdout)["administrator"]
    unknown = fairlead("auth", "whoami", env={"FAIRLEAD_CONTEXT": "test"})
    assert (unknown.returncode, b"there is no context 'test': expected one of prod" in unknown.stderr) == (2, True)
    stored(tmp_path).chmod(0o644)
    open_file = fairlead("auth", "whoami")
    assert (open_file.returncode, b"others may read your tokens: `chmod 600` it" in open_file.stderr) == (2, True)


def test_tokens_are_refreshed_before_they_expire_and_forgotten_at_the_end(
    fairlead: Fairlead, api: str, issuer: Issuer, tmp_path: Path
) -> None:
    add(fairlead, "prod", api, issuer)
    issuer.device_answers = [granted(issuer, lifetime=30)]
    assert fairlead("login").returncode == 0
    issuer.forms.clear()
    issuer.device_answers = [granted(issuer, refresh_token="again-2")]
    assert fairlead("auth", "whoami").returncode == 0
    asked = {"grant_type": "refresh_token", "refresh_token": "again-1", "client_id": AUDIENCE}
    assert issuer.forms == [asked]
    assert json.loads(stored(tmp_path).read_bytes())["refresh_token"] == "again-2"
    assert fairlead("auth", "whoami").returncode == 0
    assert issuer.forms == [asked], "a fresh token is not refreshed"
    done = fairlead("logout")
    assert (done.returncode, b"logged out of the context prod" in done.stderr) == (0, True)
    assert issuer.forms[-1] == {"token": "again-2", "client_id": AUDIENCE}
    assert not stored(tmp_path).exists()
    assert b"nobody was logged in" in fairlead("logout").stderr


def test_an_expired_login_says_what_to_do(fairlead: Fairlead, api: str, issuer: Issuer, tmp_path: Path) -> None:
    add(fairlead, "prod", api, issuer)
    issuer.device_answers = [granted(issuer)]
    assert fairlead("login").returncode == 0
    old = json.loads(stored(tmp_path).read_bytes())
    stored(tmp_path).write_text(json.dumps({**old, "expires": time.time() - 10}))
    issuer.device_answers = [{"error": "invalid_grant", "error_description": "the session has ended"}]
    done = fairlead("agents", "ls")
    assert done.returncode != 0
    assert b"the login of the context prod has expired (the issuer takes the refresh token no more" in done.stderr
    assert json.loads(stored(tmp_path).read_bytes())["refresh_token"] == "again-1"


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        ({"error": "access_denied"}, b"the login was refused"),
        ({"error": "expired_token"}, b"nobody has entered the code in time"),
        ({"error": "invalid_client", "error_description": "who?\x1b[31m"}, b"the status 400 invalid_client: who?"),
    ],
)
def test_a_refused_login_is_told(
    fairlead: Fairlead, api: str, issuer: Issuer, tmp_path: Path, answer: dict[str, object], problem: bytes
) -> None:
    add(fairlead, "prod", api, issuer)
    issuer.device_answers = [answer]
    done = fairlead("login")
    assert (done.returncode, problem in done.stderr, b"\x1b" in done.stderr) == (1, True, False) or done.returncode == 2
    assert problem in done.stderr
    assert not stored(tmp_path).exists()


def test_contexts_are_listed_chosen_and_removed(fairlead: Fairlead, api: str, issuer: Issuer, tmp_path: Path) -> None:
    add(fairlead, "prod", api, issuer)
    assert fairlead("context", "add", "local", "--api", api).returncode == 0
    lines = fairlead("context", "ls").stdout.decode().splitlines()
    assert [line.split() for line in lines] == [["CURRENT", "NAME", "API"], ["local", api], ["*", "prod", api]]
    assert (
        json.loads(fairlead("auth", "whoami", "--context", "local", "-o", "json").stdout)["subject"] == "shared-token"
    )
    assert b"names no issuer" in fairlead("login", "--context", "local").stderr
    for args, problem in (
        (("add", "-x", "--api", api), b"No such option"), (("add", "a b", "--api", api), b"1 to 63 characters"),
        (("add", "x", "--api", "ftp://a"), b"does not begin with http"), (("use", "nobody"), b"there is no context"),
        (("add", "x", "--api", api, "--issuer", issuer.url), b"--issuer and --client-id belong together"),
        (("rm", "nobody"), b"there is no context 'nobody': expected one of local, prod"),
    ):  # fmt: skip
        done = fairlead("context", *args)
        assert (done.returncode, problem in done.stderr) == (2, True), done.stderr
    assert fairlead("context", "rm", "prod").returncode == 0
    assert b"there is no current context" in fairlead("login").stderr
    (tmp_path / "fairlead" / "contexts.json").write_text("{")
    broken = fairlead("agents", "ls")
    assert (broken.returncode, b"is not a file of contexts" in broken.stderr) == (2, True)
