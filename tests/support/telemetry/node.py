"""One node as a process, with its metrics."""

from __future__ import annotations

from typing import Protocol

from support.gateway_process import ServeProcess
from support.plain_http import plain_get


class Node(ServeProcess):
    """A node, and what it reports of itself."""

    def metrics(self, accept: str = "") -> str:
        return plain_get(f"{self.admin}/metrics", headers={"accept": accept} if accept else {}).text

    def metric(self, line: str) -> float:
        """The value of a sample by all that stands before it; 0 when there is none."""
        found = [one for one in self.metrics().splitlines() if one.startswith(f"{line} ")]
        return float(found[0].rpartition(" ")[2]) if found else 0.0


class MakeNode(Protocol):
    def __call__(self, name: str, *flags: str) -> Node: ...
