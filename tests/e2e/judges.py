"""Checks of what was recorded: the order in which pods were removed, and the pace of a drain.

Used by the story, with the changes that a watch has seen and the links that the Ingress has logged. Pure: the order is
that of the API server, the times are Traefik's, so that a slow machine changes neither.
"""

from __future__ import annotations

from e2e.evidence import IngressLink
from e2e.release import RATE
from e2e.watch import Change


def judge_removals(changes: list[Change]) -> list[str]:
    """The pods that were ended, in that order: each was the one that cost the least, and went alone."""
    costs: dict[str, int] = {}
    leaving: set[str] = set()
    going = []
    for change in changes:
        pod, deleted, cost = change.words
        if change.kind == "DELETED":
            costs.pop(pod, None)
            leaving.discard(pod)
            continue
        costs[pod] = int(cost or 0)
        if deleted and pod not in leaving:
            leaving.add(pod)
            going.append(pod)
            others = [value for one, value in costs.items() if one not in leaving]
            assert costs[pod] < min(others), f"{pod} went: {costs}"
            assert len(leaving) == 1, f"{leaving} go at once"
    return going


def assert_paced(ended: list[IngressLink]) -> None:
    """A stalled machine pushes ends together, so the pace is that of all of a pod's links and three seconds more."""
    for backend in {link.backend for link in ended}:
        times = sorted(link.ended for link in ended if link.backend == backend)
        took = (times[-1] - times[0]).total_seconds()
        assert len(times) <= 1.5 * RATE * (took + 3), f"{backend} closed {len(times)} links in {took:.1f} s"
