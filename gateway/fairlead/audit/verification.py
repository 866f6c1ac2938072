"""Verifies an audit log: every line is what was written, no line is missing, and all are in their order.

The command line calls it for a folder. It reads one line at a time, and reports what it finds with file and line. With
the public keys that sign heads, it also finds out how far somebody vouches for the log who does not hold its folder.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from fairlead.audit.records import FIRST, RECOVERED, AuditLine, Head, InvalidLine, parse_line
from fairlead.audit.segments import first_number, head_path, lines, read_head, segments
from fairlead.audit.signed_head import SIGNED, SignedHead, find_heads, keys_by_id
from fairlead.signing.keys import PublicKey

FAULTS_LIMIT = 100
"""Of one node: after a changed line, everything that follows may differ."""


NONE = Head()


@dataclass(slots=True)
class NodeReport:
    """What was found in the log of one node. `first` is the number of its first line: earlier files may have been
    moved elsewhere. `signed` is the last head in it that one of the given keys has signed."""

    node: str
    first: int = 0
    head: Head = NONE
    faults: list[str] = field(default_factory=list)
    knows_head: bool = False
    """Whether the head that the user has noted is in the log."""
    signed: SignedHead | None = None


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a log is compared with beside itself: `known` is a head that was noted and must be in the chain. `keys` sign
    heads, and `noted` are signed heads that were kept elsewhere. With `partial`, the first files may be missing."""

    known: Head | None = None
    keys: Collection[PublicKey] = ()
    noted: Collection[SignedHead] = ()
    partial: bool = False


NOTHING = Evidence()


def verify_folder(folder: Path, evidence: Evidence = NOTHING) -> list[NodeReport]:
    """A report for each node. Raises OSError."""
    known = evidence.known
    reports = [_NodeCheck(folder, node, evidence).run(paths) for node, paths in segments(folder).items()]
    if known is not None and reports and not any(report.knows_head for report in reports):
        reports[0].faults.append(f"{folder}: no log has the line {known.seq} of the given head")
    present = {report.node for report in reports}
    # A node that has started and recorded nothing yet has an empty one.
    heads = [path for path in sorted(folder.glob("*.head")) if path.stat().st_size]
    lost = {path.stem: f"{path}: all files of this log are missing" for path in heads}
    for noted in evidence.noted:
        lost.setdefault(noted.node, f"{folder}: has no log of {noted.node}, of which the signed head {noted.head} says")
    missing = [NodeReport(node, faults=[fault]) for node, fault in lost.items() if node not in present]
    return [*reports, *missing]


def read_lines(folder: Path) -> Iterator[AuditLine]:
    """All lines that can be read, node by node, without a check of the chain. Raises OSError."""
    for paths in segments(folder).values():
        for path in paths:
            for _, raw, _ in lines(path):
                try:
                    yield parse_line(raw)
                except InvalidLine:
                    continue


class _NodeCheck:
    """The check of one node's log."""

    def __init__(self, folder: Path, node: str, evidence: Evidence) -> None:
        self._folder = folder
        self._known = evidence.known
        self._partial = evidence.partial
        self._keys = keys_by_id(evidence.keys)
        self._report = NodeReport(node)
        self._noted: dict[int, set[str]] = {}
        """The hashes that lines have according to signed heads that were kept elsewhere."""
        for head in (one for one in evidence.noted if one.node == node):
            if problem := head.problem(self._keys):
                self._report.faults.append(f"{node}: of the heads that were kept elsewhere, {problem}")
            else:
                self._noted.setdefault(head.head.seq, set()).add(head.head.hash)

    def run(self, paths: list[Path]) -> NodeReport:
        report = self._report
        written = read_head(head_path(self._folder, report.node))  # first: a node that runs may write more meanwhile
        report.first = first_number(paths[0])
        if self._keys and report.first != 1 and not self._partial:
            report.faults.append(
                f"{paths[0]}: the log begins with line {report.first}: expected line 1 (put the older files beside it, "
                "or verify them in their place and say --partial here)"
            )
        at = Head(report.first - 1, FIRST if report.first == 1 else "")
        for path in paths:
            if at.seq and first_number(path) != at.seq + 1:
                report.faults.append(
                    f"{path}: begins with line {first_number(path)} of the log: expected {at.seq + 1} (a file is "
                    "missing, or lines are missing at the end of the one before it)"
                )
            for number, raw, complete in lines(path):
                at, fault = self._check(raw, complete, at)
                if not fault and written is not None and at.seq == written.seq and at != written:
                    fault = "it is not the line that was written here"
                if fault:
                    report.faults.append(f"{path}:{number}: {fault}")
                report.knows_head = report.knows_head or at == self._known
                if len(report.faults) >= FAULTS_LIMIT:
                    return report
        report.head = at
        report.faults += self._faults_of_end(paths[-1], written, at)
        return report

    def _check(self, raw: bytes, complete: bool, expected: Head) -> tuple[Head, str]:
        """The head after one line, and what is wrong with the line."""
        try:
            line = parse_line(raw)
        except InvalidLine as e:
            return Head(expected.seq + 1, ""), str(e)
        after = Head(line.seq, line.hash)
        if not complete:
            return after, "it has no line end, so it was cut off"
        if line.node != self._report.node:
            return after, f"it is a line of the node {line.node}, not of {self._report.node}"
        if line.seq != expected.seq + 1:
            return after, f"it is line {line.seq} of the log: expected {expected.seq + 1} (lines were removed or moved)"
        if expected.hash and line.prev != expected.hash:
            return after, "it does not follow the line before it: lines were exchanged, or the log was written anew"
        if line.action == RECOVERED:
            return after, f"the node found at its start that {line.reason}"
        if self._noted.pop(line.seq, {line.hash}) != {line.hash}:
            return after, "a signed head that was kept elsewhere says that another line was written here"
        if line.action == SIGNED and self._keys:
            return after, self._fault_of_signed(line)
        return after, ""

    def _fault_of_signed(self, line: AuditLine) -> str:
        found = list(find_heads(line.detail))
        if len(found) != 1 or (found[0].node, found[0].head) != (line.node, Head(line.seq - 1, line.prev)):
            return "it has no signed head of the line before it"
        if not (problem := found[0].problem(self._keys)):
            self._report.signed = found[0]
        return problem

    def _faults_of_end(self, newest: Path, written: Head | None, at: Head) -> Iterator[str]:
        report = self._report
        if written is None:
            yield (
                f"{self._folder / report.node}.head: is missing or cannot be read, so the end of the log is not known"
            )
        elif written.seq > at.seq:
            yield (
                f"{newest}: ends with line {at.seq} of the log, but {written.seq} were written: the last "
                f"{written.seq - at.seq} are missing"
            )
        last = max(self._noted, default=0)
        if last > at.seq:
            yield (
                f"{newest}: ends with line {at.seq} of the log, but a signed head that was kept elsewhere says that "
                f"{last} were written"
            )
        if self._keys and report.signed is None and not report.faults:
            yield f"{self._folder}: no line of {report.node}'s log is signed: expected audit_key on that node"
