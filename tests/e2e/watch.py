"""Every change of objects of one kind, in the order in which the API server made them, read from a kubectl watch.

Used where a chapter checks that something never happened: polling misses what is shorter than a poll, above all on a
busy machine. One line is one change; its words are selected by the given paths.
"""

from __future__ import annotations

import os
import subprocess
import threading
import time
from dataclasses import dataclass
from types import TracebackType

from e2e.release import Release


@dataclass(frozen=True, slots=True)
class Change:
    at: float
    """Of the monotonic clock."""
    kind: str
    """ADDED, MODIFIED or DELETED; what was there at the beginning is ADDED."""
    words: tuple[str, ...]


class Watch:
    def __init__(self, release: Release, *what: str, paths: tuple[str, ...]) -> None:
        self._seen: list[Change] = []
        picked = "|".join(f"{{.object.{path}}}" for path in ("metadata.name", *paths))
        argv, environment = release.kube.command(
            "kubectl", "--namespace", release.namespace, "get", *what, "--watch", "--output-watch-events",
            f"--output=jsonpath={{.type}}|{picked}{{'\\n'}}",
        )  # fmt: skip
        self._process = subprocess.Popen(
            argv, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        assert self._process.stdout is not None
        self._stream = self._process.stdout
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def __enter__(self) -> Watch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        self._process.wait(15)
        self._thread.join(15)
        self._stream.close()

    @property
    def changes(self) -> list[Change]:
        assert self._process.poll() is None, f"the watch has ended: {self._seen[-3:]}"
        return list(self._seen)

    def _read(self) -> None:
        for line in self._stream:
            kind, *words = line.decode().rstrip(os.linesep).split("|")
            self._seen.append(Change(time.monotonic(), kind, tuple(words)))
