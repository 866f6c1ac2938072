"""The audit log on a real disk: what is removed, changed, moved or cut off is found, and a full disk loses nothing."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fairlead.audit.log_writer import AuditLogWriter, AuditUnavailable
from fairlead.audit.records import FIRST, RECOVERED, AuditEvent, Head, InvalidLine, chain, parse_line
from fairlead.audit.segments import segment_path, segments
from fairlead.audit.verification import Evidence, read_lines, verify_folder
from fairlead.errors import ConfigError

SIZE = 2_000
"""Bytes of a file in these tests: some six lines."""


def event(n: int) -> AuditEvent:
    return AuditEvent(
        "token:ci", "service-token", "postCommand", "allowed", "role deploy", method="exec", agent=f"web-{n}"
    )


@asynccontextmanager
async def writing(folder: Path, fsync: str = "no", size: int = SIZE) -> AsyncIterator[AuditLogWriter]:
    writer = AuditLogWriter(folder, "node-1", fsync, size)
    writer.open()
    loop = asyncio.create_task(writer.run())
    try:
        yield writer
    finally:
        loop.cancel()
        await asyncio.gather(loop, return_exceptions=True)
        writer.close()


async def write(folder: Path, count: int, fsync: str = "no") -> None:
    async with writing(folder, fsync) as writer:
        for n in range(count):
            await writer.write(event(n))


def faults(folder: Path, known: Head | None = None) -> list[str]:
    return [fault for report in verify_folder(folder, Evidence(known)) for fault in report.faults]


def test_what_has_happened_is_written_also_when_the_log_is_closed_at_once(tmp_path: Path) -> None:
    writer = AuditLogWriter(tmp_path, "node-1", "no", SIZE)
    writer.open()
    for n in range(3):
        writer.note(event(n))
    writer.close()
    assert [line.agent for line in read_lines(tmp_path)] == ["web-0", "web-1", "web-2"]
    assert faults(tmp_path) == []


@pytest.mark.parametrize("fsync", ["always", "everysec", "no"])
async def test_what_was_written_is_valid_also_after_rotations_and_restarts(tmp_path: Path, fsync: str) -> None:
    for _ in range(3):
        await write(tmp_path, 20, fsync)
    (report,) = verify_folder(tmp_path)
    assert (report.node, report.first, report.head.seq, report.faults) == ("node-1", 1, 60, [])
    assert len(segments(tmp_path)["node-1"]) > 5
    assert [(line.seq, line.agent) for line in read_lines(tmp_path)] == [(n + 1, f"web-{n % 20}") for n in range(60)]
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in tmp_path.iterdir())


async def test_events_that_wait_go_out_together_and_in_order(tmp_path: Path) -> None:
    async with writing(tmp_path, size=1 << 20) as writer:
        await asyncio.gather(*(writer.write(event(n)) for n in range(500)))
    assert [line.agent for line in read_lines(tmp_path)] == [f"web-{n}" for n in range(500)]
    assert faults(tmp_path) == []


@pytest.mark.parametrize(("fsync", "least", "most"), [("always", 6, 6), ("everysec", 2, 6), ("no", 0, 0)])
async def test_lines_are_forced_to_the_disk_as_the_policy_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fsync: str, least: int, most: int
) -> None:
    """With everysec also the last lines, which no other line follows."""
    calls: list[int] = []
    real = os.fdatasync

    def counted(file: int) -> None:
        real(file)
        calls.append(os.fstat(file).st_size)

    monkeypatch.setattr(os, "fdatasync", counted)
    async with writing(tmp_path, fsync, 1 << 20) as writer:
        for n in range(6):
            await writer.write(event(n))
        size = segment_path(tmp_path, "node-1", 1).stat().st_size
        if fsync != "no":
            async with asyncio.timeout(30):
                while not calls or calls[-1] != size:
                    await asyncio.sleep(0.02)
        assert least <= len(calls) <= most


def remove(lines: list[bytes]) -> None:
    del lines[3]


def change(lines: list[bytes]) -> None:
    lines[3] = lines[3].replace(b"web-", b"db-")


def change_and_hash_again(lines: list[bytes]) -> None:
    """Whoever knows the format can make a line that is valid by itself."""
    line = parse_line(lines[3])
    made, _ = chain(AuditEvent("token:x", "y", "z", "allowed"), Head(line.seq - 1, line.prev), line.time, line.node)
    lines[3] = made.rstrip(b"\n")


def reorder(lines: list[bytes]) -> None:
    lines[3], lines[4] = lines[4], lines[3]


def repeat(lines: list[bytes]) -> None:
    lines.insert(3, lines[3])


def cut_line(lines: list[bytes]) -> None:
    lines[-1] = lines[-1][:-10]


def cut_end(lines: list[bytes]) -> None:
    del lines[-1]


def cut_start(lines: list[bytes]) -> None:
    del lines[0]


@pytest.mark.parametrize(
    "attack", [remove, change, change_and_hash_again, reorder, repeat, cut_line, cut_end, cut_start]
)
@pytest.mark.parametrize("which", [0, 1, -1])
async def test_every_manipulation_is_found(tmp_path: Path, attack: Callable[[list[bytes]], None], which: int) -> None:
    await write(tmp_path, 18)
    path = segments(tmp_path)["node-1"][which]
    lines = path.read_bytes().splitlines()
    assert len(lines) > 5
    assert faults(tmp_path) == []
    attack(lines)
    path.write_bytes(b"\n".join(lines) + b"\n")
    assert faults(tmp_path) != []


async def test_a_missing_file_and_a_missing_head_are_found(tmp_path: Path) -> None:
    await write(tmp_path, 18)
    first, second, *_, last = segments(tmp_path)["node-1"]
    for path in (second, last, tmp_path / "node-1.head"):
        kept = path.read_bytes()
        path.unlink()
        assert faults(tmp_path) != [], path
        path.write_bytes(kept)
    assert faults(tmp_path) == []
    first.unlink()  # moved to an archive
    assert faults(tmp_path) == []
    for path in segments(tmp_path)["node-1"]:
        path.unlink()
    assert faults(tmp_path) == [f"{tmp_path}/node-1.head: all files of this log are missing"]


async def test_a_log_that_was_written_anew_is_found_by_a_head_that_was_noted(tmp_path: Path) -> None:
    await write(tmp_path / "a", 10)
    noted = verify_folder(tmp_path / "a")[0].head
    assert Head.parse(str(noted)) == noted
    assert faults(tmp_path / "a", noted) == []
    await write(tmp_path / "a", 10)
    assert faults(tmp_path / "a", noted) == []
    await write(tmp_path / "b", 20)
    assert faults(tmp_path / "b") == []
    assert faults(tmp_path / "b", noted) == [f"{tmp_path}/b: no log has the line 10 of the given head"]


async def test_a_node_says_at_its_start_what_is_missing(tmp_path: Path) -> None:
    await write(tmp_path, 4)
    path = segment_path(tmp_path, "node-1", 1)
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:2]))
    await write(tmp_path, 1)
    assert [line.action for line in read_lines(tmp_path)][2:] == [RECOVERED, "postCommand"]
    assert "the node found at its start that lines 3 to 4 are missing" in faults(tmp_path)[0]


async def test_a_node_says_at_its_start_that_its_last_line_was_replaced(tmp_path: Path) -> None:
    """Its next line would name the forged one as the line before it, and nobody could tell any more."""
    await write(tmp_path, 4)
    path = segment_path(tmp_path, "node-1", 1)
    lines = path.read_bytes().splitlines()
    change_and_hash_again(lines)
    path.write_bytes(b"\n".join(lines) + b"\n")
    await write(tmp_path, 2)
    assert [line.action for line in read_lines(tmp_path)] == [
        "postCommand", "postCommand", "postCommand", "z", RECOVERED, "postCommand", "postCommand"
    ]  # fmt: skip
    assert any("the node found at its start that line 4 is not the one" in fault for fault in faults(tmp_path))


async def test_a_crash_between_a_line_and_its_head_is_no_manipulation(tmp_path: Path) -> None:
    await write(tmp_path, 3)
    head = (tmp_path / "node-1.head").read_bytes()
    await write(tmp_path, 2)
    (tmp_path / "node-1.head").write_bytes(head)
    await write(tmp_path, 1)
    assert (faults(tmp_path), len(list(read_lines(tmp_path)))) == ([], 6)


async def test_a_second_writer_of_the_same_log_is_refused(tmp_path: Path) -> None:
    """Both would go on from the same line. A writer of another name in the same folder is no second one."""
    async with writing(tmp_path) as writer:
        await writer.write(event(0))
        second = AuditLogWriter(tmp_path, "node-1", "no", SIZE)
        with pytest.raises(ConfigError, match="another process writes the audit log of node-1"):
            second.open()
        other = AuditLogWriter(tmp_path, "node-2", "no", SIZE)
        other.open()
        other.close()
        await writer.write(event(1))
    await write(tmp_path, 1)
    assert ([line.agent for line in read_lines(tmp_path)], faults(tmp_path)) == (["web-0", "web-1", "web-0"], [])


@pytest.mark.parametrize("kept", [0, 1, 3])
async def test_a_line_that_a_crash_has_cut_off_is_told_and_the_log_goes_on(tmp_path: Path, kept: int) -> None:
    await write(tmp_path, 4)
    path = segment_path(tmp_path, "node-1", 1)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:kept]) + lines[kept][:50])
    await write(tmp_path, 2)
    written = list(read_lines(tmp_path))
    assert [line.action for line in written][-3:] == [RECOVERED, "postCommand", "postCommand"]
    assert f"50 bytes after line {kept or 4} are no valid lines" in written[-3].reason
    assert faults(tmp_path) != []


async def test_what_cannot_be_written_is_refused_and_the_log_stays_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """/dev/full behaves as a full disk does; a part of a write that reached the disk is cut off again."""
    async with writing(tmp_path, size=1 << 20) as writer:
        await writer.write(event(0))
        real = os.write

        def half(file: int, data: bytes) -> int:
            return real(file, data[: len(data) // 2])

        monkeypatch.setattr(os, "write", half)
        with pytest.raises(AuditUnavailable, match="cannot be written"):
            await writer.write(event(1))
        full = os.open("/dev/full", os.O_WRONLY)
        monkeypatch.setattr(os, "write", lambda file, data: real(full, data))
        with pytest.raises(AuditUnavailable, match="No space left on device"):
            await writer.write(event(2))
        monkeypatch.setattr(os, "write", real)
        os.close(full)
        await writer.write(event(3))
        assert (writer.lines, writer.failures) == (2, 2)
    assert faults(tmp_path) == []
    assert [line.agent for line in read_lines(tmp_path)] == ["web-0", "web-3"]


def test_a_folder_that_cannot_be_used_stops_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be written"):
        AuditLogWriter(tmp_path / "file", "node-1", "no", SIZE).open()


@given(st.binary(max_size=400))
def test_garbage_is_no_line(raw: bytes) -> None:
    with pytest.raises(InvalidLine):
        parse_line(raw)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(max_size=50), st.text(max_size=50), st.integers(0, 10**9), st.data())
def test_no_changed_byte_survives(subject: str, detail: str, seq: int, data: st.DataObject) -> None:
    made, head = chain(AuditEvent(subject, "i", "a", "denied", detail=detail), Head(seq, FIRST), "now", "n")
    line = made.rstrip(b"\n")
    assert parse_line(line).detail == detail
    assert (parse_line(line).seq, parse_line(line).hash) == head
    assert json.loads(line)["subject"] == subject
    at = data.draw(st.integers(0, len(line) - 1))
    bit = data.draw(st.integers(0, 7))
    changed = bytearray(line)
    changed[at] ^= 1 << bit
    with pytest.raises(InvalidLine):
        parse_line(bytes(changed))
