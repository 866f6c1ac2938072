"""Verifies an audit log: every line is what was written, no line is missing, and all are in their order.

The command line calls it for a folder. It reads one line at a time, and reports what it finds with file and line.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from fairlead.audit.records import FIRST, RECOVERED, AuditLine, Head, InvalidLine, parse_line
from fairlead.audit.segments import first_number, lines, read_head, segments

FAULTS_LIMIT = 100
"""Of one node: after a changed line, everything that follows may differ."""


NONE = Head()


@dataclass(slots=True)
class NodeReport:
    """What was found in the log of one node. `first` is the number of its first line: earlier files may have been
    moved elsewhere."""

    node: str
    first: int = 0
    head: Head = NONE
    faults: list[str] = field(default_factory=list)
    knows_head: bool = False
    """Whether the head that the user has noted is in the log."""


def verify_folder(folder: Path, known: Head | None = None) -> list[NodeReport]:
    """A report for each node. `known` is a head that was noted earlier and must be in the chain. Raises OSError."""
    reports = [_verify_node(folder, node, paths, known) for node, paths in segments(folder).items()]
    if known is not None and reports and not any(report.knows_head for report in reports):
        reports[0].faults.append(f"{folder}: no log has the line {known.seq} of the given head")
    present = {report.node for report in reports}
    # A node that has started and recorded nothing yet has an empty one.
    heads = [path for path in sorted(folder.glob("*.head")) if path.stat().st_size]
    lost = [path for path in heads if path.stem not in present]
    return [*reports, *(NodeReport(path.stem, faults=[f"{path}: all files of this log are missing"]) for path in lost)]


def read_lines(folder: Path) -> Iterator[AuditLine]:
    """All lines that can be read, node by node, without a check of the chain. Raises OSError."""
    for paths in segments(folder).values():
        for path in paths:
            for _, raw, _ in lines(path):
                try:
                    yield parse_line(raw)
                except InvalidLine:
                    continue


def _verify_node(folder: Path, node: str, paths: list[Path], known: Head | None) -> NodeReport:
    written = read_head(folder, node)  # first: a node that runs may write more meanwhile
    report = NodeReport(node, first_number(paths[0]))
    at = Head(report.first - 1, FIRST if report.first == 1 else "")
    for path in paths:
        if at.seq and first_number(path) != at.seq + 1:
            report.faults.append(
                f"{path}: begins with line {first_number(path)} of the log: expected {at.seq + 1} (a file is missing, "
                "or lines are missing at the end of the one before it)"
            )
        for number, raw, complete in lines(path):
            at, fault = _check(raw, complete, at, node)
            if not fault and written is not None and at.seq == written.seq and at != written:
                fault = "it is not the line that was written here"
            if fault:
                report.faults.append(f"{path}:{number}: {fault}")
            report.knows_head = report.knows_head or at == known
            if len(report.faults) >= FAULTS_LIMIT:
                return report
    report.head = at
    if written is None:
        report.faults.append(f"{folder / node}.head: is missing or cannot be read, so the end of the log is not known")
    elif written.seq > at.seq:
        report.faults.append(
            f"{paths[-1]}: ends with line {at.seq} of the log, but {written.seq} were written: the last "
            f"{written.seq - at.seq} are missing"
        )
    return report


def _check(raw: bytes, complete: bool, expected: Head, node: str) -> tuple[Head, str]:
    """The head after one line, and what is wrong with the line."""
    try:
        line = parse_line(raw)
    except InvalidLine as e:
        return Head(expected.seq + 1, ""), str(e)
    after = Head(line.seq, line.hash)
    if not complete:
        return after, "it has no line end, so it was cut off"
    if line.node != node:
        return after, f"it is a line of the node {line.node}, not of {node}"
    if line.seq != expected.seq + 1:
        return after, f"it is line {line.seq} of the log: expected {expected.seq + 1} (lines were removed or moved)"
    if expected.hash and line.prev != expected.hash:
        return after, "it does not follow the line before it: lines were exchanged, or the log was written anew"
    if line.action == RECOVERED:
        return after, f"the node found at its start that {line.reason}"
    return after, ""
