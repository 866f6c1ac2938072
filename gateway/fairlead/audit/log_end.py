"""Finds where the audit log of a node ends, and what is wrong there: lines that are missing, replaced or cut off.

The writer asks when it starts. Nothing is changed here.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import NamedTuple

from fairlead.audit.records import LINE_LIMIT, RECOVERED, AuditEvent, Head, InvalidLine, parse_line
from fairlead.audit.segments import head_path, lines, read_head, segments


class LogEnd(NamedTuple):
    """`head` is the line after which the log goes on, `torn` whether octets follow the last valid line of the `newest`
    file, and `fault` the event that records what is wrong."""

    head: Head
    newest: Path | None
    torn: bool
    fault: AuditEvent | None


def find_end(folder: Path, node: str) -> LogEnd:
    """Raises OSError."""
    expected = read_head(head_path(folder, node)) or Head()
    paths = segments(folder).get(node, [])
    found, torn, changed = Head(), b"", False
    for path in reversed(paths):
        found, rest, other = _last_line(path, expected)
        torn, changed = torn or rest, changed or other
        if found.seq:
            break
    head = found if found.seq else expected
    if torn:
        digest = hashlib.sha256(torn).hexdigest()
        reason = f"{len(torn)} bytes after line {head.seq} are no valid lines (SHA-256 {digest})"
    elif expected.seq > found.seq:
        reason = f"lines {found.seq + 1} to {expected.seq} are missing"
    elif changed:
        reason = f"line {expected.seq} is not the one that was written"
    else:
        reason = ""
    fault = AuditEvent("node", "node", RECOVERED, "allowed", reason) if reason else None
    return LogEnd(head, paths[-1] if paths else None, bool(torn), fault)


def _last_line(path: Path, expected: Head) -> tuple[Head, bytes, bool]:
    """The last valid line of a file, what follows it, and whether there is another line in the place of `expected`."""
    head, rest, changed = Head(), b"", False
    for _, raw, complete in lines(path):
        try:
            line = parse_line(raw)
        except InvalidLine:
            rest += raw[:LINE_LIMIT]
            continue
        if complete:
            head, rest = Head(line.seq, line.hash), b""
            changed = changed or (head.seq == expected.seq and head != expected)
        else:
            rest += raw
    return head, rest, changed
