"""`log.tail`: the last lines of real files, followed through rotation and truncation."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from fairlead.agent.builtin import builtin_agent
from fairlead.agent.builtin.options import DependentOptions, FileOptions, Options
from fairlead.wire.messages import Ack, Cancel, End

from support.agent.fixtures import Serve
from support.agent.scripted_gateway import Gateway
from support.agent.scripted_link import Link
from support.waiting import until


@pytest.fixture
async def link(gateway: Gateway, serve: Serve) -> Link:
    serve(builtin_agent(gateway.url, "edge-1", "token-1"))
    return await gateway.linked()


async def tailed(link: Link, id: str, **arguments: object) -> tuple[bytes, End]:
    await link.command(id, "log.tail", arguments)
    end = await link.end(id)
    return link.output(id), end


@pytest.mark.parametrize(
    ("content", "lines", "expected"),
    [
        (b"", 10, b""), (b"one", 10, b"one"), (b"one\n", 1, b"one\n"), (b"one\ntwo\n", 1, b"two\n"),
        (b"one\ntwo", 1, b"two"), (b"one\ntwo\nthree\n", 2, b"two\nthree\n"), (b"\n\n\n", 2, b"\n\n"),
        (b"one\ntwo\n", 0, b""), (b"x" * 200_000 + b"\nend\n", 1, b"end\n"),
        (b"first\n" + b"x" * 200_000 + b"\nend\n", 2, b"x" * 200_000 + b"\nend\n"),
    ],
)  # fmt: skip
async def test_the_last_lines_of_a_file(
    link: Link, tmp_path: Path, content: bytes, lines: int, expected: bytes
) -> None:
    log = tmp_path / "app.log"
    log.write_bytes(content)
    found, end = await tailed(link, "tail", path=str(log), lines=lines)
    assert (end.state, json.loads(end.payload)) == ("ok", {"bytes": len(expected), "rotations": 0})
    assert found == expected


async def test_a_file_is_followed_through_rotation_and_truncation_until_it_is_cancelled(
    link: Link, tmp_path: Path
) -> None:
    log = tmp_path / "app.log"
    log.write_text("old\nbefore\n")
    await link.command("tail", "log.tail", {"path": str(log), "lines": 1, "follow": True})
    await until(lambda: link.output("tail") == b"before\n")
    with log.open("a") as file:
        file.write("more\n")
    await until(lambda: link.output("tail") == b"before\nmore\n")
    kept = log.open("a")
    log.rename(tmp_path / "app.log.1")
    log.write_text("new file\n")
    kept.write("last of the old\n")
    kept.close()
    await until(lambda: link.output("tail").endswith(b"new file\n"))
    assert link.output("tail").startswith(b"before\nmore\n")
    log.write_text("cut\n")
    await until(lambda: link.output("tail").endswith(b"cut\n"))
    await link.send(Cancel(id="tail"))
    assert (await link.end("tail")).state == "cancelled"


async def test_a_log_outside_the_roots_is_not_read(gateway: Gateway, serve: Serve, tmp_path: Path) -> None:
    inside, outside = tmp_path / "logs", tmp_path / "secret.log"
    inside.mkdir()
    outside.write_text("secret\n")
    (inside / "link.log").symlink_to(outside)
    (inside / "good.log").write_text("good\n")
    serve(builtin_agent(gateway.url, "edge-1", "token-1", options=Options(file_get=FileOptions(roots=(str(inside),)))))
    link = await gateway.linked()
    assert (await tailed(link, "good", path=str(inside / "good.log")))[0] == b"good\n"
    for number, path in enumerate((outside, inside / "link.log", inside / ".." / "secret.log")):
        found, end = await tailed(link, f"bad-{number}", path=str(path))
        assert end.error is not None
        assert (found, end.error.code) == (b"", "path_forbidden")
    _, end = await tailed(link, "journal", unit="ssh.service")
    assert end.error is not None
    assert end.error.code == "unit_forbidden"


async def test_wrong_arguments_and_files_are_explained(link: Link, tmp_path: Path) -> None:
    for number, (arguments, code) in enumerate(
        (
            ({}, "invalid_arguments"), ({"path": "/a", "unit": "b"}, "invalid_arguments"),
            ({"path": str(tmp_path)}, "not_a_file"), ({"path": str(tmp_path / "none")}, "not_found"),
        )
    ):  # fmt: skip
        _, end = await tailed(link, f"wrong-{number}", **arguments)
        assert end.error is not None
        assert end.error.code == code, end


@pytest.mark.skipif(shutil.which("journalctl") is None, reason="this host has no journalctl")
async def test_a_journal_is_read_by_journalctl(link: Link) -> None:
    """Where no journal is kept, journalctl has nothing to print or says so."""
    _, end = await tailed(link, "journal", unit="no-such-unit-of-this-test.service")
    assert end.state == "ok" or (end.error is not None and end.error.code == "journal_unread"), end


async def test_it_is_off_where_file_get_is_and_may_be_switched_on(gateway: Gateway, serve: Serve) -> None:
    off = Options(file_get=FileOptions(enabled=False))
    assert not off.enabled("log.tail")
    assert off.reason_disabled("log.tail") == "file_get.enabled = false"
    assert Options(file_get=FileOptions(enabled=False), log_tail=DependentOptions(True)).enabled("log.tail")
    serve(builtin_agent(gateway.url, "edge-1", "token-1", options=Options(log_tail=DependentOptions(False))))
    link = await gateway.linked()
    await link.command("tail", "log.tail", {"path": "/etc/hosts"})
    ack = await link.expect(Ack, "tail")
    assert ack.error is not None
    assert "log_tail.enabled = false" in ack.error.message
