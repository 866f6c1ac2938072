"""One column of a shard: for each position the value that one agent has for one key, and which positions match a term.

`ShardColumns` asks it. A cell is one byte: 0 for an agent without a value, the code of its value, or OTHER for a value
without a code, of which the column knows a hash of two bytes. So a term is decided once for each value and never for
each agent. The scripts of `columns.lua` write the cells. This module is pure.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Final, NamedTuple

from fairlead.fleet.selector import Term

OTHER: Final = 255
_END: Final = 0


class Matches(NamedTuple):
    """Two sets of positions, as numbers whose byte P is 1 if the set has P: the `sure` ones match, and the `open` ones
    may match, which only their rows can tell."""

    sure: int
    open: int

    @property
    def possible(self) -> int:
        return self.sure | self.open

    def both(self, other: Matches) -> Matches:
        sure = self.sure & other.sure
        return Matches(sure, self.possible & other.possible & ~sure)

    def among(self, positions: int) -> Matches:
        return Matches(self.sure & positions, self.open & positions)

    def without(self, positions: int) -> Matches:
        return Matches(self.sure & ~positions, self.open & ~positions)

    def either(self, other: Matches) -> Matches:
        sure = self.sure | other.sure
        return Matches(sure, (self.open | other.open) & ~sure)

    def opened(self, positions: int) -> Matches:
        """The same, but only the rows tell of these positions."""
        return Matches(self.sure & ~positions, self.open | positions)


class Column:
    """`size` is the number of cells; `firsts` and `seconds` are the bytes of the hashes. A column that the shard does
    not have is empty: no agent has a value. One that was `refused` knows nothing."""

    __slots__ = ("_cells", "_firsts", "_refused", "_seconds", "_size", "_values")

    def __init__(
        self, size: int, codes: bytes, cells: bytes, firsts: bytes, seconds: bytes, refused: bool = False
    ) -> None:
        self._size = size
        self._values = parse_codes(codes)
        self._cells = cells.ljust(size, b"\0")
        self._firsts = firsts.ljust(size, b"\0")
        self._seconds = seconds.ljust(size, b"\0")
        self._refused = refused

    @classmethod
    def missing(cls, size: int, *, refused: bool) -> Column:
        return cls(size, b"", b"", b"", b"", refused)

    @property
    def filled(self) -> int:
        """The positions that have a value, as far as this is known."""
        return self._where(b"\0" + b"\1" * 255)

    def matching(self, term: Term) -> Matches:
        """The positions whose value matches, whatever the term says of labels and facts."""
        if self._refused:
            return Matches(0, every(self._size))
        probe = replace(term, of="fact")
        table = bytearray(256)
        table[0] = bool(probe.holds(None, {}))
        for code, value in self._values.items():
            table[code] = bool(probe.holds(None, {term.key: value}))
        unknown = 0
        if term.comparison:
            unknown = self._others()
        elif term.values is None:
            table[OTHER] = not term.negated
        else:
            table[OTHER] = term.negated
            unknown = self._hashed(term.values)
        return Matches(self._where(bytes(table)) & ~unknown, unknown)

    def _where(self, table: bytes) -> int:
        return int.from_bytes(self._cells.translate(table), "little")

    def _others(self) -> int:
        return self._where(b"\0" * OTHER + b"\1")

    def _hashed(self, values: Collection[str]) -> int:
        """The positions of values without a code whose hash is that of one of `values`."""
        others = self._others()
        if not others:
            return 0
        found = 0
        for value in values:
            first, second = hashlib.sha1(value.encode(), usedforsecurity=False).digest()[:2]
            found |= _equal(self._firsts, first) & _equal(self._seconds, second)
        return found & others


def parse_codes(codes: bytes) -> Mapping[int, str]:
    """The value of each code. The form is that of columns.lua."""
    return dict(_codes(codes))


def _codes(codes: bytes) -> Iterator[tuple[int, str]]:
    at = 0
    while at < len(codes):
        end = codes.index(_END, at + 1)
        yield codes[end + 1], codes[at + 1 : end].decode(errors="replace")
        at = end + 2


def every(size: int) -> int:
    """All positions."""
    return int.from_bytes(b"\1" * size, "little")


def positions(found: int, size: int) -> list[int]:
    """The positions of a set, in their order."""
    cells = found.to_bytes(size, "little")
    listed, at = [], cells.find(1)
    while at >= 0:
        listed.append(at)
        at = cells.find(1, at + 1)
    return listed


def _equal(cells: bytes, byte: int) -> int:
    table = bytearray(256)
    table[byte] = 1
    return int.from_bytes(cells.translate(table), "little")
