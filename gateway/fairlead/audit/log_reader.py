"""Reads the audit log of a node while it is written: the lines behind one that was read before, in bounded batches.

The exporter uses it in a thread. It changes nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

from fairlead.audit.records import LINE_LIMIT, RECOVERED, AuditLine, Head, InvalidLine, parse_line
from fairlead.audit.segments import first_number, lines, segments

BATCH: Final = 512
"""Lines that are read at once."""
BATCH_BYTES: Final = 1 << 20


class StoredLine(NamedTuple):
    """A line, and as it is in the file, without its line end."""

    line: AuditLine
    raw: bytes


class LogReader:
    """`at` is the last line that was read."""

    def __init__(self, folder: Path, node: str) -> None:
        self._folder = folder
        self._node = node
        self._path: Path | None = None
        self._offset = 0
        self.at = Head()
        self._before: tuple[Head, Path | None, int] = (self.at, None, 0)

    def seek(self, noted: Head) -> str:
        """Go on behind the line `noted`. If it is not in the log, go on where the node has noticed that, or else at the
        first line, and return what is wrong. Raises OSError."""
        self.at, self._path, self._offset = noted, None, 0
        paths = segments(self._folder).get(self._node, [])
        if not noted.seq or not paths or first_number(paths[0]) > noted.seq:
            return ""  # `read` finds out whether lines are missing
        recovered = Head()
        for path in paths:
            for _, raw, _ in lines(path):
                try:
                    line = parse_line(raw)
                except InvalidLine:
                    continue
                if (line.seq, line.hash) == noted:
                    return ""
                if line.action == RECOVERED:
                    recovered = Head(line.seq - 1, line.prev)
        self.at = recovered if recovered.seq else Head(first_number(paths[0]) - 1)
        return f"line {noted.seq}, which was exported last, is not in {self._folder} any more"

    def read(self, last: int) -> list[StoredLine]:
        """Lines behind `at` up to the line `last`; none if there is nothing new. Raises OSError."""
        self._before = (self.at, self._path, self._offset)
        found: list[StoredLine] = []
        while self.at.seq < last:
            if self._path is None and not self._choose():
                break
            try:
                ended = self._read_file(found, last)
            except FileNotFoundError:  # it was moved away
                self._path = None
                continue
            if not ended or not self._next():
                break
        return found

    def back(self) -> None:
        """Go back to before the last `read`."""
        self.at, self._path, self._offset = self._before

    def _read_file(self, found: list[StoredLine], last: int) -> bool:
        """Read on in the file. Returns whether its end was reached."""
        assert self._path is not None
        size = sum(len(one.raw) for one in found)
        with self._path.open("rb") as file:
            file.seek(self._offset)
            while len(found) < BATCH and size < BATCH_BYTES:
                raw = file.readline(LINE_LIMIT + 1)
                if not raw.endswith(b"\n"):
                    return True
                try:
                    line = parse_line(raw[:-1])
                except InvalidLine:
                    line = None
                if line is not None and line.seq > last:
                    return False
                self._offset += len(raw)
                if line is not None and line.seq > self.at.seq:
                    found.append(StoredLine(line, raw[:-1]))
                    size += len(raw)
                    self.at = Head(line.seq, line.hash)
        return False

    def _choose(self) -> bool:
        """Find the file with the line behind `at`, or the first one after it."""
        paths = segments(self._folder).get(self._node, [])
        before = [path for path in paths if first_number(path) <= self.at.seq + 1]
        after = paths[len(before) :]
        self._path, self._offset = before[-1] if before else after[0] if after else None, 0
        return self._path is not None

    def _next(self) -> bool:
        """Go on in the file after this one, if there is one."""
        paths = segments(self._folder).get(self._node, [])
        later = [path for path in paths if self._path is None or path.name > self._path.name]
        if later:
            self._path, self._offset = later[0], 0
        return bool(later)
