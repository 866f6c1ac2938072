"""A node that says on SIGUSR1 what only its garbage collector would free, and how much that is.

    python -m support.gateway.garbage_reporter FILE python -m fairlead serve …

runs the command in this process (see `GatewayProcess.within`). Nothing is untracked, so that the collector can find
everything, and it runs for reports alone: each tells what has become garbage since the one before.
"""

from __future__ import annotations

import gc
import json
import os
import runpy
import signal
import sys
from collections import Counter
from pathlib import Path
from types import CoroutineType, FunctionType

from fairlead import garbage_collector

from support.gateway.process import GatewayProcess
from support.waiting import until


class GarbageReports:
    """Asks for the reports. `within` is for the `GatewayProcess`."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "garbage.json"
        self.within = (sys.executable, "-m", "support.gateway.garbage_reporter", str(self._file))

    async def next(self, gateway: GatewayProcess) -> dict[str, int]:
        """How many objects of each type only the collector has found."""
        self._file.unlink(missing_ok=True)
        gateway.signal(signal.SIGUSR1)
        await until(self._file.exists)
        found: dict[str, int] = json.loads(self._file.read_text())
        return found


def _report(file: Path) -> None:
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    gc.collect()
    kinds = Counter(_name(one) for one in gc.garbage)
    gc.set_debug(0)
    gc.garbage.clear()
    gc.collect()
    whole = file.with_suffix(".new")
    whole.write_text(json.dumps(kinds))
    os.rename(whole, file)


def _name(one: object) -> str:
    if isinstance(one, FunctionType | CoroutineType):
        return one.__qualname__
    return f"{type(one).__module__}.{type(one).__qualname__}"


def main() -> None:
    file = Path(sys.argv[1])
    garbage_collector.untrack = lambda _: None  # type: ignore[assignment]  # called in the same way
    signal.signal(signal.SIGUSR1, lambda *_: _report(file))
    at = sys.argv.index("-m", 2)
    sys.argv = [sys.argv[at + 1], *sys.argv[at + 2 :]]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
