"""The benchmark's own programs in C, compiled on demand under .cache/bench: the floor and the load generators.

Called by `installation`, and by the benchmarks whose clients these are. Nothing is downloaded.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path

from bench.output import print_progress

BENCH = Path(__file__).resolve().parent.parent
ROOT = BENCH.parent.parent
CACHE = ROOT / ".cache" / "bench"
SOURCES = {
    "floor": BENCH / "peers" / "floor.c",
    "round_clients": BENCH / "links" / "round_clients.c",
    "handshake_clients": BENCH / "tls" / "handshake_clients.c",
}
HEADERS = (BENCH / "clients.h", BENCH / "peers" / "accept_key.h")
LIBRARIES = {"handshake_clients": ("-lssl", "-lcrypto")}
TIMEOUT = 120.0


def built(name: str) -> Path | None:
    """The executable, compiled anew when its source has changed; None, with a message, where it cannot be compiled."""
    source, program = SOURCES[name], CACHE / f"program-{name}"
    if is_newer(program, (source, *HEADERS)):
        return program
    if (compiler := shutil.which(os.environ.get("CC", "cc"))) is None:
        print_progress(f"!! no C compiler here for {name}: install gcc and libc6-dev")
        return None
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as folder:  # several programs may compile it at once
        made = Path(folder) / name
        command = [compiler, "-O2", "-o", str(made), str(source), *LIBRARIES.get(name, ())]
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False)
        if done.returncode:
            print_progress(f"!! {name} cannot be compiled: {done.stderr[-300:]}")
            return None
        made.replace(program)
    return program


def load_generator(name: str) -> Path:
    """Raises SystemExit if it cannot be compiled."""
    if (program := built(name)) is None:
        needed = "gcc, libc6-dev and libssl-dev" if name in LIBRARIES else "gcc and libc6-dev"
        raise SystemExit(f"the clients of this benchmark cannot be compiled: install {needed}")
    return program


def is_newer(program: Path, sources: Iterable[Path]) -> bool:
    """Whether a program is there that was made after the last change of its sources."""
    return program.exists() and program.stat().st_mtime > max(source.stat().st_mtime for source in sources)
