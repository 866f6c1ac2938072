"""Who uses the processors of this machine while the trial is played. Linux only; used by `run`.

A thread looks at /proc every few seconds and adds up what each kind of program has used since. What a process used
between the last look and its end is counted as that of other programs.
"""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path

PERIOD = 4.0
TICKS = os.sysconf("SC_CLK_TCK")
CORES = os.cpu_count() or 1
TRIAL = "the trial"
KINDS = (
    ("callers", ("trial.traffic",)),
    ("agents", ("trial.agents",)),
    ("", ("kubectl ", "helm ")),
    (TRIAL, ("trial.run",)),
    ("gateways", ("/opt/fairlead/bin/python -I -u -m fairlead serve", "plain_server:app")),
    ("operator", ("/opt/fairlead/bin/python -I -u -m fairlead_operator",)),
    ("Valkey", ("/usr/local/bin/valkey-server",)),
    ("Ingress", ("traefik",)),
    ("Kubernetes", ("etcd", "kube-", "kubelet", "containerd", "runc", "coredns")),
)
"""What the command line of a program contains; the first that fits counts. What kubectl uses is added to its parent's
account when it has ended."""
OTHERS = "other programs"


@dataclass(frozen=True, slots=True)
class CpuUsage:
    """Processor seconds until `at` since the last one."""

    at: float
    seconds: float
    busy: float
    by_kind: dict[str, float]


def shares(usages: list[CpuUsage], since: float, until: float) -> dict[str, float]:
    """What each kind used of all cores together between two times, 1 for all of them; `idle` is what nobody used."""
    mine = [usage for usage in usages if since <= usage.at < until]
    whole = sum(usage.seconds for usage in mine) * CORES
    if not whole:
        return {}
    kinds = {kind for usage in mine for kind in usage.by_kind}
    used = {kind: sum(usage.by_kind.get(kind, 0.0) for usage in mine) / whole for kind in kinds}
    found = dict(sorted(used.items(), key=lambda item: -item[1]))
    return {**found, "idle": max(0.0, 1 - sum(usage.busy for usage in mine) / whole)}


class CpuWatch:
    """`start` and `stop` are called once each."""

    def __init__(self) -> None:
        self.usages: list[CpuUsage] = []
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(30)

    def _run(self) -> None:
        before, busy, at = _processes(), _busy(), time.time()
        while not self._stopping.wait(PERIOD):
            after, now_busy, now = _processes(), _busy(), time.time()
            used: dict[str, float] = {OTHERS: 0.0}
            for pid, (kind, ticks) in after.items():
                used[kind] = used.get(kind, 0.0) + max(0, ticks - before.get(pid, ("", 0))[1]) / TICKS
            rest = (now_busy - busy) / TICKS - sum(used.values())
            used[OTHERS] += max(0.0, rest)
            self.usages.append(CpuUsage(now, now - at, (now_busy - busy) / TICKS, used))
            before, busy, at = after, now_busy, now


def _processes() -> dict[int, tuple[str, int]]:
    """Kind and ticks of each process."""
    found = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
                kind = _kind((folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
            except (FileNotFoundError, ProcessLookupError):
                continue
            if kind:
                last = 15 if kind == TRIAL else 13
                found[int(folder.name)] = kind, sum(map(int, fields[11:last]))
    return found


def _kind(command: str) -> str:
    for kind, words in KINDS:
        if any(word in command for word in words):
            return kind
    return OTHERS


def _busy() -> int:
    """Ticks of all cores that were not idle."""
    fields = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
    return sum(fields[:3]) + sum(fields[5:8])
