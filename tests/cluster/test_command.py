"""The errors of `make cluster` and `make image`: what is missing, and what to do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, "-I", str(ROOT / "tests" / "tools" / "cluster")]


def call(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if name != "KUBECONFIG"}
    return subprocess.run(
        [*COMMAND, *arguments], env={**kept, **environment}, capture_output=True, text=True, timeout=50, check=False
    )


def test_a_cluster_that_does_not_answer_is_named(tmp_path: Path) -> None:
    nowhere = tmp_path / "config"
    cluster = {"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}
    context = {"name": "c", "context": {"cluster": "c", "user": ""}}
    nowhere.write_text(json.dumps({"clusters": [cluster], "contexts": [context], "current-context": "c"}))
    done = call("up", KUBECONFIG=str(nowhere))
    assert done.returncode == 1
    assert "kubectl" in done.stderr
    assert "  → " in done.stderr


def test_a_foreign_cluster_is_not_touched(tmp_path: Path) -> None:
    done = call("down", KUBECONFIG=str(tmp_path / "config"))
    assert done.returncode == 0
    assert "left alone" in done.stderr


def test_all_missing_packages_are_named_at_once(tmp_path: Path) -> None:
    done = call("packages", PATH=str(tmp_path))
    assert done.returncode == 0
    assert {"containerd", "runc", "iproute2", "openssl", "buildah", "debootstrap"} <= set(done.stdout.split())


@pytest.mark.skipif(os.geteuid() != 0, reason="another user gets another error first")
def test_a_cluster_that_cannot_start_names_the_needs_of_images_too(tmp_path: Path) -> None:
    done = call("up", PATH=str(tmp_path))
    if "runs already" in done.stderr:
        pytest.skip("the cluster runs, so nothing is looked for: played by `make test`, before one is started")
    assert done.returncode == 1
    assert "buildah, " in done.stderr
    assert "debootstrap" in done.stderr.splitlines()[-1]


def test_a_build_reports_its_progress(tmp_path: Path) -> None:
    """A stand-in for the compiler, which says what `go build -v` says: the real one takes many minutes."""
    (tmp_path / "go").write_text(
        "#!/bin/sh\necho k8s.io/api/core/v1 >&2\necho 'x.go:1: wrong' >&2\nsleep 0.1\necho fmt >&2\n"
    )
    (tmp_path / "go").chmod(0o755)
    code = (
        "import binaries, time; binaries.PROGRESS_SECONDS = 0.05; "
        "print(binaries._run_with_progress(['go'], time.monotonic()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True,
        env={"PATH": f"{tmp_path}:/usr/bin:/bin", "PYTHONPATH": str(ROOT / "tests" / "tools" / "cluster")},
    )  # fmt: skip
    assert done.stdout == "0\n"
    assert "x.go:1: wrong" in done.stderr.splitlines()
    assert "2 packages compiled" in done.stderr


def test_an_unknown_image_is_refused_and_the_known_ones_are_named() -> None:
    done = call("image", "nothing")
    assert done.returncode == 1
    assert "there is no image nothing" in done.stderr
    assert "gateway, operator, valkey" in done.stderr


@pytest.mark.skipif(os.geteuid() == 0, reason="root may")
def test_a_user_other_than_root_is_refused(tmp_path: Path) -> None:
    done = call("up", HOME=str(tmp_path))
    assert done.returncode == 1
    assert "root" in done.stderr


def test_the_same_content_gives_the_same_archive(tmp_path: Path) -> None:
    """Times and owners of this machine are in no image."""
    script = """
import sys
from pathlib import Path
import archive
archive.write(Path(sys.argv[2]), "example/one:1", Path(sys.argv[1]), archive.Config(entrypoint=("/one",)))
"""
    program = tmp_path / "one"
    program.write_text("content")
    files = [tmp_path / "a.tar", tmp_path / "b.tar"]
    for age, file in enumerate(files):
        os.utime(program, (age * 1000, age * 1000))
        argv = [sys.executable, "-c", script, str(program), str(file)]
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "tests" / "tools" / "cluster")}
        subprocess.run(argv, env=environment, check=True, timeout=30)
    assert files[0].read_bytes() == files[1].read_bytes()
    with tarfile.open(files[0]) as opened:
        manifest = opened.extractfile("manifest.json")
        assert manifest is not None
        about = json.load(manifest)[0]
        assert about["RepoTags"] == ["example/one:1"]
        layer = opened.extractfile(about["Layers"][0])
        assert layer is not None
        with tarfile.open(fileobj=layer) as content:
            assert content.getnames() == ["one"]
