"""The export of the audit log to a real collector: in order, complete, and from where it stopped after a restart."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from fairlead.audit import log_exporter
from fairlead.audit.log_exporter import AuditLogExporter
from fairlead.audit.log_writer import AuditLogWriter
from fairlead.audit.records import FIRST, RECOVERED, AuditEvent, Head, parse_line
from fairlead.audit.segments import exported_path, head_path, segment_path, segments
from fairlead.audit.signed_head import find_heads
from fairlead.audit.verification import Evidence, verify_folder
from fairlead.signing.keys import generate

from support.otlp_collector import Collector, collecting

NODE = "node-1"
TRACE = "0af7651916cd43dd8448eb211c80319c"
KEY = generate()


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as made:
        yield made


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_exporter, "PAUSE", 0.02)
    monkeypatch.setattr(log_exporter, "BACKOFF", 0.05)
    monkeypatch.setattr(log_exporter, "TIMEOUT", 0.5)


@asynccontextmanager
async def exporting(
    folder: Path, collector: Collector, size: int = 1 << 20
) -> AsyncIterator[tuple[AuditLogWriter, AuditLogExporter]]:
    """A node's audit log with its export, started and stopped as a node does it."""
    writer = AuditLogWriter(folder, NODE, "no", size, KEY)
    exporter = AuditLogExporter(writer, f"{collector.url}/v1/logs", {"service.instance.id": NODE})
    writer.open()
    loops = [asyncio.create_task(writer.run()), asyncio.create_task(exporter.run())]
    try:
        yield writer, exporter
    finally:
        for loop in loops:
            loop.cancel()
        await asyncio.gather(*loops, return_exceptions=True)
        writer.close()
        await exporter.aclose()


async def write(writer: AuditLogWriter, numbers: range) -> None:
    for n in numbers:
        event = AuditEvent(
            "token:ci", "s", "postCommand", "denied" if n % 2 else "allowed", agent=f"web-{n}", trace=TRACE
        )
        await writer.write(event)


async def until(condition: Callable[[], bool], what: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.02)
    assert condition(), what()


def agents(collector: Collector) -> list[str]:
    return [
        str(one.attributes["fairlead.audit.agent"])
        for one in collector.records
        if "fairlead.audit.agent" in one.attributes
    ]


async def test_every_line_arrives_once_and_in_order_also_after_restarts_and_rotations(
    tmp_path: Path, collector: Collector
) -> None:
    for begin in (0, 40, 80):
        async with exporting(tmp_path, collector, size=3_000) as (writer, _):
            await write(writer, range(begin, begin + 40))
    assert agents(collector) == [f"web-{n}" for n in range(120)]
    assert len(segments(tmp_path)[NODE]) > 5
    lines = [parse_line(one.body.encode()) for one in collector.records]
    assert [line.seq for line in lines] == list(range(1, len(lines) + 1))
    assert [line.prev for line in lines] == [FIRST, *(line.hash for line in lines[:-1])]  # the chain, at the collector
    (report,) = verify_folder(tmp_path, Evidence(keys=[KEY.public]))
    assert (report.faults, report.head.seq) == ([], len(lines))
    first = collector.records[0]
    assert (first.event, first.severity, first.trace) == ("fairlead.audit", "INFO", TRACE)
    assert (collector.records[1].severity, first.resource["service.instance.id"]) == ("WARN", NODE)
    assert first.attributes["fairlead.audit.outcome"] == "allowed"
    assert abs(first.at / 1e9 - tmp_path.stat().st_mtime) < 3600


async def test_a_log_that_was_cut_off_is_found_with_what_the_collector_has(
    tmp_path: Path, collector: Collector
) -> None:
    for _ in range(2):
        async with exporting(tmp_path, collector) as (writer, _):
            await write(writer, range(3))
    path = segment_path(tmp_path, NODE, 1)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:4]))
    last = parse_line(lines[3].rstrip(b"\n"))
    head_path(tmp_path, NODE).write_bytes(Head(last.seq, last.hash).padded())
    noted = [head for one in collector.records for head in find_heads(one.body)]
    keys = [KEY.public]
    assert [report.faults for report in verify_folder(tmp_path, Evidence(keys=keys))] == [[]]
    (report,) = verify_folder(tmp_path, Evidence(keys=keys, noted=noted))
    assert any("were written" in fault for fault in report.faults)


async def test_a_collector_that_is_away_is_told_and_loses_nothing(
    tmp_path: Path, collector: Collector, caplog: pytest.LogCaptureFixture
) -> None:
    collector.refusing = True
    async with exporting(tmp_path, collector) as (writer, exporter):
        await write(writer, range(5))
        await until(lambda: exporter.failures > 1, lambda: exporter.failures)
        assert (exporter.waiting, exporter.exported, collector.records) == (5, 0, [])
        assert caplog.text.count("does not accept the audit log: its lines stay in") == 1
        collector.refusing = False
        await until(lambda: exporter.waiting == 0, lambda: exporter.waiting)
    assert agents(collector) == [f"web-{n}" for n in range(5)]


async def test_what_was_not_exported_when_the_node_stopped_is_exported_after_its_start(
    tmp_path: Path, collector: Collector, caplog: pytest.LogCaptureFixture
) -> None:
    async with exporting(tmp_path, collector) as (writer, exporter):
        await write(writer, range(3))
        await until(lambda: exporter.waiting == 0, lambda: exporter.waiting)
        collector.refusing = True
        await write(writer, range(3, 6))
    assert "lines of the audit log are not exported yet" in caplog.text
    collector.refusing = False
    async with exporting(tmp_path, collector) as (_, exporter):
        await until(lambda: exporter.waiting == 0, lambda: exporter.waiting)
    assert agents(collector) == [f"web-{n}" for n in range(6)]


async def test_lines_that_were_removed_before_they_were_exported_are_counted(
    tmp_path: Path, collector: Collector, caplog: pytest.LogCaptureFixture
) -> None:
    writer = AuditLogWriter(tmp_path, NODE, "no", 2_000)
    writer.open()
    loop = asyncio.create_task(writer.run())
    await write(writer, range(30))
    loop.cancel()
    writer.close()
    first, second, *_ = segments(tmp_path)[NODE]
    gone = len(first.read_bytes().splitlines()) + len(second.read_bytes().splitlines())
    first.unlink()
    second.unlink()
    async with exporting(tmp_path, collector, size=2_000) as (_, exporter):
        await until(lambda: exporter.waiting == 0, lambda: exporter.waiting)
        assert exporter.missing == gone
    assert f"{gone} of the lines 1 to" in caplog.text
    assert len(agents(collector)) == 30 - gone
    assert agents(collector)[-1] == "web-29"


async def test_an_export_goes_on_where_a_node_has_noticed_that_its_log_was_cut_off(
    tmp_path: Path, collector: Collector, caplog: pytest.LogCaptureFixture
) -> None:
    """The lines that follow have the numbers of those that are missing, and must not pass as exported."""
    async with exporting(tmp_path, collector) as (writer, _):
        await write(writer, range(6))
    path = segment_path(tmp_path, NODE, 1)
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:3]))
    async with exporting(tmp_path, collector) as (writer, _):
        await write(writer, range(6, 8))
    assert "which was exported last, is not in" in caplog.text
    assert agents(collector) == [f"web-{n}" for n in range(8)]
    assert RECOVERED in [parse_line(one.body.encode()).action for one in collector.records]


@pytest.mark.parametrize("noted", [b"", b"garbage", Head(3, FIRST).padded()])
async def test_a_damaged_place_exports_again_and_loses_nothing(
    tmp_path: Path, collector: Collector, noted: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with exporting(tmp_path, collector) as (writer, _):
        await write(writer, range(4))
    exported_path(tmp_path, NODE).write_bytes(noted)
    collector.records.clear()
    with caplog.at_level(logging.INFO):
        async with exporting(tmp_path, collector) as (writer, _):
            await write(writer, range(4, 6))
    assert agents(collector) == [f"web-{n}" for n in range(6)]
