"""`fairlead cp` with the built-in agent: every byte arrives through lost connections, or nothing is kept."""

from __future__ import annotations

import hashlib
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import pytest

from support.cli.processes import CliFleet
from support.cli.relay import Relay

Run = Callable[..., subprocess.CompletedProcess[bytes]]
MIB = 1 << 20


@pytest.fixture
def big(tmp_path: Path) -> Path:
    """More than the gateway keeps of a window, and no whole number of chunks."""
    path = tmp_path / "big"
    path.write_bytes(os.urandom(6 * MIB + 12_345))
    path.chmod(0o640)
    return path


def leftovers(folder: Path) -> list[str]:
    return [one.name for one in folder.iterdir() if one.name.endswith(".part")]


def test_a_file_is_copied_to_the_agent_and_back(fleet: CliFleet, run: Run, big: Path, tmp_path: Path) -> None:
    there, back = tmp_path / "there", tmp_path / "back"
    done = run("cp", str(big), f"web-1:{there}", api=fleet)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b""), "no progress is shown without a terminal"
    assert there.read_bytes() == big.read_bytes()
    assert there.stat().st_mode & 0o777 == 0o640
    done = run("cp", f"web-1:{there}", str(back), api=fleet)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert back.read_bytes() == big.read_bytes()
    assert leftovers(tmp_path) == []


def test_a_copy_into_a_folder_keeps_the_name_and_dash_is_a_pipe(fleet: CliFleet, run: Run, tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    (tmp_path / "note").write_bytes(b"a note")
    assert run("cp", str(tmp_path / "note"), f"web-1:{tmp_path}/there/", api=fleet).returncode == 0
    assert run("cp", f"web-1:{tmp_path}/there/note", str(tmp_path / "here"), api=fleet).returncode == 0
    assert (tmp_path / "here" / "note").read_bytes() == b"a note"
    done = run("cp", "-", f"web-1:{tmp_path}/piped", api=fleet, input=b"\x00\xff from a pipe")
    assert done.returncode == 0, done.stderr
    done = run("cp", f"web-1:{tmp_path}/piped", "-", api=fleet)
    assert (done.stdout, done.stderr, done.returncode) == (b"\x00\xff from a pipe", b"", 0)
    done = run("cp", "-", f"web-1:{tmp_path}/there/", api=fleet, input=b"x")
    assert done.returncode == 2
    assert b"has no file name" in done.stderr


def test_an_empty_file_is_copied(fleet: CliFleet, run: Run, tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    assert run("cp", str(tmp_path / "empty"), f"web-1:{tmp_path}/far", api=fleet).returncode == 0
    assert run("cp", f"web-1:{tmp_path}/far", str(tmp_path / "near"), api=fleet).returncode == 0
    assert (tmp_path / "near").read_bytes() == b""


def test_a_download_survives_cut_connections(
    fleet: CliFleet, run: Run, relay_to: Callable[[str], Relay], big: Path, tmp_path: Path
) -> None:
    relay = relay_to(fleet.api)
    relay.cuts = [700_000, 1_500_000, 200]
    done = run("cp", f"web-1:{big}", str(tmp_path / "back"), api=f"http://127.0.0.1:{relay.port}")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "back").read_bytes() == big.read_bytes()
    assert relay.cuts == []
    assert relay.connections >= 4


def test_an_upload_survives_cut_connections(
    fleet: CliFleet, run: Run, relay_to: Callable[[str], Relay], big: Path, tmp_path: Path
) -> None:
    relay = relay_to(fleet.api)
    # The stream of the end, then answers to input: some 100 bytes each, cut in the middle of one.
    relay.cuts = [400, 1_130, 777, 50]
    done = run("cp", str(big), f"web-1:{tmp_path}/there", api=f"http://127.0.0.1:{relay.port}")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "there").read_bytes() == big.read_bytes()
    assert relay.cuts == []


def test_ctrl_c_leaves_nothing_on_either_side(
    fleet: CliFleet, run: Run, tmp_path: Path, wait_until: Callable[..., object]
) -> None:
    """An upload of what is still being written."""
    (tmp_path / "far").mkdir()
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "fairlead", "cp", "--api", fleet.api, "-", f"web-1:{tmp_path}/far/file"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        assert process.stdin is not None
        process.stdin.write(b"the first half")
        process.stdin.flush()
        wait_until(lambda: leftovers(tmp_path / "far"))
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130
        wait_until(lambda: list((tmp_path / "far").iterdir()) == [])
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["a", "b"], "AGENT:/PATH"),
        (["web-1:/a", "web-2:/b"], "both on agents"),
        (["web-1:a", "b"], "starts with /"),
        (["a"], "Missing argument"),
        (["web-1:/a", "b", "--deadline", "0"], "deadline"),
    ],
)
def test_wrong_usage_exits_with_2(run: Run, args: list[str], words: str) -> None:
    done = run("cp", *args)
    assert done.returncode == 2
    assert words in done.stderr.decode()


@pytest.mark.parametrize(
    ("source", "target", "words"),
    [
        ("web-1:/no/such/file", "here", ["/no/such/file", "No such file", "check the spelling"]),
        ("web-1:/etc", "here", ["/etc", "folder"]),
        ("web-1:/etc/hostname", "no/such/folder/x", ["no/such/folder/x", "check the spelling"]),
        ("web-1:/etc/hostname", "/dev/full", ["/dev/full", "No space left", "free some space"]),
        ("no-such-file", "web-1:/var/tmp/x", ["cannot read no-such-file", "check the spelling"]),
        (".", "web-1:/var/tmp/x", ["is a folder", "tar"]),
        ("/etc/hostname", "web-1:/no/such/folder/x", ["/no/such/folder/x", "No such file"]),
        ("/etc/hostname", "web-1:/dev/full", ["/dev/full", "device"]),
    ],
)
def test_a_failed_copy_exits_with_1_and_names_the_path_and_what_to_do(
    fleet: CliFleet, run: Run, tmp_path: Path, source: str, target: str, words: list[str]
) -> None:
    if target == "here":
        target = str(tmp_path / "here")
    done = run("cp", source, target, api=fleet)
    assert done.returncode == 1, done.stderr
    for word in words:
        assert word in done.stderr.decode()
    assert list(tmp_path.iterdir()) == []


def test_a_full_local_disk_leaves_nothing_and_cancels_the_command(
    fleet: CliFleet, run: Run, big: Path, tmp_path: Path, wait_until: Callable[..., object]
) -> None:
    """A limit on the size of files is what a full disk is to a process: the next write fails."""
    folder = tmp_path / "small"
    folder.mkdir()
    done = subprocess.run(
        [sys.executable, "-P", "-m", "fairlead", "cp", "--api", fleet.api, f"web-1:{big}", str(folder)],
        capture_output=True,
        check=False,
        timeout=40,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (MIB, MIB)),
    )
    assert done.returncode == 1, done.stderr
    talk = done.stderr.decode()
    assert str(folder / "big") in talk
    assert "File too large" in talk
    assert "ulimit" in talk
    assert list(folder.iterdir()) == []
    # The cancel was accepted when the copy ended; the end follows when the agent has answered.
    wait_until(lambda: b"0 open" in run("agents", "get", "web-1", api=fleet).stdout)


def test_no_overwrite_keeps_an_existing_file(fleet: CliFleet, run: Run, tmp_path: Path) -> None:
    near, far = tmp_path / "near", tmp_path / "far"
    near.write_bytes(b"near")
    far.write_bytes(b"far")
    for source, target in ((str(near), f"web-1:{far}"), (f"web-1:{far}", str(near))):
        done = run("cp", "--no-overwrite", source, target, api=fleet)
        assert done.returncode == 1
        assert b"choose another name" in done.stderr
    assert (near.read_bytes(), far.read_bytes()) == (b"near", b"far")
    assert leftovers(tmp_path) == []
    assert run("cp", str(near), f"web-1:{far}", api=fleet).returncode == 0
    assert far.read_bytes() == b"near"


def test_missing_folders_on_the_agent_are_made_when_asked_for(fleet: CliFleet, run: Run, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"x")
    refused = run("cp", str(tmp_path / "x"), f"web-1:{tmp_path}/new/deep/x", api=fleet)
    assert (refused.returncode, b"--parents creates the missing folders" in refused.stderr) == (1, True)
    done = run("cp", "-p", str(tmp_path / "x"), f"web-1:{tmp_path}/new/deep/x", api=fleet)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "new/deep/x").read_bytes() == b"x"


def test_a_wrong_digest_keeps_nothing(api: OpenCommand, run: Run, tmp_path: Path) -> None:
    """The agent says that it read other octets than came: one of them was changed on the way."""
    api.add_output(b'{"path": "/x", "size": 4, "mode": "0644", "mtime": 0}', "row")
    api.add_output(b"good", "file")
    api.finish("ok", {"size": 4, "sha256": hashlib.sha256(b"gone").hexdigest()})
    done = run("cp", "web-1:/x", str(tmp_path / "x"), api=api)
    assert done.returncode == 1
    assert b"nothing was kept" in done.stderr
    assert list(tmp_path.iterdir()) == []


class OpenCommand(Protocol):
    def add_output(self, data: bytes, kind: str = "stdout") -> None: ...
    def finish(self, state: str, payload: object = None, error: object = None, truncated: bool = False) -> None: ...
