"""Signed heads: whoever holds the folder but not the key cannot shorten the log or write it anew unnoticed."""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from fairlead.audit.log_writer import AuditLogWriter, AuditUnavailable
from fairlead.audit.records import AuditEvent, Head, chain, parse_line
from fairlead.audit.segments import head_path, segment_path, segments
from fairlead.audit.signed_head import SIGNED, SignedHead, find_heads, keys_by_id, sign_head
from fairlead.audit.verification import Evidence, NodeReport, read_lines, verify_folder
from fairlead.cli.access.audit import audit
from fairlead.signing.keys import PrivateKey, generate

KEY, OTHER = generate(), generate()
NODE = "node-1"
TIME = "2026-11-26T10:00:00.000Z"


@asynccontextmanager
async def writing(
    folder: Path, key: PrivateKey | None = KEY, size: int = 1 << 20, interval: float = 3600.0, node: str = NODE
) -> AsyncIterator[AuditLogWriter]:
    writer = AuditLogWriter(folder, node, "no", size, key, interval)
    writer.open()
    loop = asyncio.create_task(writer.run())
    try:
        yield writer
    finally:
        loop.cancel()
        await asyncio.gather(loop, return_exceptions=True)
        writer.close()


async def write(folder: Path, count: int, key: PrivateKey | None = KEY, size: int = 1 << 20, node: str = NODE) -> None:
    async with writing(folder, key, size, node=node) as writer:
        for n in range(count):
            await writer.write(AuditEvent("token:ci", "service-token", "postCommand", "allowed", agent=f"web-{n}"))


def verified(folder: Path, *noted: SignedHead, key: PrivateKey = KEY, partial: bool = False) -> list[NodeReport]:
    return verify_folder(folder, Evidence(keys=[key.public], noted=noted, partial=partial))


def faults(folder: Path, *noted: SignedHead, key: PrivateKey = KEY, partial: bool = False) -> list[str]:
    return [fault for report in verified(folder, *noted, key=key, partial=partial) for fault in report.faults]


def heads_in(folder: Path) -> list[SignedHead]:
    return [head for line in read_lines(folder) if line.action == SIGNED for head in find_heads(line.detail)]


def rewrite(folder: Path, lines: list[bytes], node: str = NODE) -> None:
    """Replace a log of one file and its head, as whoever knows the format can."""
    segment_path(folder, node, 1).write_bytes(b"".join(line + b"\n" for line in lines))
    last = parse_line(lines[-1])
    head_path(folder, node).write_bytes(Head(last.seq, last.hash).padded())


def lines_of(folder: Path) -> list[bytes]:
    return segment_path(folder, NODE, 1).read_bytes().splitlines()


async def test_heads_are_signed_at_the_end_of_each_file_and_of_the_process(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        await write(tmp_path, 12, size=2_000)
        await write(tmp_path, 12, size=2_000)
    (report,) = verified(tmp_path)
    paths = segments(tmp_path)[NODE]
    assert (report.faults, len(paths) > 2) == ([], True)
    ends = [parse_line(path.read_bytes().splitlines()[-1]).action for path in paths]
    assert ends == [SIGNED] * len(paths)
    assert report.signed is not None
    assert report.signed.head.seq == report.head.seq - 1
    # The same heads are in the node's own log, where whoever holds the folder cannot remove them.
    assert list(find_heads(caplog.text)) == heads_in(tmp_path)


async def test_a_list_shows_up_to_which_line_a_head_vouches(tmp_path: Path) -> None:
    await write(tmp_path, 3)
    (head,) = heads_in(tmp_path)
    shown = CliRunner().invoke(audit, ["ls", str(tmp_path)]).stdout
    assert f"up to line {head.head.seq}" in shown
    assert max(map(len, shown.splitlines())) < 120
    assert str(head) in CliRunner().invoke(audit, ["ls", str(tmp_path), "-o", "json"]).stdout


async def test_a_head_is_signed_after_an_interval_and_only_if_lines_were_written(tmp_path: Path) -> None:
    async with writing(tmp_path, interval=0.05) as writer:
        await writer.write(AuditEvent("a", "b", "c", "allowed"))
        async with asyncio.timeout(30):
            while not heads_in(tmp_path):
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.2)  # four intervals in which nothing is written
        assert [head.head.seq for head in heads_in(tmp_path)] == [1]
        await writer.write(AuditEvent("a", "b", "c", "allowed"))
    assert [head.head.seq for head in heads_in(tmp_path)] == [1, 3]
    assert faults(tmp_path) == []


async def test_the_lines_of_a_process_that_was_killed_are_signed_by_the_next_one(tmp_path: Path) -> None:
    await write(tmp_path, 3, key=None)
    assert faults(tmp_path) == [f"{tmp_path}: no line of node-1's log is signed: expected audit_key on that node"]
    await write(tmp_path, 0)
    assert ([head.head.seq for head in heads_in(tmp_path)], faults(tmp_path)) == ([3], [])


async def test_a_log_that_was_cut_off_is_found_by_a_head_that_was_kept_elsewhere(tmp_path: Path) -> None:
    await write(tmp_path, 3)
    await write(tmp_path, 3)
    kept = heads_in(tmp_path)
    lines = lines_of(tmp_path)
    assert faults(tmp_path, *kept) == []
    rewrite(tmp_path, lines[:4])  # up to the first signed head, so that the folder by itself is without a fault
    assert faults(tmp_path) == []
    (fault,) = faults(tmp_path, *kept)
    assert fault.endswith(
        f"ends with line 4 of the log, but a signed head that was kept elsewhere says that {kept[-1].head.seq} were "
        "written"
    )
    # The node goes on after what is left, in other lines with the same numbers: this is found too.
    await write(tmp_path, 9)
    assert faults(tmp_path) == []
    assert any("says that another line was written here" in fault for fault in faults(tmp_path, *kept))


async def test_a_last_line_that_was_replaced_is_found(tmp_path: Path) -> None:
    await write(tmp_path, 3)
    lines = lines_of(tmp_path)
    last = parse_line(lines[-1])
    forged, _ = chain(AuditEvent("token:x", "y", "z", "allowed"), Head(last.seq - 1, last.prev), TIME, NODE)
    rewrite(tmp_path, [*lines[:-1], forged.rstrip(b"\n")])
    assert faults(tmp_path) == [f"{tmp_path}: no line of node-1's log is signed: expected audit_key on that node"]


def anew(folder: Path, key: PrivateKey | None) -> list[bytes]:
    """A log that says something else in its third line and is consistent by itself; with a key, signed anew."""
    made, head = [], Head()
    for raw in lines_of(folder):
        line = parse_line(raw)
        event = AuditEvent(line.subject, line.issuer, line.action, line.outcome, detail=line.detail, agent=line.agent)
        if line.seq == 3:
            event = AuditEvent("token:nobody", "service-token", "listAgents", "allowed")
        if line.action == SIGNED and key is not None:
            event = AuditEvent("node", "node", SIGNED, "allowed", detail=str(sign_head(key, NODE, head, TIME)))
        written, head = chain(event, head, line.time, NODE)
        made.append(written.rstrip(b"\n"))
    return made


@pytest.mark.parametrize(
    ("key", "expected"),
    [(None, "it has no signed head of the line before it"), (OTHER, "which is not one of those given")],
)
async def test_a_log_that_was_written_anew_is_found(tmp_path: Path, key: PrivateKey | None, expected: str) -> None:
    await write(tmp_path, 6)
    rewrite(tmp_path, anew(tmp_path, key))
    assert [fault for report in verify_folder(tmp_path) for fault in report.faults] == []  # without the key nobody sees
    assert any(expected in fault for fault in faults(tmp_path))


async def test_a_log_of_another_key_is_found_and_a_rotation_is_none(tmp_path: Path) -> None:
    await write(tmp_path, 2)
    await write(tmp_path, 2, key=OTHER)
    assert any("which is not one of those given" in fault for fault in faults(tmp_path))
    both = Evidence(keys=[KEY.public, OTHER.public])
    assert [report.faults for report in verify_folder(tmp_path, both)] == [[]]


def remove(lines: list[bytes]) -> None:
    del lines[3]


def change(lines: list[bytes]) -> None:
    lines[3] = lines[3].replace(b"web-", b"db-")


def reorder(lines: list[bytes]) -> None:
    lines[3], lines[4] = lines[4], lines[3]


def repeat(lines: list[bytes]) -> None:
    lines.insert(3, lines[3])


@pytest.mark.parametrize("attack", [remove, change, reorder, repeat])
async def test_every_manipulation_is_found(tmp_path: Path, attack: Callable[[list[bytes]], None]) -> None:
    await write(tmp_path, 8)
    lines = lines_of(tmp_path)
    attack(lines)
    segment_path(tmp_path, NODE, 1).write_bytes(b"".join(line + b"\n" for line in lines))
    assert faults(tmp_path) != []


async def test_the_beginning_may_be_elsewhere_only_if_that_is_said(tmp_path: Path) -> None:
    await write(tmp_path, 18, size=2_000)
    kept = heads_in(tmp_path)
    segments(tmp_path)[NODE][0].unlink()
    assert any("expected line 1" in fault for fault in faults(tmp_path))
    assert faults(tmp_path, *kept, partial=True) == []


async def test_each_node_has_its_chain_and_a_log_that_is_gone_is_missed(tmp_path: Path) -> None:
    await write(tmp_path, 3)
    await write(tmp_path, 5, node="node-2")
    kept = heads_in(tmp_path)
    assert [(one.node, one.signed and one.signed.head.seq, one.faults) for one in verified(tmp_path, *kept)] == [
        ("node-1", 3, []), ("node-2", 5, []),
    ]  # fmt: skip
    for path in tmp_path.glob("node-2.*"):
        path.unlink()
    assert any("has no log of node-2" in fault for fault in faults(tmp_path, *kept))
    # The log of one node does not pass as that of another.
    shutil.copy(segment_path(tmp_path, NODE, 1), segment_path(tmp_path, "node-2", 1))
    shutil.copy(head_path(tmp_path, NODE), head_path(tmp_path, "node-2"))
    assert any("it is a line of the node node-1, not of node-2" in fault for fault in faults(tmp_path))


async def test_a_forged_head_from_elsewhere_is_told(tmp_path: Path) -> None:
    await write(tmp_path, 3)
    forged = heads_in(tmp_path)[0]._replace(head=Head(99, "0" * 64))
    assert any("of the heads that were kept elsewhere, the signature" in fault for fault in faults(tmp_path, forged))


async def test_a_head_that_cannot_be_written_is_told_and_signed_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import os

    async with writing(tmp_path, interval=0.05) as writer:
        monkeypatch.setattr("fairlead.audit.log_writer.SIGN_AGAIN", 0.05)
        await writer.write(AuditEvent("a", "b", "c", "allowed"))
        full, real = os.open("/dev/full", os.O_WRONLY), os.write
        monkeypatch.setattr(os, "write", lambda file, data: real(full, data))
        async with asyncio.timeout(30):
            while "the signed head cannot be written" not in caplog.text:
                await asyncio.sleep(0.01)
        with pytest.raises(AuditUnavailable, match="No space left on device"):
            await writer.write(AuditEvent("a", "b", "d", "allowed"))
        monkeypatch.setattr(os, "write", real)
        os.close(full)
        async with asyncio.timeout(30):
            while not heads_in(tmp_path):
                await asyncio.sleep(0.01)
        await writer.write(AuditEvent("a", "b", "e", "allowed"))
    assert faults(tmp_path) == []
    assert [line.action for line in read_lines(tmp_path)] == ["c", SIGNED, "e", SIGNED]


@given(st.integers(0, 10**17), st.text(max_size=20), st.text(max_size=20), st.data())
def test_a_head_survives_any_log_and_no_changed_character_is_valid(
    seq: int, before: str, after: str, data: st.DataObject
) -> None:
    signed = sign_head(KEY, NODE, Head(seq, "ab" * 32), TIME)
    text = str(signed)
    assert list(find_heads(f'{before}"{text}"{after}')) == [signed]
    assert signed.problem(keys_by_id([KEY.public])) == ""
    assert "not one of those given" in signed.problem(keys_by_id([OTHER.public]))
    at = data.draw(st.integers(0, len(text) - 2))  # the last character has bits that say nothing
    other = data.draw(
        st.sampled_from("0123456789abcdefghijklmnopqrstuvwxyzABCXYZ-_=/ .").filter(lambda c: c != text[at])
    )
    for found in find_heads(text[:at] + other + text[at + 1 :]):
        assert found.problem(keys_by_id([KEY.public])) != ""
