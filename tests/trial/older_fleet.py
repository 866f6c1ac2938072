"""An upgrade and its return on the real cluster: a release of an older commit, with its own chart, images and operator,
becomes the present one, and goes back.

`run --older COMMIT` plays it in place of Fairlead's other chapters. The older images are built from git's history, and
the Valkey is no part of the release, because the chart's own has no volume here and would lose its data with its pod.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from fairlead.version import __version__

from e2e.release import CHART, name
from support.interop.older_version import short_name, unpack
from support.kube import ROOT, Kube
from trial.fairlead_fleet import FairleadFleet, values
from trial.fleet import GROWTH, VALKEY, Chapter, gone

BUILD_TIMEOUT = 1800.0
TARGETS = ("gateway", "operator")
REPLACED_TIMEOUT = 600.0
"""Seconds for a canary and for the rollout after it."""


class OlderImages:
    """The chart and the images of a commit. Raises HistoryMissing when there is no such commit."""

    def __init__(self, commit: str, folder: Path) -> None:
        self.commit = short_name(commit)
        source = folder / "older"
        source.mkdir()
        unpack(source, commit)
        self.chart = source / CHART.relative_to(ROOT)
        image = [sys.executable, "-I", str(ROOT / "tests" / "tools" / "cluster"), "image"]
        asked = [*image, "--source", str(source), "--tag", self.commit, *TARGETS]
        subprocess.run(asked, stdin=subprocess.DEVNULL, stdout=sys.stderr, timeout=BUILD_TIMEOUT, check=True)


class OlderFleet(FairleadFleet):
    def __init__(self, kube: Kube, folder: Path, agents: int, older: OlderImages) -> None:
        usual = values(agents)
        shared = usual["gateways"]["default"].pop("requireIdentity")
        super().__init__(kube, folder, agents, {**usual, "redis": {"url": "redis://valkey:6379"}})
        self._shared = f"gateways.default.requireIdentity={str(shared).lower()}"
        self._older = older
        self.name = f"Fairlead, from {older.commit} to the present and back"

    def _apply_chart(self) -> None:
        release = self._release
        release.kubectl("apply", "-f", "-", stdin=VALKEY.read_text().replace("VERSION", __version__))
        release.kubectl("rollout", "status", "deployment/valkey", "--timeout=180s", timeout=200)
        crds = str(self._older.chart / "crds")
        self._kube.kubectl("apply", "--server-side", "--force-conflicts", "--field-manager=helm", "-f", crds)
        known = "requireIdentity" in (self._older.chart / "values.schema.json").read_text()
        release.install(self._older.chart, f"images.tag={self._older.commit}", *([self._shared] if known else []))
        self._assert_tag(self._older.commit)

    def chapters(self) -> list[Chapter]:
        return [
            Chapter("nothing happens", self._nothing),
            Chapter(GROWTH, self._grow),
            Chapter("upgrade", self._upgrade),
            Chapter("rollback", self._roll_back),
        ]

    def _upgrade(self) -> str:
        return self._replaced(lambda: self._release.upgrade(self._shared), __version__)

    def _roll_back(self) -> str:
        return self._replaced(self._release.rollback, self._older.commit)

    def _replaced(self, change: Callable[[], None], tag: str) -> str:
        """What `change` asks for replaces the operators and all pods, which run images of `tag` then."""
        old = self._names()
        change()
        gone(self, old, REPLACED_TIMEOUT)
        self._assert_tag(tag)
        return f"{self._verdict('True')}; {self._wait_until_settled(4)}"

    def _assert_tag(self, tag: str) -> None:
        """Of all gateways and operators."""
        for component in TARGETS:
            for pod in self._release.pods(component):
                image = pod["spec"]["containers"][0]["image"]
                assert image.endswith(f":{tag}"), f"{name(pod)} runs {image}: expected the tag {tag}"
