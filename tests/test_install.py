"""The environments that `make` builds: they are complete, repaired after a failure, and say why they fail."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from support.clone import UV, clean_environment, clone_into

ROOT = Path(__file__).parent.parent

Make = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    clone_into(tmp_path)
    return tmp_path


@pytest.fixture
def make(clone: Path) -> Make:
    def run(*args: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["make", "--silent", f"PYTHON={sys.executable}", *args],
            cwd=clone,
            env=clean_environment() | variables,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )

    return run


def _assert_fairlead_runs(clone: Path) -> None:
    done = subprocess.run(
        [clone / ".venv/bin/fairlead", "demo", "--help"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "gateway nodes" in done.stdout


def test_the_gateways_environment_is_extended_for_the_tests_without_a_rebuild(clone: Path, make: Make) -> None:
    done = make(".venv/.installed-run")
    assert done.returncode == 0, done.stderr
    assert "creating .venv" in done.stderr
    _assert_fairlead_runs(clone)
    assert not (clone / ".venv/bin/pytest").exists()
    python = (clone / ".venv/pyvenv.cfg").stat()

    done = make("venv")
    assert done.returncode == 0, done.stderr
    assert "creating" not in done.stderr
    assert (clone / ".venv/bin/pytest").exists()
    assert (clone / ".venv/pyvenv.cfg").stat() == python

    assert make("venv").stderr == "", "what is complete is not made again"
    os.utime(clone / "requirements/dev.txt")
    assert "creating .venv" in make("venv").stderr


def test_an_interrupted_installation_is_repaired_by_the_next_make(clone: Path, make: Make) -> None:
    command = ["make", "--silent", f"PYTHON={sys.executable}", ".venv/.installed-run"]
    with subprocess.Popen(
        command, cwd=clone, env=clean_environment(), stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as first:
        assert first.stderr is not None
        for line in first.stderr:
            if "installing requirements" in line:
                os.killpg(first.pid, signal.SIGINT)  # as Ctrl-C at a terminal
                break
        rest = first.stderr.read()
    assert first.returncode != 0
    assert "Traceback" not in rest
    assert not (clone / ".venv/.installed-run").exists()

    done = make(".venv/.installed-run")
    assert done.returncode == 0, done.stderr
    _assert_fairlead_runs(clone)


def test_an_unreachable_index_is_named_and_leaves_no_stamp(clone: Path, make: Make, tmp_path: Path) -> None:
    if not UV.exists():
        pytest.skip("this clone's environment was not made by make: no uv to copy")
    nowhere = "http://127.0.0.1:9/simple"
    done = make("venv", UV_DEFAULT_INDEX=nowhere, UV_FIND_LINKS="", UV_CACHE_DIR=str(tmp_path / "empty"))
    assert done.returncode == 2
    assert "error: the packages could not be installed" in done.stderr
    assert nowhere in done.stderr, "uv's reason is shown"
    assert not (clone / ".venv/.installed").exists()


def test_settings_of_pip_apply_to_uv(clone: Path, make: Make, tmp_path: Path) -> None:
    """A machine whose pip is configured for its own index needs no second set-up."""
    if not UV.exists():
        pytest.skip("this clone's environment was not made by make: no uv to copy")
    settings = tmp_path / "pip.conf"
    settings.write_text("[global]\nindex-url = http://127.0.0.1:9/pips-own\n")
    cache = str(tmp_path / "empty")
    done = make("venv", PIP_CONFIG_FILE=str(settings), UV_FIND_LINKS="", UV_CACHE_DIR=cache, PIP_INDEX_URL="")
    assert done.returncode == 2
    assert "http://127.0.0.1:9/pips-own" in done.stderr


def test_uv_that_cannot_be_downloaded_is_named(clone: Path, make: Make) -> None:
    shutil.rmtree(clone / ".cache", ignore_errors=True)
    done = make(
        "venv", PIP_INDEX_URL="http://127.0.0.1:9/simple", PIP_NO_INDEX="", PIP_FIND_LINKS="", PIP_NO_CACHE_DIR="1"
    )
    assert done.returncode == 2
    assert "error: uv could not be downloaded" in done.stderr


@pytest.mark.parametrize(("python", "reason"), [("no-such-python", "was not found"), ("./old", "is too old")])
def test_an_unsuitable_python_is_refused(clone: Path, make: Make, python: str, reason: str) -> None:
    old = clone / "old"
    old.write_text('#!/bin/sh\n[ "$1" = --version ] && echo Python 3.9.2\nexit 1\n')
    old.chmod(0o755)
    done = make("venv", f"PYTHON={python}")
    assert done.returncode == 2
    assert reason in done.stderr
    assert "make PYTHON=python3.12" in done.stderr


def test_a_python_without_pip_uses_that_of_its_venv_module(clone: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", bare], check=True, timeout=60)
    code = "import runpy, sys; sys.argv = ['pip', '--version']; install = runpy.run_path(sys.orig_argv[-1])\n"
    code += "import subprocess; raise SystemExit(subprocess.run([*install['pip'](), '--version']).returncode)"
    done = subprocess.run(
        [bare / "bin/python", "-I", "-c", code, clone / "requirements/install.py"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("pip ")


def test_gateway_and_tests_have_the_same_pins() -> None:
    """`make venv` adds to the environment of `make run`, so no package may have two versions."""

    def pins(name: str) -> set[str]:
        return set(re.findall(r"(?m)^[a-z0-9._-]+==[^ ;]+", (ROOT / "requirements" / name).read_text()))

    assert pins("gateway.txt") <= pins("dev.txt")
    assert pins("build.txt") <= pins("dev.txt")
