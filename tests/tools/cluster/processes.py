"""Starts and ends the programs of the cluster, inside its network namespace, each with a log and a record.

Used by every part of the cluster. The record holds the process id *and* the time the kernel started it: an id alone
may belong to somebody else by the time the cluster is stopped. `nsenter --net` and not `ip netns exec`, which mounts
/sys anew and so hides the control groups from containerd and the kubelet.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import place
from place import ClusterError

STOP_TIMEOUT = 15.0
"""etcd and the API server end within a second; the kubelet finishes the call it is in."""
POLL = 0.1


def start(name: str, argv: Sequence[str | Path], env: Mapping[str, str] | None = None) -> None:
    """Starts a program as a session of its own, so that Ctrl-C at the terminal of `make` does not reach it."""
    if alive(name):
        return
    place.LOG.mkdir(parents=True, exist_ok=True)
    with (place.LOG / f"{name}.log").open("ab") as log:
        child = subprocess.Popen(
            ["nsenter", f"--net=/run/netns/{place.NETNS}", "--", *map(str, argv)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            cwd=place.RUN,
            env={**os.environ, **(env or {})},
        )
    _record(name).write_text(json.dumps({"pid": child.pid, "born": _born(child.pid)}))


def alive(name: str) -> bool:
    return _pid(name) is not None


def stop(name: str) -> None:
    """SIGTERM, and SIGKILL when the deadline passes. Nothing to do is fine."""
    pid = _pid(name)
    if pid is not None:
        os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + STOP_TIMEOUT
        while _pid(name) is not None and time.monotonic() < deadline:
            time.sleep(POLL)
        if _pid(name) is not None:
            os.kill(pid, signal.SIGKILL)
    _record(name).unlink(missing_ok=True)


def until(what: str, ready: Callable[[], bool], timeout: float, *needs: str) -> None:
    """Waits for a condition, and gives up at once when a program it needs has ended."""
    deadline = time.monotonic() + timeout
    while not ready():
        for name in needs:
            if not alive(name):
                raise ClusterError(f"{name} ended: {tail(name)}", f"read {place.LOG / name}.log")
        if time.monotonic() > deadline:
            logs = "".join(f"\n{name}: {tail(name)}" for name in needs)
            raise ClusterError(f"{what} took longer than {timeout:.0f} s{logs}", f"read the logs in {place.LOG}")
        time.sleep(POLL)


def tail(name: str) -> str:
    """The last words of a program."""
    try:
        return "\n".join((place.LOG / f"{name}.log").read_text(errors="replace").splitlines()[-8:])
    except FileNotFoundError:
        return "(no log)"


def _record(name: str) -> Path:
    return place.RUN / f"{name}.process"


def _pid(name: str) -> int | None:
    try:
        record = json.loads(_record(name).read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return None
    pid = int(record["pid"])
    return pid if record["born"] is not None and _born(pid) == record["born"] else None


def _born(pid: int) -> int | None:
    """Clock ticks from the machine's boot to the start of the process; None when it is gone or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in "ZX" else int(fields[19])
