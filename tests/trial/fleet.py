"""What both fleets of the trial have: pods, chapters, and the wait until all has settled again.

`fairlead_fleet` and `plain_fleet` say how each is installed and what happens to it in each chapter; `run` plays them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from e2e.release import is_ready
from support.kube import Kube, KubeError

SETTLED_SECONDS = 11.0
"""Seconds for which nothing must change: longer than a pass of the operator."""
LOOK = 2.0
"""Seconds between two looks: each costs some tenths of a second of a core."""
SETTLE_TIMEOUT = 300.0
EVICTION = {"apiVersion": "policy/v1", "kind": "Eviction"}
VALKEY = Path(__file__).parent / "valkey.yaml"
"""A Valkey of its own, for a fleet that brings none. VERSION is that of the images."""
GROWTH = "scale 1→4"
"""The chapter that all later ones need: they have four pods."""


@dataclass(frozen=True, slots=True)
class Chapter:
    """A fault, or a wish of an administrator, and what it is called in the table."""

    name: str
    play: Callable[[], str]
    """Makes it happen, waits until all has settled, and returns what the reader of the table should know."""


class Fleet(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def host(self) -> str:
        """At the Ingress."""

    @property
    def budget(self) -> int:
        """Moves in a second, at most; 0 for none."""

    @property
    def url(self) -> str:
        """For the callers of an installed fleet."""

    def install(self) -> None:
        """The first pod is ready when this returns, and no agent is there yet."""

    def agent_environment(self) -> dict[str, str]: ...
    def caller_environment(self) -> dict[str, str]: ...
    def chapters(self) -> list[Chapter]: ...
    def links(self) -> int:
        """That the fleet itself counts."""

    def pods(self) -> list[dict[str, Any]]:
        """All that have not ended."""

    def quiet(self) -> bool:
        """Whether nothing is under way."""

    def restore(self) -> str:
        """After a chapter that failed: take its fault back and wait until all has settled. Returns what came of it."""

    def end(self) -> None: ...


def wait_until_settled(fleet: Fleet, agents: int, pods: int, timeout: float = SETTLE_TIMEOUT) -> str:
    """Wait until so many pods are ready and no other is there, all agents have links, and nothing is under way, for
    some seconds. Says how long it took; a fleet that does not get there is a result as well."""
    began = time.monotonic()
    since = None
    seen = ""
    while (now := time.monotonic()) - began < timeout:
        try:
            all_of_them = fleet.pods()
            ready, links, quiet = sum(map(is_ready, all_of_them)), fleet.links(), fleet.quiet()
            seen = f"{ready} of {len(all_of_them)} pods ready, {links} links" + ("" if quiet else ", not quiet")
            good = ready == len(all_of_them) == pods and links == agents and quiet
        except (KubeError, KeyError, OSError, ValueError) as e:
            good, seen = False, str(e)
        since = (since or now) if good else None
        if since is not None and now - since >= SETTLED_SECONDS:
            return f"settled after {since - began:.0f} s"
        time.sleep(LOOK)
    return f"not settled within {timeout:.0f} s: {seen}"


def evict(kube: Kube, namespace: str, pods: list[str], timeout: float = 240.0) -> int:
    """As `kubectl drain` does: ask for the eviction of all, and again every five seconds for those that a budget for
    disruptions protects. Returns how often it was refused."""
    refused = 0
    left = list(pods)
    deadline = time.monotonic() + timeout
    while left:
        for pod in list(left):
            body = {**EVICTION, "metadata": {"name": pod, "namespace": namespace}}
            path = f"/api/v1/namespaces/{namespace}/pods/{pod}/eviction"
            try:
                kube.kubectl("create", "--raw", path, "-f", "-", stdin=json.dumps(body))
                left.remove(pod)
            except KubeError as e:
                if "disruption budget" not in str(e):
                    raise
                refused += 1
        if left:
            if time.monotonic() > deadline:
                raise AssertionError(f"{left}: not evicted within {timeout:.0f} s")
            time.sleep(5)
    return refused


def gone(fleet: Fleet, pods: list[str], timeout: float = 300.0) -> None:
    deadline = time.monotonic() + timeout
    while left := set(pods) & {pod["metadata"]["name"] for pod in fleet.pods()}:
        if time.monotonic() > deadline:
            raise AssertionError(f"{sorted(left)}: not gone within {timeout:.0f} s")
        time.sleep(LOOK)
