"""`fairlead tokens`: creates a service token, lists it, uses it and revokes it, against a real gateway."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Iterator

import pytest

from support.cli.processes import gateway
from support.gateway.roles import write_roles

Run = Callable[..., subprocess.CompletedProcess[bytes]]


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The API of a gateway with a file of roles."""
    folder = tmp_path_factory.mktemp("secured")
    write_roles(folder / "roles.yaml")
    part, _, api, _ = gateway(folder, f"--roles={folder / 'roles.yaml'}")
    yield api
    part.stop()


def test_a_token_is_created_shown_once_used_and_revoked(secured: str, run: Run) -> None:
    made = run("tokens", "create", "ci", "--role", "deploy", "--expires", "12h", api=secured)
    assert made.returncode == 0, made.stderr
    assert re.fullmatch(rb"fl_[0-9a-f]{12}_[A-Za-z0-9_-]{43}\n", made.stdout)
    assert b"is not shown again" in made.stderr
    text = made.stdout.decode().strip()
    id = text.split("_")[1]
    assert run("agents", "ls", "--token", text, api=secured).returncode == 0
    listed = run("tokens", "ls", api=secured).stdout.decode().splitlines()
    assert listed[0].split()[:3] == ["ID", "NAME", "ROLES"]
    assert listed[1].split()[:3] == [id, "ci", "deploy"]
    assert text.split("_", 2)[2] not in "\n".join(listed)
    shown = json.loads(run("tokens", "ls", "-o", "json", api=secured).stdout)["tokens"][0]
    assert (shown["id"], shown["name"], shown["created_by"]) == (id, "ci", "shared-token")
    denied = run("tokens", "ls", "--token", text, api=secured)
    assert denied.returncode == 2
    assert b"token:ci may not use verb tokens: expected a rule with verb tokens in one of its roles" in denied.stderr
    assert run("tokens", "revoke", "ci", api=secured).stdout.decode() == f"revoked ci ({id})\n"
    refused = run("agents", "ls", "--token", text, api=secured)
    assert (refused.returncode, b"no such service token, or it was revoked" in refused.stderr) == (2, True)
    assert run("tokens", "revoke", id, api=secured).returncode == 2


def test_a_name_that_two_tokens_have_is_not_enough_to_revoke_one(secured: str, run: Run) -> None:
    ids = [run("tokens", "create", "looker", api=secured).stdout.decode().split("_")[1] for _ in range(2)]
    unclear = run("tokens", "revoke", "looker", api=secured)
    assert unclear.returncode == 2
    assert all(id.encode() in unclear.stderr for id in ids)
    assert run("tokens", "revoke", *ids, api=secured).returncode == 0
    assert run("tokens", "ls", "-o", "name", api=secured).stdout == b""


def test_wrong_orders_are_explained(secured: str, run: Run) -> None:
    for args, problem in (
        (("create", "stranger"), b"no role is bound to the token stranger"),
        (("create", "ci", "--role", "all"), b"role all is not bound to the token ci: expected deploy"),
        (("create", "ci", "--expires", "soon"), b"expected a whole number with s, m, h or d, such as 90d"),
        (("create", "ci", "--expires", "400d"), b"expected a lifetime from 60s to 366d"),
        (("revoke", "nobody"), b"there is no service token 'nobody'"),
    ):
        done = run("tokens", *args, api=secured)
        assert (done.returncode, problem in done.stderr) == (2, True), done.stderr


def test_auth_tells_who_one_is_and_what_one_may(secured: str, run: Run) -> None:
    text = run("tokens", "create", "ci", api=secured).stdout.decode().strip()
    shown = run("auth", "whoami", "--token", text, api=secured).stdout.decode().splitlines()
    assert shown[0].split() == ["subject", "token:ci"]
    assert shown[1].split() == ["roles", "deploy"]
    assert json.loads(run("auth", "whoami", "-o", "json", api=secured).stdout)["administrator"] is True
    for args, code, answer in (
        (("exec", "-l", "env=dev"), 0, "yes: role deploy allows it"),
        (("exec", "-l", "env=prod"), 1, "no, only on some agents:\n  env=dev (role deploy)"),
        (("exec",), 1, "no, only on some agents:\n  env=dev (role deploy)"),
        (("shell", "-l", "env=dev"), 1, "no: token:ci may not use method shell: expected a rule with method shell in"),
        (("exec", "--agent", "web-1"), 1, "no: token:ci may not use method exec on agent 'web-1': expected a rule"),
        (("--verb", "label", "-l", "env=dev"), 0, "yes: role deploy allows it"),
        (("--verb", "tokens"), 1, "no: token:ci may not use verb tokens: expected a rule with verb tokens in"),
    ):
        done = run("auth", "can-i", *args, "--token", text, api=secured)
        assert (done.returncode, done.stdout.decode().startswith(answer)) == (code, True), (args, done)
    assert run("auth", "can-i", "--verb", "fly", "--token", text, api=secured).returncode == 2
