"""One node as a process, with its metrics."""

from __future__ import annotations

from typing import Protocol

import httpx2

from support.gateway_process import ServeProcess


class Node(ServeProcess):
    """A node, and what it reports of itself."""

    def metrics(self, accept: str = "") -> str:
        return httpx2.get(f"{self.admin}/metrics", headers={"accept": accept} if accept else {}, trust_env=False).text

    def metric(self, line: str) -> float:
        """The value of a sample by all that stands before it; 0 when there is none."""
        found = [one for one in self.metrics().splitlines() if one.startswith(f"{line} ")]
        return float(found[0].rpartition(" ")[2]) if found else 0.0


class MakeNode(Protocol):
    def __call__(self, name: str, *flags: str) -> Node: ...
