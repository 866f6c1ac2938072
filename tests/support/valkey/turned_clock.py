"""A Valkey whose wall clock a test turns while it runs. The clock of the fleet is that of its Redis, so an hour passes
for commands, runs and records in a moment.

A library that is preloaded into the server adds seconds to what the system says. It is compiled with the C compiler of
the machine.
"""

from __future__ import annotations

import mmap
import os
import shutil
import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path

from support.valkey.server import ValkeyServer

SOURCE = Path(__file__).with_name("turned_clock.c")
_SHIFT = struct.Struct("=q")


def compiler() -> str | None:
    """The C compiler of this machine, if it has one."""
    return shutil.which(os.environ.get("CC", "cc"))


class TurnedClockServer(ValkeyServer):
    def __init__(self, folder: Path, options: Sequence[str] = ()) -> None:
        super().__init__(folder, options)
        self._shift = folder / "shift"
        self._shift.write_bytes(_SHIFT.pack(0))
        self._library = folder / "turned_clock.so"
        command = [
            compiler() or "cc",
            "-O1",
            "-Wall",
            "-shared",
            "-fPIC",
            "-o",
            str(self._library),
            str(SOURCE),
            "-ldl",
        ]
        subprocess.run(command, check=True, capture_output=True, timeout=60)

    def command(self) -> list[str]:
        return ["env", f"LD_PRELOAD={self._library}", f"TURNED_CLOCK={self._shift}", *super().command()]

    def turn(self, seconds: int) -> None:
        """Put the clock so many seconds ahead of the system's."""
        with self._shift.open("r+b") as file, mmap.mmap(file.fileno(), _SHIFT.size) as shift:
            _SHIFT.pack_into(shift, 0, seconds)
