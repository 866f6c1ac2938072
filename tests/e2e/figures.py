"""The measurements of the story and the observations of the cluster, collected and printed at its end.

The chapters fill it, and it is printed when all of them have passed; docs/kubernetes.md shows one such report. It
measures nothing itself except sizes and memory, which the node and the kernel know.
"""

from __future__ import annotations

from pathlib import Path

from e2e.release import Release
from support.kube import RUN

STARTED = RUN / "seconds-to-start"
"""Written by `make cluster`."""


class StoryFigures:
    def __init__(self) -> None:
        self._numbers: list[tuple[str, str]] = []
        self._texts: list[tuple[str, str]] = []

    def number(self, name: str, value: str) -> None:
        self._numbers.append((name, value))

    def text(self, title: str, body: str) -> None:
        """Something that is several lines long."""
        self._texts.append((title, body))

    def cluster(self, release: Release) -> None:
        """How long it took to start, where it was started here, and how large the images on its node are."""
        if STARTED.exists():
            self.number("make cluster", f"{STARTED.read_text()} s")
        for image in release.get("node")["items"][0]["status"]["images"]:
            for known in image["names"] or ():
                if "/fairlead/" in known and "pause" not in known:
                    self.number(f"image {known.rpartition('/')[2]}", f"{image['sizeBytes'] / 1e6:.0f} MB, uncompressed")

    def memory(self, release: Release, component: str, when: str) -> None:
        """Of the processes of each such pod, as the kernel counts it."""
        each = [sum(_resident(process) for process in release.processes(pod)) / 1024 for pod in release.pods(component)]
        self.number(f"memory of a pod of the {component}, {when}", f"{min(each):.0f} to {max(each):.0f} MiB RSS")

    def __str__(self) -> str:
        width = max(len(name) for name, _ in self._numbers)
        numbers = [f"{name:{width}}  {value}" for name, value in self._numbers]
        texts = [f"--- {title}\n{body.rstrip()}" for title, body in self._texts]
        return "\n".join(["=== what the story showed", *texts, "--- figures", *numbers])


def _resident(process: int) -> int:
    """KiB; nothing of one that has just ended."""
    try:
        status = Path(f"/proc/{process}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return sum(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS:"))
