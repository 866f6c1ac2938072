"""The benchmark's own programs in C, compiled on demand under .cache/bench: the floor and the load generators.

Called by `installation`, and by the benchmarks whose clients these are. Nothing is downloaded.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path

BENCH = Path(__file__).resolve().parent.parent
ROOT = BENCH.parent.parent
CACHE = ROOT / ".cache" / "bench"
SOURCES = {
    "floor": BENCH / "peers" / "floor.c",
    "round_clients": BENCH / "links" / "round_clients.c",
    "handshake_clients": BENCH / "tls" / "handshake_clients.c",
}
HEADERS = (BENCH / "clients.h", BENCH / "peers" / "accept_key.h")
OPENSSL = ("handshake_clients",)
TIMEOUT = 120.0
"""Seconds for compiling one of them."""


def lacking(name: str) -> str | None:
    """What this machine needs before it can compile the program; None if it has all of it."""
    headers = ("stdio.h", "openssl/ssl.h") if name in OPENSSL else ("stdio.h",)
    text = "".join(f"#include <{header}>\n" for header in headers)
    compiler = _compiler()
    if shutil.which(compiler[0]) is not None:
        command = [*compiler, "-E", "-x", "c", "-o", os.devnull, "-"]
        done = subprocess.run(command, input=text.encode(), capture_output=True, timeout=TIMEOUT, check=False)
        if done.returncode == 0:
            return None
    packages = "gcc libc6-dev libssl-dev" if name in OPENSSL else "gcc libc6-dev"
    return f"{name} needs a C compiler and headers; on Debian and Ubuntu: apt-get install {packages}"


def built(name: str) -> Path:
    """The executable, compiled anew when its source has changed. Raises SystemExit if it cannot be compiled."""
    source, program = SOURCES[name], CACHE / f"program-{name}"
    if is_newer(program, (source, *HEADERS)):
        return program
    if (needed := lacking(name)) is not None:
        raise SystemExit(needed)
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as folder:  # several processes may compile it at once
        made = Path(folder) / name
        libraries = ("-lssl", "-lcrypto") if name in OPENSSL else ()
        command = [*_compiler(), "-O2", "-o", str(made), str(source), *libraries]
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False)
        if done.returncode:
            raise SystemExit(f"{name} cannot be compiled:\n{done.stderr}")
        made.replace(program)
    return program


def is_newer(program: Path, sources: Iterable[Path]) -> bool:
    """Whether a program is there that was made after the last change of its sources."""
    return program.exists() and program.stat().st_mtime > max(source.stat().st_mtime for source in sources)


def _compiler() -> list[str]:
    return shlex.split(os.environ.get("CC", "cc"))
