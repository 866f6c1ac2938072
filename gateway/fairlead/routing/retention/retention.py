"""How long, and how much of, the results of a command are kept after its end: by its method, so that memory holds what
is still read.

`dispatch` and the runs ask it for each new command. It is pure.
"""

from __future__ import annotations

from collections.abc import Mapping


class Retention:
    def __init__(
        self, default: float, by_method: Mapping[str, float] | None = None, limits: Mapping[str, int] | None = None
    ) -> None:
        """In seconds and in bytes."""
        self.default_ms = int(default * 1000)
        self._by_method = {method: int(seconds * 1000) for method, seconds in (by_method or {}).items()}
        self._limits = dict(limits or {})

    @classmethod
    def parse(cls, default: float, by_method: str, limits: str = "") -> Retention:
        """`by_method` is `method=seconds` and `limits` is `method=bytes`, separated by commas, as the settings have
        been checked to be. The method `*` is any other."""
        return cls(default, _entries(by_method), _entries(limits))

    def of(self, method: str) -> int:
        """In ms."""
        return self._by_method.get(method, self.default_ms)

    def results_limit(self, method: str) -> int | None:
        """The bytes of results above which those of a command are dropped soon after its end; None for no limit."""
        return self._limits.get(method, self._limits.get("*"))


def _entries(given: str) -> dict[str, int]:
    entries = (entry.strip().partition("=") for entry in given.split(",") if entry.strip())
    return {name: int(value) for name, _, value in entries}
