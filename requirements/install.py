"""Builds the environments of this repository from the hashed requirements beside this file, with uv.

Usage: `python3 -I requirements/install.py LEVEL`, as the Makefile calls it:

- `run`   .venv with what the gateway and the command line need, so that `make run` waits for nothing else
- `dev`   .venv with what the tests and the linters need as well
- `docs`  .cache/docs with what builds the documentation
- `uv`    only uv itself, in .cache/uv

Needs Python 3.11 and pip, or the pip that comes with Python's venv module. uv comes from the package index as a wheel,
whose hash is checked like any other. Each level has a stamp, a file that is written last. An installation that failed
or was interrupted has no stamp, so the next call repeats it.
"""

from __future__ import annotations

import configparser
import contextlib
import fcntl
import importlib.util
import os
import re
import subprocess
import sys
import sysconfig
import tempfile
import time
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
CACHE = ROOT / ".cache"
UV = CACHE / "uv" / "uv"

PIP_TO_UV = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "cert": "SSL_CERT_FILE",
}
"""pip's options that say where packages come from, and uv's variables for the same. uv reads none of pip's settings,
and a machine that is configured for pip should need no second configuration."""


@dataclass(frozen=True)
class Level:
    """One environment: what it contains, and the stamp that marks it as complete."""

    folder: Path
    stamp: Path
    files: tuple[str, ...]
    editable: bool
    """Whether Fairlead itself is installed, from its source."""

    def is_current(self) -> bool:
        inputs = [HERE / name for name in self.files]
        if self.editable:
            inputs.append(ROOT / "pyproject.toml")
        return is_newer(self.stamp, *inputs)


def is_newer(made: Path, *inputs: Path) -> bool:
    """Whether `made` exists and is newer than all inputs, as make decides it."""
    return made.exists() and made.stat().st_mtime_ns >= max(path.stat().st_mtime_ns for path in inputs)


VENV = ROOT / ".venv"
DOCS = CACHE / "docs"
LEVELS = {
    "run": Level(VENV, VENV / ".installed-run", ("gateway.txt", "build.txt"), editable=True),
    "dev": Level(VENV, VENV / ".installed", ("dev.txt",), editable=True),
    "docs": Level(DOCS, DOCS / ".installed", ("docs.txt",), editable=False),
}


def main(name: str) -> None:
    began = time.monotonic()
    with one_at_a_time(), contextlib.ExitStack() as meanwhile:
        env = environment()
        if name in ("run", "dev") and not UV.exists():
            meanwhile.enter_context(compiling_source())
        ensure_uv(env)
        if name == "uv" or LEVELS[name].is_current():
            return
        level = LEVELS[name]
        run = LEVELS["run"]
        if name == "dev" and run.is_current():
            # dev.txt has all pins of gateway.txt, so installed packages stay unchanged, and a demo that uses them keeps
            # running.
            run.stamp.unlink()
            install(level, env)
        else:
            create(level, env)
            install(level, env)
            if level.editable:
                install_fairlead(env)
        level.stamp.touch()
    print_progress(f"environment: ready after {time.monotonic() - began:.1f} s")


@contextlib.contextmanager
def one_at_a_time() -> Iterator[None]:
    """Hold a lock, so that of two calls of make in one clone the second one waits for the first and builds nothing
    again.
    """
    CACHE.mkdir(exist_ok=True)
    with (CACHE / "install.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def compiling_source() -> Iterator[None]:
    """Compile Fairlead to bytecode in the background: pip uses only one processor, and `make run` starts six processes.

    Bytecode is only a cache: Python compiles what is missing, so a failure is no error.
    """
    print_progress("fairlead: compiling its source")
    command = [sys.executable, "-I", "-m", "compileall", "-q", str(ROOT / "gateway" / "fairlead")]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL):
        yield


def ensure_uv(env: dict[str, str]) -> None:
    """Get the version of uv that uv.txt pins. pip downloads it and checks the hash; only the program itself is kept."""
    wanted = HERE / "uv.txt"
    if is_newer(UV, wanted):
        return
    print_progress(f"uv: downloading {pins('uv.txt')[0]}")
    with tempfile.TemporaryDirectory(dir=CACHE) as folder:
        command = [*pip(), "download", "--quiet", "--disable-pip-version-check", "--retries", "1", "--no-deps"]
        command += ["--only-binary", ":all:", "--require-hashes", "-r", str(wanted), "-d", folder]
        # uv's wheels are for any Python: pip compares each of its 6,000 files with fewer tags.
        command += ["--implementation", "py", "--abi", "none"]
        if subprocess.run(command, check=False, env=env).returncode:
            fail("uv could not be downloaded", "make sure that pip reaches a package index, then run make again")
        [wheel] = Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            [member] = [one for one in archive.namelist() if one.endswith(".data/scripts/uv")]
            program = Path(archive.extract(member, folder))
        program.chmod(0o755)
        UV.parent.mkdir(exist_ok=True)
        program.replace(UV)


def pip() -> list[str]:
    """The command of pip: that of this Python, or the wheel that its venv module would install."""
    command = [sys.executable, "-I", "-m", "pip"]
    if importlib.util.find_spec("pip"):
        return command
    folders = [Path(sysconfig.get_config_var("WHEEL_PKG_DIR") or os.devnull)]
    if ensurepip := importlib.util.find_spec("ensurepip"):
        folders.append(Path(str(ensurepip.origin)).parent / "_bundled")
    wheels = [wheel for folder in folders for wheel in sorted(folder.glob("pip-*.whl"))]
    if not wheels:
        fail(
            f"{sys.executable} has neither pip nor a complete venv module",
            "Debian and Ubuntu: apt install python3-venv",
        )
    load = "sys.path.insert(0, sys.argv.pop(1))"
    start = "runpy.run_module('pip', run_name='__main__', alter_sys=True)"
    return [sys.executable, "-I", "-c", f"import runpy, sys; {load}; {start}", str(wheels[-1])]


def create(level: Level, env: dict[str, str]) -> None:
    print_progress(f"environment: creating {level.folder.relative_to(ROOT)} with Python {sys.version.split()[0]}")
    command = [str(UV), "venv", "--quiet", "--clear", "--python", sys.executable, str(level.folder)]
    if subprocess.run(command, check=False, env=env).returncode:
        fail(f"{level.folder} could not be created", "see the messages above")


def install(level: Level, env: dict[str, str]) -> None:
    count = len({pin for name in level.files for pin in pins(name)})
    print_progress(
        f"environment: installing {' and '.join(f'requirements/{name}' for name in level.files)} ({count} packages)"
    )
    command = [*uv_pip_install(level), "--require-hashes"]
    for name in level.files:
        command += ["-r", str(HERE / name)]
    # Packages in uv's cache need no network. The hashes guarantee that they are the same.
    if subprocess.run([*command, "--offline"], check=False, env=env, stderr=subprocess.DEVNULL).returncode == 0:
        return
    if subprocess.run(command, check=False, env=env).returncode:
        fail(
            "the packages could not be installed",
            "see the messages above; uv needs a package index that it can reach, by default pip's: another one is "
            "named by UV_DEFAULT_INDEX=URL, and UV_SYSTEM_CERTS=1 trusts this machine's certificates",
        )


def install_fairlead(env: dict[str, str]) -> None:
    """Install Fairlead from its source, so that a change of the source needs no installation."""
    print_progress("environment: installing fairlead from its source")
    command = [*uv_pip_install(LEVELS["run"]), "--offline", "--no-deps", "--no-build-isolation"]
    command += ["--editable", str(ROOT)]
    if subprocess.run(command, check=False, env=env).returncode:
        fail("fairlead could not be installed", "see the messages above")


def uv_pip_install(level: Level) -> list[str]:
    return [str(UV), "pip", "install", "--quiet", "--python", str(level.folder / "bin" / "python")]


def pins(name: str) -> list[str]:
    """`package==version` of each requirement of one file, but for those of other platforms and Pythons."""
    return re.findall(r"(?m)^([a-z0-9][a-z0-9._-]*==[^ ]+) \\$", (HERE / name).read_text())


def environment() -> dict[str, str]:
    """This process's environment, with pip's settings for uv where uv has none of its own."""
    env = dict(os.environ)
    for option, value in pip_settings().items():
        separator = "," if option == "find-links" else " "
        env.setdefault(PIP_TO_UV[option], separator.join(value.split()))
    return env


def pip_settings() -> dict[str, str]:
    """The options of PIP_TO_UV that pip's configuration sets: a file replaces an earlier one, a variable all files."""
    home = Path.home()
    user = Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config")
    files = [
        *(Path(folder) / "pip" / "pip.conf" for folder in os.environ.get("XDG_CONFIG_DIRS", "/etc/xdg").split(":")),
        Path("/etc/pip.conf"),
        home / "Library" / "Application Support" / "pip" / "pip.conf",
        home / ".pip" / "pip.conf",
        user / "pip" / "pip.conf",
    ]
    if named := os.environ.get("PIP_CONFIG_FILE"):
        files = [] if named == os.devnull else [*files, Path(named)]
    parser = configparser.RawConfigParser()
    with contextlib.suppress(configparser.Error, OSError):  # pip itself complains of a file that it cannot read
        parser.read(files)
    found = {}
    for option in PIP_TO_UV:
        for section in ("global", "install"):
            if value := parser.get(section, option, fallback=""):
                found[option] = value
        if value := os.environ.get("PIP_" + option.upper().replace("-", "_")):
            found[option] = value
    return found


def print_progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def fail(what: str, todo: str) -> NoReturn:
    sys.exit(f"error: {what} ({todo})")


if __name__ == "__main__":
    try:
        main(sys.argv[1])
    except KeyboardInterrupt:
        sys.exit(130)
