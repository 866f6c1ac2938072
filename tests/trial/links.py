"""Every link of the trial as the Ingress has logged it: which agent, which pod, from when to when. Pure.

Read by `report` when all agents have gone, because the Ingress logs a connection at its end. It knows nothing of the
gateway, and judges both fleets by the same rules: closes in a second, moves of an agent, time without a link, spread.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class RecordedLink:
    """One upgraded connection. Times are seconds since the epoch."""

    agent: str
    backend: str
    """Address of the pod."""
    began: float
    ended: float


def read_links(lines: Iterable[str], host: str, since: float) -> list[RecordedLink]:
    """Those of one host, in the order of their beginnings. The agent's name is the end of the request's path or query:
    `…/NAME` or `…=NAME`."""
    found = []
    for line in lines:
        if not line.endswith("\n"):
            continue  # half written
        entry = json.loads(line)
        # Only a 101 has this header; Traefik shows no status of a connection that it handed over.
        if entry.get("RequestHost") != host or not entry.get("downstream_Sec-Websocket-Accept"):
            continue
        began = datetime.fromisoformat(entry["StartUTC"][:26].rstrip("Z") + "+00:00").timestamp()
        if began < since:
            continue
        agent = entry["RequestPath"].replace("=", "/").rpartition("/")[2]
        found.append(
            RecordedLink(agent, entry["ServiceAddr"].rpartition(":")[0], began, began + entry["Duration"] / 1e9)
        )
    return sorted(found, key=lambda link: link.began)


def most_within(seconds: float, moments: Iterable[float], since: float, until: float) -> int:
    """The most of these moments within any time of so many seconds."""
    within = sorted(moment for moment in moments if since <= moment < until)
    most = first = 0
    for last, moment in enumerate(within):
        while moment - within[first] > seconds:
            first += 1
        most = max(most, last - first + 1)
    return most


def seconds_above(most: int, moments: Iterable[float], since: float, until: float) -> int:
    """Seconds of the clock in which there were more of these moments than `most`."""
    counts = Counter(int(moment) for moment in moments if since <= moment < until)
    return sum(count > most for count in counts.values())


def moves(links: Sequence[RecordedLink], since: float, until: float) -> Counter[str]:
    """How many links of each agent ended."""
    return Counter(link.agent for link in links if since <= link.ended < until)


def longest_without(links: Sequence[RecordedLink], since: float, until: float) -> float:
    """Seconds: the longest time in which an agent had no link at all, of times that began in the given one. Links must
    be in the order of their beginnings. An agent that never came back has none after its last."""
    covered: dict[str, float] = {}
    longest = 0.0
    for link in links:
        before = covered.get(link.agent)
        if before is not None and since <= before < until:
            longest = max(longest, link.began - before)
        covered[link.agent] = max(link.ended, before or 0.0)
    return longest


def spread(links: Sequence[RecordedLink], pods: Sequence[str], at: float) -> dict[str, int]:
    """The links that each of the pods had at a moment; pods are named by their addresses."""
    counts = Counter(link.backend for link in links if link.began <= at < link.ended)
    return {pod: counts[pod] for pod in pods}


def skew(counts: dict[str, int]) -> float:
    """The fullest pod, as a multiple of the mean. 1 without links."""
    total = sum(counts.values())
    return max(counts.values()) * len(counts) / total if total else 1.0
